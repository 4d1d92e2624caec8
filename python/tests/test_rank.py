"""What a rank does that cannot obey."""

import pytest
import torch
from write_batches import batch, sealed

from lockstep.core.errors import ProtocolError
from lockstep.engine._connection import Message, MessageType
from lockstep.engine._gate import Gate
from lockstep.engine._memory import Memory
from lockstep.engine._options import DescribeOptions
from lockstep.engine._parameters import parameters_of
from lockstep.engine._rank import Rank
from lockstep.engine._served import Served

VERSION = Served("0" * 31 + "1", 1)


@pytest.fixture
def held() -> torch.Tensor:
    return torch.zeros(8, 8, dtype=torch.uint8)


@pytest.fixture
def rank(held) -> Rank:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(held, requires_grad=False)
    parameters = parameters_of(module, DescribeOptions())
    return Rank(Memory(module, parameters), Gate(), receiver="the receiver", compares=False, after_write=None)


def obey(rank: Rank, kind: MessageType, version: "Served | None" = None, fds=()) -> Message:
    return rank.obey(Message(kind, version, fds=fds), given_up=lambda: False)


def stage(rank: Rank, offset: int) -> None:
    content = sealed(batch([(0, 2, 0, (offset,), b"ab")]))
    assert obey(rank, MessageType.STAGE, fds=[content]).type == MessageType.STAGED


def test_without_memory_for_a_batch_all_is_dropped_and_the_error_says_what_to_change(rank, held, monkeypatch):
    stage(rank, 8)

    def no_memory(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(rank._writer, "_prepared", no_memory)
        with pytest.raises(ProtocolError, match="lower --engine-stage-bytes: CUDA out of memory"):
            stage(rank, 16)
    obey(rank, MessageType.WRITE)
    assert not held.any()


def test_memory_that_is_read_is_not_written_and_a_mix_is_not_served(rank, held):
    with pytest.raises(ProtocolError, match="the receiver: .*cannot be served: None is in memory"):
        obey(rank, MessageType.SERVE, VERSION)
    stage(rank, 8)
    obey(rank, MessageType.WRITE, VERSION)
    assert obey(rank, MessageType.SERVE, VERSION).type == MessageType.SERVING
    assert (rank.state(), rank.reads, rank.holds) == ("reading", VERSION, VERSION)
    stage(rank, 16)
    with pytest.raises(ProtocolError, match="WRITE of memory that is being read"):
        obey(rank, MessageType.WRITE)
    assert held.view(-1).nonzero().view(-1).tolist() == [8, 9]


def test_what_was_not_written_since_a_pause_is_read_again_without_its_receiver(rank):
    obey(rank, MessageType.WRITE, VERSION)
    obey(rank, MessageType.SERVE, VERSION)
    for writes, state in ((False, "reading"), (True, "waiting")):
        obey(rank, MessageType.PAUSE, Served(VERSION.run, 2))
        assert rank.state() == "waiting"
        if writes:
            obey(rank, MessageType.WRITE)
        rank.drop()
        rank.resume()
        assert rank.state() == state


@pytest.mark.parametrize(
    "kind, version", [("PAUSE", None), ("SERVE", None), ("ATTACHED", VERSION), ("PAUSED", VERSION)]
)
def test_what_no_receiver_says_is_refused(rank, kind, version):
    with pytest.raises(ProtocolError, match=f"the receiver: {kind} came"):
        obey(rank, MessageType[kind], version)
