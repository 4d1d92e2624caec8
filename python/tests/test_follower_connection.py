"""What a Follower resumes with when the connection to its receiver ends (raas_receiver/engine/ranks/FORMAT.md)."""

import contextlib
import socket
import threading
import time

import pytest
import torch
from fake_receiver import RUN, STAGED
from helpers import in_background, serving, values, wait_until
from write_batches import batch

import lockstep
from lockstep.engine import Served
from lockstep.engine._gate import Gate
from lockstep.engine._writer import Writer


def test_a_rank_that_is_not_paused_stays_as_it_was(receiver, follow):
    follower, rank = serving(receiver, follow, torch.nn.Linear(2, 2))
    rank.close()
    again = receiver.accept()
    assert (again.version, again.run) == (1, RUN) and follower.served == Served(RUN, 1)
    again.close()  # before it was ATTACHED: the same
    assert receiver.accept().version == 1 and follower.served == Served(RUN, 1)


def test_killed_before_writing_paused_ranks_resume_with_the_old_version(receiver, follow):
    follower, rank = serving(receiver, follow, torch.nn.Linear(2, 2))
    rank.pause(2)
    rank.close()
    assert follower.wait_for(timeout=60) == Served(RUN, 1)
    assert receiver.accept().version == 1


def test_killed_while_writing_ranks_stay_paused_until_a_whole_version_is_written(receiver, follow):
    model = torch.nn.Linear(2, 2)
    follower = follow(model)
    rank = receiver.accept()
    rank.attached()
    rank.commit(1, 1.0)
    rank.pause(2)
    rank.fill(2.0, version=0, names=["weight"])
    rank.close()
    again = receiver.accept()
    assert (again.version, again.run, again.state) == (0, "00" * 16, "waiting")
    with pytest.raises(lockstep.DeadlineError, match="was not served within 0.1 s; nothing is"):
        follower.wait_for(timeout=0.1)
    again.attached()
    again.pause(2)  # a paused rank answers PAUSED again
    again.pause(2)
    again.fill(2.0)
    again.serve(2)
    with follower.serving(timeout=60) as served:
        assert served.version == 2 and values(model) == {2.0}


def test_a_rank_that_waits_is_written_and_serves_without_having_been_read(receiver, follow):
    """It was being caught up with the others when the receiver died: its memory is a mix."""
    follower = follow(torch.nn.Linear(2, 2))
    rank = receiver.accept()
    rank.attached()
    rank.pause(4)
    rank.fill(4.0, version=0, names=["weight"])
    rank.close()
    again = receiver.accept()
    assert (again.version, again.state) == (0, "waiting") and follower.served is None


def test_a_reader_that_stays_keeps_no_other_out_once_the_receiver_waits_no_longer(receiver, follow):
    follower, rank = serving(receiver, follow, torch.nn.Linear(2, 2))
    with follower.serving():
        rank.send_pause(2)
        wait_until(lambda: follower.served is None, "the gate is shut")
        rank.close()
        late = in_background(lambda: follower.wait_for(timeout=60))
        late.join(60)
        assert late.result == Served(RUN, 1)
        again = receiver.accept()
        assert (again.version, again.state) == (1, "reading")
        again.attached()
        wait_until(lambda: follower.error is not None, "the reader is told of")
        assert "1 of its readers did not leave" in follower.error
    again.commit(2, 2.0)
    assert follower.wait_for(2, timeout=60) == Served(RUN, 2) and follower.error is None


def test_a_rank_that_waits_for_long_says_so(receiver, follow, monkeypatch):
    monkeypatch.setattr("lockstep.engine._rank._LONG_WAIT_SECONDS", 0.05)
    follower = follow(torch.nn.Linear(2, 2))
    rank = receiver.accept()
    rank.attached()
    rank.pause(1)
    rank.fill(1.0)
    wait_until(lambda: follower.error is not None, "it has waited")
    assert "waited for 0 s" in follower.error and "holds version 1" in follower.error
    rank.serve(1)
    assert follower.error is None


# ---- sleep ----


