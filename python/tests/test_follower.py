"""What a Follower says of its module, and when that may be read."""

import os
import threading
import time

import pytest
import torch
from fake_receiver import RUN, FakeReceiver
from helpers import in_background, serving, values, wait_until

import lockstep
from lockstep.engine import Served


class TiedModel(torch.nn.Module):
    """Tied, strided, of two dtypes, and with a buffer that checkpoints have."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(8, 4, dtype=torch.bfloat16)
        self.norm = torch.nn.Parameter(torch.arange(4.0))
        self.down = torch.nn.Parameter(torch.arange(12, dtype=torch.bfloat16).reshape(3, 4).t())
        self.head = torch.nn.Linear(4, 8, bias=False, dtype=torch.bfloat16)
        self.head.weight = self.embed.weight
        self.register_buffer("bias", torch.ones(3))
        self.register_buffer("cache", torch.ones(3), persistent=False)


# ---- what is followed ----


def test_what_the_receiver_writes_is_what_the_module_reads_in_place(receiver, follow):
    model = TiedModel()
    follower = follow(model)
    rank = receiver.accept()
    rank.attached()
    addresses = {name: tensor.data_ptr() for name, tensor in model.named_parameters()}
    rank.commit(3, 5.0)
    with follower.serving(timeout=60) as served:
        assert served == Served(RUN, 3)
        assert values(model) == {5.0}
        assert {name: tensor.data_ptr() for name, tensor in model.named_parameters()} == addresses
    assert follower.served == Served(RUN, 3) and follower.error is None and len(follower.pauses) == 1


def test_a_version_that_is_served_has_the_label_that_it_was_announced_with_and_keeps_it(receiver, follow):
    follower = follow(TiedModel())
    rank = receiver.accept()
    rank.attached()
    rank.pause(3, "step 70")
    rank.write(3)
    rank.serve(3)
    assert follower.wait_for(3, timeout=60).label == "step 70"
    rank.pause(4, "step 80")
    rank.serve(3)  # it was not written after all
    assert follower.wait_for(timeout=60).label == "step 70"
    rank.pause(4)
    rank.write(4)
    rank.close()
    again = receiver.accept()
    again.attached()
    again.pause(4)
    again.serve(4)
    assert follower.wait_for(4, timeout=60).label == ""


def test_attach_names_the_engine_and_its_rank_and_holds_nothing(receiver, follow):
    follow(torch.nn.Linear(4, 4), engine_name="tp2", group=3, rank=1, world=2)
    rank = receiver.accept()
    assert (rank.version, rank.run) == (0, "00" * 16)
    assert set(rank.attach) == {"peer", "model", "engine", "group", "incarnation", "gated", "state", "description"}
    assert (rank.attach["gated"], rank.state) == (True, "waiting")
    assert rank.attach["incarnation"].startswith(f"{os.getppid()}-")
    assert rank.attach["peer"] == f"engine_rank/{lockstep.__version__} protocol=1"
    assert (rank.attach["model"], rank.attach["engine"], rank.attach["group"]) == ("actor", "tp2", 3)
    assert (rank.description["rank"], rank.description["world"]) == (1, 2)


# ---- when the module may be read ----


def test_no_reader_comes_in_before_a_version_is_served(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    rank = receiver.accept()
    rank.attached()
    with pytest.raises(lockstep.DeadlineError, match="nothing is"):
        with follower.serving(timeout=0.1):
            pass


def test_a_pause_waits_for_the_readers_inside_and_keeps_new_ones_out(receiver, follow):
    follower, rank = serving(receiver, follow, torch.nn.Linear(2, 2))

    def read() -> Served:
        with follower.serving() as served:
            return served

    with follower.serving():
        rank.send_pause(2)
        wait_until(lambda: follower.served is None, "the gate is shut")
        late = in_background(read)
        with follower.serving() as again:  # this thread is inside: it must not wait for itself
            assert again.version == 1
        assert rank.is_silent() and late.is_alive()
    rank.expect(5)
    assert late.is_alive()
    rank.fill(2.0)
    rank.serve(2)
    late.join(60)
    assert late.result == Served(RUN, 2)


def test_without_a_gate_a_pause_is_answered_at_once_and_serving_is_refused(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2), gate=False)
    rank = receiver.accept()
    rank.attached()
    rank.commit(1, 1.0)
    assert follower.wait_for(1, timeout=60).version == 1
    with pytest.raises(lockstep.StateError, match="no gate"):
        with follower.serving():
            pass


def test_readers_never_see_a_mix_while_versions_come(receiver, follow):
    model = torch.nn.Linear(64, 64)
    follower = follow(model)
    rank = receiver.accept()
    rank.attached()
    rank.commit(1, 1.0)
    stop = threading.Event()

    def read() -> int:
        count = 0
        while not stop.is_set():
            with follower.serving() as served:
                assert values(model) == {float(served.version)}
            count += 1
        return count

    readers = [in_background(read) for _ in range(3)]
    for version in range(2, 30):
        rank.commit(version, float(version))
    stop.set()
    for reader in readers:
        reader.join(60)
        assert reader.result > 0
    assert len(follower.pauses) == 29


def test_after_write_runs_once_for_each_new_version_and_before_it_is_served(receiver, follow):
    model = torch.nn.Linear(2, 2)
    seen = []
    follower = follow(model, after_write=lambda served: seen.append((served.version, values(model), follower.served)))
    rank = receiver.accept()
    rank.attached()
    rank.commit(1, 1.0)
    rank.commit(2, 2.0)
    rank.pause(3)  # and it is aborted: 2 again
    rank.serve(2)
    assert seen == [(1, {1.0}, None), (2, {2.0}, None)]


def test_a_version_whose_after_write_fails_is_not_served_and_comes_again_whole(receiver, follow):
    failing = [True]

    def after_write(served: Served) -> None:
        if failing[0]:
            raise ValueError("no kernel")

    follower = follow(torch.nn.Linear(2, 2), after_write=after_write)
    rank = receiver.accept()
    rank.attached()
    rank.pause(1)
    rank.write(1)
    rank.send_serve(1)
    assert rank.is_closed()
    again = receiver.accept()
    assert (again.state, again.version) == ("waiting", 1) and follower.served is None
    assert "after_write failed for version 1" in follower.error and "no kernel" in follower.error
    with pytest.raises(lockstep.DeadlineError, match="no kernel"):
        follower.wait_for(1, timeout=0.05)
    failing[0] = False
    again.attached()
    again.commit(1, 1.0)
    assert follower.wait_for(1, timeout=60) == Served(RUN, 1) and follower.error is None


# ---- around it ----


def test_a_rank_attaches_again_with_its_version(receiver, follow):
    follower, rank = serving(receiver, follow, torch.nn.Linear(2, 2))
    rank.close()
    again = receiver.accept()
    assert (again.version, again.run, again.state) == (1, RUN, "reading")
    assert follower.served == Served(RUN, 1)


def test_a_follower_waits_for_a_receiver_that_is_not_there_yet(tmp_path):
    path = tmp_path / "engine.sock"
    with lockstep.Follower(torch.nn.Linear(2, 2), model="actor", socket=path) as follower:
        wait_until(lambda: follower.error is not None, "no receiver")
        assert str(path) in follower.error
        late = FakeReceiver(path)
        rank = late.accept()
        rank.attached()
        wait_until(lambda: follower.error is None, "attached")
        late.close()


def test_closing_ends_the_wait_of_readers_and_the_connection(receiver, follow):
    follower = follow(torch.nn.Linear(2, 2))
    rank = receiver.accept()
    rank.attached()

    def read() -> str:
        try:
            with follower.serving():
                return "served"
        except lockstep.StateError as error:
            return str(error)

    waiting = in_background(read)
    time.sleep(0.05)
    follower.close()
    waiting.join(60)
    assert waiting.result == "the follower is closed" and rank.is_closed()


def test_a_rank_that_closes_with_readers_inside_never_sends_paused(receiver, follow):
    follower, rank = serving(receiver, follow, torch.nn.Linear(2, 2))
    with follower.serving():
        rank.send_pause(2)
        wait_until(lambda: follower.served is None, "the gate is shut")
        follower.close()
        assert rank.is_closed()


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"engine_name": "no/slash"}, "engine_name"),
        ({"group": -1}, "group -1"),
        ({"rank": 2, "world": 2}, "rank 2 of 2"),
        ({"slices": {}}, 'parameter "weight": give its slices'),
    ],
)
def test_what_cannot_be_described_is_refused_before_anything_moves(tmp_path, options, problem):
    model = torch.nn.Linear(2, 2)
    address = model.weight.data_ptr()
    with pytest.raises(lockstep.BadDataError, match=problem):
        lockstep.Follower(model, model="actor", socket=tmp_path / "engine.sock", **options)
    assert model.weight.data_ptr() == address
