"""What a rank does that cannot obey."""

import pytest
import torch
from portions import portion, sealed

from lockstep.core.errors import ProtocolError
from lockstep.engine._connection import Message, MessageType
from lockstep.engine._memory import Place
from lockstep.engine._own_writes import OwnWrites


def test_without_memory_for_a_portion_all_is_dropped_and_the_error_says_what_to_change(monkeypatch):
    held = torch.zeros(64, dtype=torch.uint8)
    writes = OwnWrites([Place(torch.device("cpu"), held.data_ptr(), 64)])

    def stage(offset):
        content = sealed(portion([(0, 2, 0, (offset,), b"ab")]))
        return writes.obey(Message(MessageType.STAGE, fds=[content]), read=False)

    assert stage(8).type == MessageType.STAGED
    writer = writes._writer

    def no_memory(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(writer, "_prepared", no_memory)
        with pytest.raises(ProtocolError, match="lower --engine-stage-bytes: CUDA out of memory"):
            stage(16)
    writer.write()
    assert not held.any()