@pytest.mark.parametrize("kept", [True, False])
def test_a_rank_that_sleeps_says_so_reads_nothing_and_says_what_it_holds_when_it_wakes(receiver, follow, kept):
    follower, rank = serving(receiver, follow, torch.nn.Linear(2, 2))
    follower.sleep(kept=True)
    follower.sleep(kept)
    assert follower.served is None and rank.is_closed()
    asleep = receiver.accept()
    assert (asleep.state, asleep.version) == ("asleep", 0)
    with pytest.raises(lockstep.DeadlineError):
        follower.wait_for(timeout=0.05)
    follower.wake()
    assert asleep.is_closed()
    awake = receiver.accept()
    assert (awake.state, awake.version) == ("waiting", 1 if kept else 0) and follower.served is None
    awake.attached()
    awake.pause(1)
    if not kept:
        awake.fill(1.0)
    awake.serve(1)
    assert follower.wait_for(1, timeout=60) == Served(RUN, 1)


def test_a_rank_does_not_fall_asleep_while_it_is_written_and_holds_nothing_then(receiver, follow, monkeypatch):
    model = torch.nn.Linear(2, 2)
    follower = follow(model)
    rank = receiver.accept()
    rank.attached()
    rank.pause(1)
    begun, go_on, write = threading.Event(), threading.Event(), Writer.write

    def slow(writer: Writer) -> None:
        begun.set()
        assert go_on.wait(60)
        write(writer)

    monkeypatch.setattr(Writer, "write", slow)
    rank.stage(batch())
    rank.expect(STAGED)
    rank.send_write(0)
    assert begun.wait(60)
    sleeping = in_background(follower.sleep)
    time.sleep(0.05)
    assert sleeping.is_alive()
    go_on.set()
    sleeping.join(60)
    assert not sleeping.is_alive() and receiver.accept().state == "asleep"


def test_an_order_that_came_before_a_sleep_is_not_taken_after_it(receiver, follow, monkeypatch):
    follower = follow(torch.nn.Linear(2, 2))
    rank = receiver.accept()
    rank.attached()
    rank.pause(1)
    written: "list[Writer]" = []
    monkeypatch.setattr(Writer, "write", written.append)
    with follower._rank.lock:
        rank.send_write(0)
        time.sleep(0.05)  # it is received, and waits for the lock
        follower._rank.asleep = True
        follower._soon.set()
    assert rank.is_closed()
    asleep = receiver.accept()  # kept: its end would be an error
    assert asleep.state == "asleep"
    assert not written and follower.error is None


