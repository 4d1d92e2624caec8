"""What a Follower resumes with when the connection to its receiver ends (raas_receiver/targets/FORMAT.md)."""

import contextlib
import socket
import time

import pytest
import torch
from fake_receiver import RUN, Page
from helpers import in_background, values, wait_until

import lockstep
from lockstep.engine import Served
from lockstep.engine._gate import Gate


def test_a_rank_that_is_not_held_stays_as_it_was(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    rank, page = receiver.accept(), Page()
    rank.attached(page)
    rank.commit(page, 1, 1.0)
    rank.close()
    again = receiver.accept()
    assert (again.version, again.run) == (1, RUN) and follower.served == Served(RUN, 1)
    again.close()  # before it was ATTACHED: the same
    assert receiver.accept().version == 1 and follower.served == Served(RUN, 1)


def test_killed_before_writing_held_ranks_resume_with_the_old_version(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    rank, page = receiver.accept(), Page()
    rank.attached(page)
    rank.commit(page, 1, 1.0)
    rank.hold(2)
    rank.close()
    assert follower.wait_for(timeout=60) == Served(RUN, 1)
    assert receiver.accept().version == 1


def test_killed_while_writing_ranks_stay_held_until_a_whole_version_is_written(receiver, follow):
    model = torch.nn.Linear(2, 2)
    follower = follow(model)
    rank, page = receiver.accept(), Page()
    rank.attached(page)
    rank.commit(page, 1, 1.0)
    rank.hold(2)
    page.begin_writing()
    rank.fill(2.0, version=0, names=["weight"])
    rank.close()
    again = receiver.accept()
    assert again.version == 0 and again.run == "00" * 16
    with pytest.raises(lockstep.DeadlineError, match="was not served within 0.1 s; nothing is"):
        follower.wait_for(timeout=0.1)
    page = Page()
    again.attached(page)
    again.hold(2)  # a rank that is held answers HELD again
    again.hold(2)
    page.begin_writing()
    again.fill(2.0)
    page.serve(2)
    again.serve(2)
    with follower.serving(timeout=60) as served:
        assert served.version == 2 and values(model) == {2.0}


def test_killed_after_the_commit_ranks_resume_with_the_new_version(receiver, follow):
    model = torch.nn.Linear(2, 2)
    derived = []
    follower = follow(model, after_write=lambda served: derived.append(served.version))
    rank, page = receiver.accept(), Page()
    rank.attached(page)
    rank.commit(page, 1, 1.0)
    rank.hold(2)
    page.begin_writing()
    rank.fill(2.0)
    page.serve(2)
    rank.close()
    assert follower.wait_for(2, timeout=60) == Served(RUN, 2)
    assert values(model) == {2.0} and derived == [1, 2]
    assert receiver.accept().version == 2


def test_a_late_rank_that_was_being_caught_up_does_not_take_the_others_version_for_its_own(receiver, follow):
    """The others serve 4, the word names it and does not change; this rank's memory is a mix when the receiver dies."""
    follower = follow(torch.nn.Linear(2, 2))
    rank, page = receiver.accept(), Page()
    page.serve(4)
    rank.attached(page)
    rank.hold(4)
    rank.fill(4.0, version=0, names=["weight"])
    rank.close()
    assert receiver.accept().version == 0 and follower.served is None


def test_a_held_rank_resumes_with_what_it_attached_with_where_the_page_names_it(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    rank, page = receiver.accept(), Page()
    rank.attached(page)
    rank.commit(page, 1, 1.0)
    rank.close()
    rank, page = receiver.accept(), Page()
    page.serve(1)
    rank.attached(page)
    rank.hold(2)
    rank.close()
    assert follower.wait_for(timeout=60) == Served(RUN, 1)


def test_a_page_that_comes_later_takes_the_place_of_the_first(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    rank, first, second = receiver.accept(), Page(), Page()
    rank.attached(first)
    rank.commit(first, 1, 1.0)
    second.serve(1)
    rank.attached(second)
    rank.hold(2)
    second.begin_writing()
    rank.close()
    assert receiver.accept().version == 0 and follower.served is None


def test_a_refused_rank_reports_why_keeps_what_it_serves_and_attaches_again(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    receiver.accept().refuse("parameter weight is F32 and should be BF16")
    rank, page = receiver.accept(), Page()
    assert "should be BF16" in follower.error
    rank.attached(page)
    rank.commit(page, 1, 1.0)
    assert follower.error is None
    rank.hold(2)
    rank.refuse("another rank was lost")
    assert follower.wait_for(timeout=60) == Served(RUN, 1)


def test_who_waits_for_a_rank_that_is_refused_again_gets_the_reason(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    waiting = in_background(lambda: reason_of_waiting(follower))
    receiver.accept().refuse("parameter weight is F32 and should be BF16")
    rank = receiver.accept()
    assert waiting.is_alive()  # one refusal may have a reason that passes
    rank.attached(Page())
    rank.refuse("parameter weight is F32 and should be BF16")
    waiting.join(60)
    assert "should be BF16" in waiting.result and str(receiver.path) in waiting.result
    with pytest.raises(lockstep.StateError, match="should be BF16"):
        follower.wait_for(1)
    rank, page = receiver.accept(), Page()
    rank.attached(page)
    rank.commit(page, 1, 1.0)
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
    assert "no message of format 2" in follower.error
    rank.send_hold(1)  # before ATTACHED
    again = receiver.accept()
    assert again.version == 0 and "before its time" in follower.error


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


def test_a_held_rank_that_closes_stays_held_where_the_page_names_what_it_served(receiver, follow, opened):
    follower = follow(torch.nn.Linear(2, 2))
    rank, page = receiver.accept(), Page()
    rank.attached(page)
    rank.commit(page, 1, 1.0)
    rank.hold(2)  # the receiver is about to write
    follower.close()
    assert opened == [Served(RUN, 1)]


def test_a_held_rank_that_closes_stays_held_where_the_page_names_what_it_has_written(receiver, follow, opened):
    follower = follow(torch.nn.Linear(2, 2))
    rank, page = receiver.accept(), Page()
    rank.attached(page)
    rank.commit(page, 1, 1.0)
    rank.hold(2)
    rank.fill(2.0)
    page.serve(2)
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
    rank, page = receiver.accept(), Page()
    pauses, wait = [], follower._stopping.wait
    monkeypatch.setattr(follower._stopping, "wait", lambda seconds: pauses.append(seconds) or wait(seconds))
    for _ in range(4):
        rank.attached(page)
        rank.hold(1)
        rank.write(1)
        page.serve(1)
        rank.send_serve(1)
        assert rank.is_closed()
        rank = receiver.accept()
    assert pauses == [0.05, 0.1, 0.2, 0.4]
    failing[0] = False
    rank.attached(page)
    rank.commit(page, 1, 1.0)
    receiver.close()
    rank.close()
    wait_until(lambda: len(pauses) >= 7, "nobody listens")
    assert pauses[4:7] == [0.05, 0.1, 0.2]
