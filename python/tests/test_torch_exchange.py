"""The exchange over torch.distributed, where the group is a stand-in for one that has only NCCL."""

import ctypes
import time

import pytest

torch = pytest.importorskip("torch")
distributed = pytest.importorskip("torch.distributed")
if not distributed.is_available():
    pytest.skip("PyTorch without torch.distributed", allow_module_level=True)

from lockstep.core.gpu_memory import GpuMemory  # noqa: E402
from lockstep.export._exchange import TorchExchange  # noqa: E402

UNAVAILABLE = 8


class Backend:
    aborted = 0

    def abort(self):
        self.aborted += 1


class Group:
    """What PyTorch's process groups have."""

    def __init__(self, bound=None):
        self.bound_device_id = bound
        self.backend = Backend()
        self.backend_of = []

    def _get_backend(self, device):
        self.backend_of.append(device)
        return self.backend


class Work:
    def __init__(self, completes=True, error=None):
        self.completes, self.error, self.waits = completes, error, 0

    def is_completed(self):
        return self.completes

    def wait(self, timeout=None):
        self.waits += 1
        if self.error:
            raise self.error
        if not self.completes:
            time.sleep(3600)  # as wait() of NCCL without a peer, in the end


@pytest.fixture
def nccl(monkeypatch):
    """`nccl.work` is what the next operation answers; `nccl.operations` what was asked for."""

    class State:
        work = Work()
        operations = []
        devices = []

    class On:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            State.devices.append(self.device)

        def __exit__(self, *_):
            State.devices.append(None)

    def operation(kind):
        def run(tensor, group=None, group_dst=None, group_src=None):
            State.operations.append((kind, tensor, State.devices[-1], group_dst if group_src is None else group_src))
            return State.work

        return run

    State.operations, State.devices = [], []
    monkeypatch.setattr(distributed, "get_backend_config", lambda group: "cuda:nccl")
    monkeypatch.setattr(distributed, "isend", operation("isend"))
    monkeypatch.setattr(distributed, "irecv", operation("irecv"))
    monkeypatch.setattr(torch.cuda, "device", On)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    monkeypatch.setattr(torch, "as_tensor", lambda memory, device: (memory, device))
    return State


def start(exchange, what, peer=3, address=4096, nbytes=100):
    transfer = ctypes.c_uint64()
    code = getattr(exchange.callbacks, what)(None, peer, address, nbytes, ctypes.byref(transfer))
    return code, transfer.value


def error_of(exchange):
    return ctypes.cast(exchange.callbacks.error(None), ctypes.c_char_p).value.decode()


def test_the_gpu_is_the_groups_own_then_the_tensors_then_the_current_one(nccl):
    bound, other = torch.device("cuda", 2), torch.device("cuda", 1)
    for group, device, expected in ((Group(bound), other, 2), (Group(), other, 1), (Group(), None, 5)):
        callbacks = TorchExchange(group, device=device).callbacks
        assert (callbacks.in_gpu_memory, callbacks.device) == (1, expected)


def test_messages_are_the_librarys_gpu_memory_and_its_device_is_current_while_they_start(nccl):
    device = torch.device("cuda", 2)
    exchange = TorchExchange(Group(device))
    for what, kind in (("start_send", "isend"), ("start_receive", "irecv")):
        code, transfer = start(exchange, what)
        assert (code, transfer) != (0, 0)
        done, (memory, placed), current, peer = nccl.operations[-1]
        assert (done, placed, current, peer) == (kind, device, device, 3)
        assert isinstance(memory, GpuMemory)
        assert memory.__cuda_array_interface__["data"] == (4096, False)
        assert memory.__cuda_array_interface__["shape"] == (100,)
        assert exchange.callbacks.wait(None, transfer) == 0
        assert nccl.devices[-1] is None
    assert nccl.work.waits == 2


@pytest.mark.parametrize(
    "what, text", [("start_send", "sending 100 bytes to"), ("start_receive", "receiving 100 bytes from")]
)
def test_a_dead_peer_ends_a_wait_within_the_deadline_and_the_group_is_aborted(nccl, what, text):
    group = Group(torch.device("cuda", 2))
    exchange = TorchExchange(group, timeout=0.2)
    nccl.work = Work(completes=False)
    code, transfer = start(exchange, what)
    assert code == 0
    begun = time.monotonic()
    assert exchange.callbacks.wait(None, transfer) == UNAVAILABLE
    assert 0.2 <= time.monotonic() - begun < 5
    assert error_of(exchange) == f"torch.distributed, {text} rank 3: no answer within 0.2 s"
    assert group.backend.aborted == 1
    assert group.backend_of == [torch.device("cuda", 2)]


def test_what_a_transfer_failed_with_is_told(nccl):
    exchange = TorchExchange(Group(torch.device("cuda", 2)))
    nccl.work = Work(error=RuntimeError("NCCL: remote process exited"))
    _, transfer = start(exchange, "start_send")
    assert exchange.callbacks.wait(None, transfer) == UNAVAILABLE
    assert error_of(exchange) == "torch.distributed, sending 100 bytes to rank 3: NCCL: remote process exited"
    assert exchange.callbacks.wait(None, transfer) == UNAVAILABLE  # it is over
    assert error_of(exchange) == f"torch.distributed, transfer {transfer}: is not under way"


def test_gloo_moves_host_memory(nccl, monkeypatch):
    monkeypatch.setattr(distributed, "get_backend_config", lambda group: "cpu:gloo,cuda:nccl")
    exchange = TorchExchange(Group(torch.device("cuda", 2)))
    assert (exchange.callbacks.in_gpu_memory, exchange.callbacks.device) == (0, -1)
    memory = (ctypes.c_uint8 * 4)(1, 2, 3, 4)
    nccl.devices.append("as it was")
    assert start(exchange, "start_send", address=ctypes.addressof(memory), nbytes=4)[0] == 0
    _, tensor, current, _ = nccl.operations[-1]
    assert tensor.tolist() == [1, 2, 3, 4]
    assert current == "as it was"
