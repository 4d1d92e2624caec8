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


@pytest.mark.parametrize(
    "kind, version", [("PAUSE", None), ("SERVE", None), ("ATTACHED", VERSION), ("PAUSED", VERSION)]
)
def test_what_no_receiver_says_is_refused(rank, kind, version):
    with pytest.raises(ProtocolError, match=f"the receiver: {kind} came"):
        obey(rank, MessageType[kind], version)
