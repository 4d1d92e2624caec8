"""A trainer's ring as OPEN describes it (python/FORMAT.md): its model and its buckets."""

import fcntl
import json
import mmap
import os
import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any, Sequence, Tuple

import torch

from lockstep.core.dtypes import element_bits
from lockstep.core.errors import ProtocolError
from lockstep.core.ring_messages import ALIGN, MAX_BUCKETS
from lockstep.core.tensors import TensorMeta
from lockstep.engine._dtypes import torch_dtype

_RUN = re.compile(r"[0-9a-f]{32}")
_MAX_DATA_BYTES = 1 << 44
_MAX_RANK = 16


@dataclass(frozen=True)
class TensorSlice:
    """Neighbouring elements of a tensor, in the order of its rows: ``values`` (1-D) begin with element ``first``."""

    tensor: TensorMeta
    first: int
    values: torch.Tensor


class Ring:
    """What the other end has, and its buckets, mapped. ProtocolError: its description is impossible, or wrong.

    ``fds`` are those that came with ``description``; they stay the caller's.
    """

    def __init__(self, description: bytes, fds: "Sequence[int]") -> None:
        try:
            opened = json.loads(description)
            self.run, self.bytes, self._bucket_bytes = opened["run"], opened["bytes"], opened["bucket_bytes"]
            entries, buckets = opened["tensors"], opened["buckets"]
            counts = self.bytes, self._bucket_bytes
            if not (_RUN.fullmatch(self.run) and all(_is_count(count) and 0 < count for count in counts)):
                raise ValueError(f"run {self.run!r}, {self.bytes!r} bytes in buckets of {self._bucket_bytes!r}")
            if not (1 <= len(buckets) <= MAX_BUCKETS and self.bytes <= _MAX_DATA_BYTES):
                raise ValueError(f"{len(buckets)} buckets, {self.bytes} bytes")
            self.tensors, offsets = _tensors(entries, self.bytes)
            self._filled = [meta for meta in self.tensors if meta.nbytes > 0]
            self._offsets = [offset for meta, offset in zip(self.tensors, offsets) if meta.nbytes > 0]
            self.buckets = mapped(buckets, self._bucket_bytes + ALIGN, fds)
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, OSError, RecursionError) as error:
            raise ProtocolError(f"the trainer's description of its ring cannot be used: {error!r}") from error

    def pieces(self, index: int, offset: int, size: int) -> "list[TensorSlice]":
        """What bucket ``index`` holds when the data section's ``size`` bytes from ``offset`` on are in it.
        ProtocolError: they cannot be."""
        if not (0 < size <= self._bucket_bytes and size <= self.bytes - offset):
            raise ProtocolError(f"a bucket of the trainer's cannot have {size} bytes from {offset} on")
        found = []
        at, end = offset, offset + size
        number = bisect_right(self._offsets, offset) - 1  # of tensors with bytes
        while at < end:
            meta, begin = self._filled[number], self._offsets[number]
            number += 1
            upto = min(end, begin + meta.nbytes)
            element = element_bits(meta.dtype) // 8
            if (upto - begin) % element:
                raise ProtocolError(f'the trainer cuts an element of tensor "{meta.name}" at byte {upto}')
            lies = offset % ALIGN + at - offset
            values = self.buckets[index][lies : lies + upto - at]
            if lies % element:  # PyTorch has no views of such
                values = values.clone()
            found.append(TensorSlice(meta, (at - begin) // element, values.view(torch_dtype(meta.name, meta.dtype)[0])))
            at = upto
        return found

    def synchronize(self) -> None:
        """Waits until what was queued on a bucket's GPU, by any thread on any stream, has read it: what a loader of an
        engine's own does there is not known here."""
        device = self.buckets[0].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _tensors(entries: Any, data_bytes: int) -> "Tuple[list[TensorMeta], list[int]]":
    """The model's tensors and their offsets. ValueError: they do not lie back to back in ``data_bytes``."""
    tensors, offsets, end = [], [], 0
    for name, dtype, shape, offset in entries:
        meta = TensorMeta(name, dtype, tuple(shape))
        fits = len(shape) <= _MAX_RANK and all(_is_count(extent) and extent <= data_bytes for extent in shape)
        if not (type(name) is str and fits and element_bits(dtype) and element_bits(dtype) % 8 == 0):
            raise ValueError(f"tensor {name!r}: {dtype!r} {shape!r}")
        torch_dtype(name, dtype)
        if offset != end:
            raise ValueError(f"tensor {name!r} begins at {offset!r}, the one before it ends at {end}")
        tensors.append(meta)
        offsets.append(end)
        end += meta.nbytes
    if end != data_bytes or len({meta.name for meta in tensors}) != len(tensors):
        raise ValueError(f"tensors of {end} bytes in {data_bytes}, or two of one name")
    return tensors, offsets


def mapped(buckets: Any, size: int, fds: "Sequence[int]") -> "list[torch.Tensor]":
    """The buckets' bytes."""
    kinds = {bucket["kind"] for bucket in buckets}
    if kinds == {"host"} and len(fds) == len(buckets):
        return [_host_bucket(fd, size) for fd in fds]
    if kinds == {"cuda"} and not fds:
        return [_cuda_bucket(bucket, size) for bucket in buckets]
    raise ValueError(f"buckets of kinds {kinds} with {len(fds)} descriptors")


def _host_bucket(fd: int, size: int) -> torch.Tensor:
    if os.fstat(fd).st_size != size:
        raise ValueError(f"a bucket has {os.fstat(fd).st_size} bytes, not {size}")
    if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("a bucket's memory may be taken away")
    # Shared and writable: PyTorch has no read-only tensors, and a write here damages only this process' version.
    return torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)


def _cuda_bucket(bucket: "dict[str, Any]", size: int) -> torch.Tensor:
    if not _is_count(bucket["bytes"]) or bucket["bytes"] < size or not _is_count(bucket["offset"]):
        raise ValueError(f"a bucket has {bucket['bytes']!r} bytes at {bucket['offset']!r}, not {size}")
    storage = torch.UntypedStorage._new_shared_cuda(
        _device_index(bucket["device"]),
        bytes.fromhex(bucket["handle"]),
        bucket["bytes"],
        bucket["offset"],
        bytes.fromhex(bucket["counter"]),
        bucket["counter_offset"],
        bytes.fromhex(bucket["event"]),
        bucket["event_sync"],
    )
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)[:size]


def _device_index(uuid: str) -> int:
    for index in range(torch.cuda.device_count()):
        if f"GPU-{torch.cuda.get_device_properties(index).uuid}" == uuid:
            return index
    raise ValueError(f"the trainer's buckets are on {uuid}, which this process does not see")