def test_a_rank_that_sleeps_takes_no_order(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    rank = receiver.accept()
    follower.sleep()
    assert rank.is_closed()
    asleep = receiver.accept()
    asleep.attached()
    assert asleep.is_closed()
    wait_until(lambda: "before its time" in (follower.error or ""), "it says why")


def test_a_refused_rank_reports_why_keeps_what_it_serves_and_attaches_again(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    receiver.accept().refuse("parameter weight is F32 and should be BF16")
    rank = receiver.accept()
    assert "should be BF16" in follower.error
    rank.attached()
    rank.commit(1, 1.0)
    assert follower.error is None
    rank.pause(2)
    rank.refuse("another rank was lost")
    assert follower.wait_for(timeout=60) == Served(RUN, 1)


def test_the_log_has_each_reason_of_refusal_once_until_a_version_is_served(receiver, follow, caplog):
    module, packed = torch.nn.Linear(2, 2), False

    def check() -> None:
        if packed:
            raise lockstep.BadDataError("its experts are packed")

    def logged(*reasons: str) -> bool:
        said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        return len(said) == len(reasons) and all(map(str.__contains__, said, reasons))

    follower = follow(module, check=check)
    rank = receiver.accept()
    for reason in ["should be BF16", "should be BF16", "has another shape", "should be BF16"]:
        rank.refuse(f"parameter weight {reason}")
        rank = receiver.accept()
    assert logged("should be BF16", "has another shape")
    rank.attached()
    rank.commit(1, 1.0)
    rank.refuse("parameter weight should be BF16")
    rank = receiver.accept()
    assert logged("should be BF16", "has another shape", "should be BF16")
    caplog.clear()
    packed = True
    module.weight.data = module.weight.data.clone()  # so it is described again
    rank.close()
    wait_until(lambda: "packed" in (follower.error or ""), "it refuses itself")
    time.sleep(0.5)  # and tries on
    assert logged("its experts are packed")


def test_a_caller_that_waits_for_a_rank_gets_the_reason_of_its_second_refusal(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    waiting = in_background(lambda: reason_of_waiting(follower))
    receiver.accept().refuse("parameter weight is F32 and should be BF16")
    rank = receiver.accept()
    assert waiting.is_alive()  # one refusal may have a reason that passes
    rank.attached()
    rank.refuse("parameter weight is F32 and should be BF16")
    waiting.join(60)
    assert "should be BF16" in waiting.result and str(receiver.path) in waiting.result
    with pytest.raises(lockstep.StateError, match="should be BF16"):
        follower.wait_for(1)
    rank = receiver.accept()
    rank.attached()
    rank.commit(1, 1.0)
    with follower.serving(timeout=60) as served:
        assert served == Served(RUN, 1)


def test_refusals_of_a_receiver_that_has_gone_are_not_held_against_the_next_one(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    for _ in range(2):
        receiver.accept().refuse("no model actor is followed here")
    receiver.accept().close()
    receiver.accept()
    with pytest.raises(lockstep.DeadlineError, match="was not served"):
        follower.wait_for(1, timeout=0.1)


def reason_of_waiting(follower: lockstep.Follower) -> str:
    with pytest.raises(lockstep.StateError) as error, follower.serving():
        pass
    return str(error.value)


def test_a_peer_that_sends_what_a_receiver_does_not_is_left(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    rank = receiver.accept()
    rank.connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(40))
    assert rank.is_closed()
    rank = receiver.accept()
    assert "no message of format 5" in follower.error
    rank.send_pause(1)  # before ATTACHED
    again = receiver.accept()
    assert again.version == 0 and "before its time" in follower.error


def test_a_rank_serves_no_version_but_the_one_that_it_holds(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    rank = receiver.accept()
    rank.attached()
    rank.pause(1)
    rank.fill(1.0)
    rank.send_serve(2)
    assert rank.is_closed()
    assert receiver.accept().state == "waiting" and "cannot be served" in follower.error


# ---- close() ----


@pytest.fixture
def opened(monkeypatch) -> "list[Served]":
    """What gates were opened with."""
    opened = []
    gate_open = Gate.open

    def noted(gate: Gate, served: Served) -> None:
        opened.append(served)
        gate_open(gate, served)

    monkeypatch.setattr(Gate, "open", noted)
    return opened


@pytest.mark.parametrize("written", [True, False])
def test_a_paused_rank_that_closes_lets_no_reader_in(receiver, follow, opened, written):
    follower, rank = serving(receiver, follow, torch.nn.Linear(2, 2))
    rank.pause(2)  # the receiver is about to write
    if written:
        rank.fill(2.0)
    follower.close()
    assert opened == [Served(RUN, 1)]


def close_ends(follower: lockstep.Follower) -> bool:
    closing = in_background(follower.close)
    closing.join(60)
    return not closing.is_alive()


def test_closing_does_not_wait_for_a_receiver_that_is_stopped_with_its_backlog_full(tmp_path):
    path = str(tmp_path / "engine.sock")
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        with pytest.raises(BlockingIOError):
            while True:
                client = sockets.enter_context(socket.socket(socket.AF_UNIX))
                client.setblocking(False)
                client.connect(path)
        follower = lockstep.Follower(torch.nn.Linear(2, 2), model="actor", socket=path)
        time.sleep(0.1)
        assert close_ends(follower)


def test_closing_does_not_wait_for_a_receiver_that_is_stopped_and_takes_no_more(tmp_path):
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.ones(1)) for _ in range(5000)])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine.sock"))
        listener.listen()
        listener.settimeout(60)
        follower = lockstep.Follower(model, model="actor", socket=tmp_path / "engine.sock")
        with listener.accept()[0]:
            time.sleep(0.1)
            assert close_ends(follower)


# ---- attaching again ----


def test_a_rank_attaches_again_ever_later_until_a_serve_succeeded(receiver, follow, monkeypatch):
    failing = [True]

    def after_write(served: Served) -> None:
        if failing[0]:
            raise ValueError("no kernel")

    follower = follow(torch.nn.Linear(2, 2), after_write=after_write)
    rank = receiver.accept()
    pauses, wait = [], follower._soon.wait
    monkeypatch.setattr(follower._soon, "wait", lambda seconds: pauses.append(seconds) or wait(seconds))
    for _ in range(4):
        rank.attached()
        rank.pause(1)
        rank.write(1)
        rank.send_serve(1)
        assert rank.is_closed()
        rank = receiver.accept()
    assert pauses == [0.05, 0.1, 0.2, 0.4]
    failing[0] = False
    rank.attached()
    rank.commit(1, 1.0)
    receiver.close()
    rank.close()
    wait_until(lambda: len(pauses) >= 7, "no receiver listens")
    assert pauses[4:7] == [0.05, 0.1, 0.2]
