"""Exchange over torch.distributed: how buckets of ranks on other hosts reach a rank on the agent's host."""

import contextlib
import ctypes
import datetime
import itertools
import time
from typing import Any

from lockstep.core import abi, arguments
from lockstep.core.gpu_memory import GpuMemory

_UNAVAILABLE = 8
_PAUSE_S = 0.0001


class TorchExchange:
    """The callbacks of ``lockstep_exchange`` over point-to-point operations of one process group.

    Messages are the library's memory, moved in place: the host's by Gloo, by a group that has only NCCL that of one
    GPU: the one the group is bound to, else ``device``, else the thread's current one now. Whatever device is current
    later stays so. ``peer`` numbers are ranks of ``group``. Calls come from the publishing thread only.

    ``timeout``: seconds that a transfer may take; None: no limit. A peer that dies between messages of Gloo is noticed at
    once, else only by this; either way the group is broken, and one of NCCL aborted: its GPU would wait for ever.
    Before the first message between two ranks torch connects them, for as long as the group's own timeout allows.
    """

    def __init__(self, group: Any = None, timeout: "float | None" = 600.0, device: Any = None) -> None:
        import torch
        import torch.distributed

        self._torch = torch
        self._distributed = torch.distributed
        self._group = group
        self._timeout = datetime.timedelta(milliseconds=arguments.milliseconds("call_timeout", timeout))
        self._device = self._gpu_of_group(device) if self._has_only_nccl() else None
        self._transfers: "dict[int, tuple[Any, str]]" = {}  # work, what it does
        self._numbers = itertools.count(1)
        self._error = ctypes.create_string_buffer(b"", 1024)
        self.callbacks = abi.CExchange(
            context=None,
            in_gpu_memory=self._device is not None,
            device=-1 if self._device is None else self._device.index,
            start_send=abi.START_SEND(self._start_send),
            start_receive=abi.START_RECEIVE(self._start_receive),
            wait=abi.WAIT(self._wait),
            error=abi.ERROR(lambda context: ctypes.addressof(self._error)),
        )

    def _has_only_nccl(self) -> bool:
        backends = str(self._distributed.get_backend_config(self._group))
        return "gloo" not in backends and "nccl" in backends

    def _gpu_of_group(self, device: Any) -> Any:
        group = self._group if self._group is not None else self._distributed.group.WORLD
        bound = getattr(group, "bound_device_id", None) or device
        if bound is None or bound.index is None:
            return self._torch.device("cuda", self._torch.cuda.current_device())
        return bound

    def _start_send(self, _context: Any, peer: int, address: int, nbytes: int, transfer: Any) -> int:
        what = f"sending {nbytes} bytes to rank {peer}"
        return self._guarded(what, lambda: self._remember(transfer, what, self._send(peer, address, nbytes)))

    def _start_receive(self, _context: Any, peer: int, address: int, nbytes: int, transfer: Any) -> int:
        what = f"receiving {nbytes} bytes from rank {peer}"
        return self._guarded(what, lambda: self._remember(transfer, what, self._receive(peer, address, nbytes)))

    def _wait(self, _context: Any, transfer: int) -> int:
        work, what = self._transfers.pop(transfer, (None, f"transfer {transfer}"))
        return self._guarded(what, lambda: self._finish(work))

    def _send(self, peer: int, address: int, nbytes: int) -> Any:
        with self._on_device():
            return self._distributed.isend(self._tensor(address, nbytes), group=self._group, group_dst=peer)

    def _receive(self, peer: int, address: int, nbytes: int) -> Any:
        with self._on_device():
            return self._distributed.irecv(self._tensor(address, nbytes), group=self._group, group_src=peer)

    def _finish(self, work: Any) -> None:
        if work is None:
            raise LookupError("is not under way")
        if self._device is None:
            work.wait(self._timeout)
            return
        deadline = time.monotonic() + self._timeout.total_seconds()
        while not work.is_completed():  # NCCL's wait() only orders streams
            if time.monotonic() > deadline:
                self._abort()
                raise TimeoutError(f"no answer within {self._timeout.total_seconds():g} s")
            time.sleep(_PAUSE_S)
        with self._on_device():
            work.wait()  # says what went wrong

    def _abort(self) -> None:
        """Ends what the group has under way, which would touch the library's memory."""
        with contextlib.suppress(Exception):
            group = self._group if self._group is not None else self._distributed.group.WORLD
            group._get_backend(self._device).abort()

    def _on_device(self) -> Any:
        return contextlib.nullcontext() if self._device is None else self._torch.cuda.device(self._device)

    def _tensor(self, address: int, nbytes: int) -> Any:
        if self._device is not None:
            return self._torch.as_tensor(GpuMemory(address, nbytes), device=self._device)
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        return self._torch.frombuffer(memory, dtype=self._torch.uint8)

    def _remember(self, transfer: Any, what: str, work: Any) -> None:
        number = next(self._numbers)
        self._transfers[number] = (work, what)
        transfer[0] = number

    def _guarded(self, what: str, body: Any) -> int:
        try:
            body()
        except BaseException as error:  # nothing may be raised into the library
            self._error.value = f"torch.distributed, {what}: {error}".encode(errors="replace")[:1023]
            return _UNAVAILABLE
        return 0
