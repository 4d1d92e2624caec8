"""The tensors of a HuggingFace checkpoint's directory, by the headers of its safetensors files."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, Tuple

from lockstep.core.errors import BadDataError, NotFoundError, bad_tensor
from lockstep.core.tensors import TensorMeta

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_MAX_HEADER_BYTES = 100 << 20  # safetensors' own bound


def local_checkpoint(checkpoint: "str | os.PathLike[str]") -> str:
    """The directory of ``checkpoint``, which is one, or a model of the HuggingFace hub that was downloaded before."""
    if os.path.isdir(checkpoint):
        return os.fspath(checkpoint)
    from huggingface_hub import snapshot_download

    return str(snapshot_download(os.fspath(checkpoint), local_files_only=True))


class StoredTensor(NamedTuple):
    """A tensor of a checkpoint, and where its bytes are."""

    meta: TensorMeta
    path: Path
    offset: int

    def read_into(self, memory: memoryview) -> None:
        """Fills ``memory``, as long as the tensor. BadDataError: the file is shorter."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            if file.readinto(memory) != len(memory):
                raise bad_tensor(self.meta.name, f"{self.path} ends before it does")


def stored_tensors(directory: "str | os.PathLike[str]") -> "list[StoredTensor]":
    """What the checkpoint in ``directory`` holds, file by file, in the order of the data, of which none is read.

    NotFoundError: a file that should be there is not. BadDataError: one is not what its name says, or is without a tensor
    that the index says it has.
    """
    index = Path(directory) / _INDEX
    if not index.exists():
        return _tensors_of(Path(directory) / _WHOLE)
    promised = _weight_map_of(index)
    stored = {file: _tensors_of(Path(directory) / file) for file in sorted(set(promised.values()))}
    found = {(tensor.meta.name, file) for file, tensors in stored.items() for tensor in tensors}
    for name, file in promised.items():
        if (name, file) not in found:
            raise bad_tensor(name, f"{index} says that {file} has it; it does not")
    return [tensor for tensors in stored.values() for tensor in tensors]


def _weight_map_of(index: Path) -> "dict[str, str]":
    """Tensor to file."""
    try:
        return dict(json.loads(index.read_text())["weight_map"].items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadDataError(f"{index} is no index of a checkpoint: {error!r}") from error


def _tensors_of(path: Path) -> "list[StoredTensor]":
    data, header = _header_of(path)
    try:
        entries = sorted(
            (tuple(map(int, entry["data_offsets"])), name, entry["dtype"], tuple(map(int, entry["shape"])))
            for name, entry in header.items()
            if name != "__metadata__"
        )
        return [
            StoredTensor(TensorMeta(name, dtype, shape), path, data + begin)
            for (begin, _), name, dtype, shape in entries
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadDataError(f"{path}: its safetensors header is not understood: {error!r}") from error


def _header_of(path: Path) -> "Tuple[int, Any]":
    """Where the data begins, and the JSON before it."""
    try:
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if header_bytes > _MAX_HEADER_BYTES:
                raise ValueError(f"its header would have {header_bytes} bytes")
            return 8 + header_bytes, json.loads(file.read(header_bytes))
    except FileNotFoundError:
        raise NotFoundError(f"there is no {path}; give a directory with a checkpoint in safetensors files") from None
    except ValueError as error:
        raise BadDataError(f"{path} is no safetensors file: {error}") from error
