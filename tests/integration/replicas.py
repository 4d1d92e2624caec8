"""Reading safetensors files without any of Lockstep's code, and models made up for tests."""

import ctypes
import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.core.tensors import describe

if TYPE_CHECKING:
    import numpy as np

BLOCK = 256 * 1024


def raw_bytes(tensor) -> bytes:
    """The bytes of a NumPy array or PyTorch tensor of any dtype."""
    if hasattr(tensor, "data_ptr"):
        whole = tensor.detach().contiguous()
        return ctypes.string_at(whole.data_ptr(), whole.numel() * whole.element_size())
    import numpy as np

    return np.ascontiguousarray(tensor).tobytes()


def read_file(path: Path) -> "dict[str, tuple[str, list[int], memoryview]]":
    """name -> (dtype, shape, bytes) of a safetensors file. Raises when it is not a whole and valid one."""
    data = memoryview(Path(path).read_bytes())
    (header_bytes,) = struct.unpack_from("<Q", data)
    header = json.loads(bytes(data[8 : 8 + header_bytes]))
    header.pop("__metadata__", None)
    section = data[8 + header_bytes :]
    found, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        assert first == end, f"{path}: {name} starts at {first}, not at {end}"
        found[name] = (entry["dtype"], entry["shape"], section[first:last])
        end = last
    assert end == len(section), f"{path}: {len(section)} bytes of data, {end} of them used"
    return found


def data_hash(path: Path) -> str:
    """A hash of all tensors' names and bytes; equal to `tensors_hash` of equal tensors."""
    return _hash((name, content) for name, (_, _, content) in read_file(path).items())


def tensors_hash(tensors) -> str:
    return _hash((name, raw_bytes(tensor)) for name, tensor in tensors.items())


def _hash(pairs) -> str:
    import xxhash  # which a machine with nothing but PyTorch lacks

    digest = xxhash.xxh3_128()
    for name, content in sorted(pairs, key=lambda pair: pair[0]):
        digest.update(name.encode())
        digest.update(content)
    return digest.hexdigest()


def differing_tensor(path: Path, tensors) -> "str | None":
    """None when the file holds exactly `tensors`; else what differs."""
    try:
        found = read_file(path)
    except Exception as error:  # being replaced right now, or broken: the caller's timeout decides which
        return f"{path} cannot be read: {error!r}"
    if found.keys() != tensors.keys():
        return f"other tensors: {sorted(found.keys() ^ tensors.keys())}"
    for meta in describe(tensors):
        dtype, shape, content = found[meta.name]
        if (dtype, tuple(shape)) != (meta.dtype, meta.shape):
            return f"{meta.name} is {dtype} {shape}, not {meta.dtype} {list(meta.shape)}"
        if content != raw_bytes(tensors[meta.name]):
            return f"{meta.name} has other bytes"
    return None


class ToyModel:
    """bf16-like weights (their raw 16 bits) that change a little at every step, the same for the same seed."""

    def __init__(self, seed: int = 0, blocks: int = 16, tensors: int = 5) -> None:
        import numpy as np  # which a machine with nothing but PyTorch lacks

        self._random = np.random.default_rng(seed)
        elements = blocks * BLOCK // 2 // tensors
        self.tensors = {
            f"layers.{layer}.weight": self._random.integers(0, 1 << 16, elements + layer, np.uint16)
            for layer in range(tensors)
        }

    def step(self, density: float = 0.01) -> "dict[str, np.ndarray]":
        """Changes that share of all elements by one bit pattern up or down; returns the tensors."""
        import numpy as np

        for tensor in self.tensors.values():
            touched = self._random.integers(0, tensor.size, max(1, int(tensor.size * density)))
            tensor[touched] += self._random.choice(np.array([1, 65535], np.uint16), touched.size)
        return self.tensors

    def reach(self, publisher, version: int, *receivers, density: float = 0.01) -> None:
        """A step is published as that version, and the receivers come to it."""
        publisher.publish(version=version, tensors=self.step(density))
        for receiver in receivers:
            receiver.wait_for(self.tensors)

    def copy(self) -> "dict[str, np.ndarray]":
        return {name: tensor.copy() for name, tensor in self.tensors.items()}
