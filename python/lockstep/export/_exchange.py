"""Exchange over torch.distributed: how buckets of ranks on other hosts reach a rank on the agent's host."""

import ctypes
import datetime
import itertools
from typing import Any

from lockstep.core import abi

_UNAVAILABLE = 8
_TIMEOUT_MS = 600_000


class TorchExchange:
    """The callbacks of ``lockstep_exchange`` over point-to-point operations of one process group.

    Gloo moves the library's host memory in place. A group that has only NCCL goes through GPU memory, one bucket's
    worth for each transfer. ``peer`` numbers are ranks of ``group``. Calls come from the publishing thread only.

    ``timeout_ms``: how long a transfer may take; 0: 10 minutes. A peer that dies between messages is noticed at once,
    in the middle of one only by this; either way the group is broken.
    """

    def __init__(self, group: Any = None, timeout_ms: int = 0) -> None:
        import torch
        import torch.distributed

        self._torch = torch
        self._distributed = torch.distributed
        self._group = group
        self._timeout = datetime.timedelta(milliseconds=timeout_ms or _TIMEOUT_MS)
        self._through_gpu = self._has_only_nccl()
        self._transfers: "dict[int, tuple[Any, Any, Any]]" = {}  # work, host tensor, GPU tensor to copy back from
        self._numbers = itertools.count(1)
        self._error = ctypes.create_string_buffer(b"", 1024)
        self.callbacks = abi.CExchange(
            context=None,
            start_send=abi.START_SEND(self._start_send),
            start_receive=abi.START_RECEIVE(self._start_receive),
            wait=abi.WAIT(self._wait),
            error=abi.ERROR(lambda context: ctypes.addressof(self._error)),
        )

    def _has_only_nccl(self) -> bool:
        backends = str(self._distributed.get_backend_config(self._group))
        return "gloo" not in backends and "nccl" in backends

    def _start_send(self, _context: Any, peer: int, address: int, nbytes: int, transfer: Any) -> int:
        return self._guarded(f"sending to rank {peer}", lambda: self._send(peer, address, nbytes, transfer))

    def _start_receive(self, _context: Any, peer: int, address: int, nbytes: int, transfer: Any) -> int:
        return self._guarded(f"receiving from rank {peer}", lambda: self._receive(peer, address, nbytes, transfer))

    def _wait(self, _context: Any, transfer: int) -> int:
        return self._guarded(f"transfer {transfer}", lambda: self._finish(transfer))

    def _send(self, peer: int, address: int, nbytes: int, transfer: Any) -> None:
        host = self._host_tensor(address, nbytes)
        outgoing = host.cuda() if self._through_gpu else host
        work = self._distributed.isend(outgoing, group=self._group, group_dst=peer)
        self._remember(transfer, work, outgoing, None)

    def _receive(self, peer: int, address: int, nbytes: int, transfer: Any) -> None:
        host = self._host_tensor(address, nbytes)
        incoming = self._torch.empty_like(host, device="cuda") if self._through_gpu else host
        work = self._distributed.irecv(incoming, group=self._group, group_src=peer)
        self._remember(transfer, work, host, incoming if self._through_gpu else None)

    def _finish(self, transfer: int) -> None:
        work, host, incoming = self._transfers.pop(transfer)
        work.wait(self._timeout)
        if incoming is not None:
            host.copy_(incoming)
        elif self._through_gpu:
            self._torch.cuda.current_stream().synchronize()  # NCCL's wait() only orders streams

    def _host_tensor(self, address: int, nbytes: int) -> Any:
        memory = (ctypes.c_uint8 * nbytes).from_address(address)
        return self._torch.frombuffer(memory, dtype=self._torch.uint8)

    def _remember(self, transfer: Any, work: Any, host: Any, incoming: Any) -> None:
        number = next(self._numbers)
        self._transfers[number] = (work, host, incoming)
        transfer[0] = number

    def _guarded(self, what: str, body: Any) -> int:
        try:
            body()
        except BaseException as error:  # nothing may be raised into the library
            self._error.value = f"torch.distributed, {what}: {error}".encode(errors="replace")[:1023]
            return _UNAVAILABLE
        return 0
