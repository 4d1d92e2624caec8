"""What a bucket ring is made of: how the model is cut, and memory that another process can read."""

import ctypes
import os
import weakref
from bisect import bisect_right
from typing import Any, Sequence, Tuple

from lockstep.core.dtypes import element_bits
from lockstep.core.errors import BadDataError, ResourceExhaustedError
from lockstep.core.shared_memory import sealed_memory
from lockstep.core.tensors import TensorMeta


def parts_of(tensors: "Sequence[Tuple[TensorMeta, int]]", bucket_bytes: int) -> "list[Tuple[int, int]]":
    """(offset, bytes) of the data section that go into one bucket each, in order, of at most ``bucket_bytes``.

    A tensor that fits into a bucket is not cut; one that does not is cut between elements.
    """
    filled = [(meta, offset) for meta, offset in tensors if meta.nbytes > 0]
    offsets = [offset for _, offset in filled]
    end = offsets[-1] + filled[-1][0].nbytes
    parts, at = [], 0
    while at < end:
        cut = min(at + bucket_bytes, end)
        if cut < end:
            meta, offset = filled[bisect_right(offsets, cut) - 1]
            if offset > at and meta.nbytes <= bucket_bytes:
                cut = offset
            else:
                cut -= (cut - offset) % (element_bits(meta.dtype) // 8)
        parts.append((at, cut - at))
        at = cut
    return parts


class HostBucket:
    """A sealed memfd, mapped here at ``address``."""

    def __init__(self, size: int) -> None:
        self._fd, self._map = sealed_memory("lockstep-ring", size, "a bucket")
        weakref.finalize(self, os.close, self._fd)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def shared(self) -> "Tuple[dict[str, Any], int | None]":
        """How a message describes it, and the descriptor that goes with that."""
        return {"kind": "host"}, self._fd


class CudaBucket:
    """Memory of PyTorch's on ``device``, at ``address`` there."""

    def __init__(self, size: int, device: Any) -> None:
        import torch

        try:
            self._memory = torch.empty(size, dtype=torch.uint8, device=device)
        except torch.cuda.OutOfMemoryError as error:
            raise ResourceExhaustedError(f"{size} bytes of {device}'s memory for a bucket: {error}") from error
        if not self._memory.is_cuda:
            raise BadDataError(f"device {device}: buckets are in host memory (None) or on a CUDA device")
        # What PyTorch did with this memory before may be still under way; from here on only the library writes it.
        torch.cuda.current_stream(self._memory.device).synchronize()
        self.address = self._memory.data_ptr()

    def shared(self) -> "Tuple[dict[str, Any], int | None]":
        """As HostBucket. PyTorch counts the users of the memory, so each reader gets a description of its own."""
        import torch

        try:
            shared = self._memory.untyped_storage()._share_cuda_()
        except RuntimeError as error:
            raise BadDataError(
                f"the bucket's GPU memory cannot be shared ({error}): start the trainer without expandable_segments in "
                "PYTORCH_CUDA_ALLOC_CONF"
            ) from error
        device, handle, size, offset, counter, counter_offset, event, event_sync = shared
        return {
            "kind": "cuda",
            "device": f"GPU-{torch.cuda.get_device_properties(device).uuid}",
            "handle": bytes(handle).hex(),
            "bytes": size,
            "offset": offset,
            "counter": bytes(counter).hex(),
            "counter_offset": counter_offset,
            "event": bytes(event).hex(),
            "event_sync": bool(event_sync),
        }, None
