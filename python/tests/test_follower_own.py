"""Followers write their own memory: what a receiver may have them do, and what they serve when it goes away amid it."""

import pytest
import torch
from fake_receiver import PAUSED, RUN, STAGED
from helpers import serving, values
from write_batches import batch

import lockstep
from lockstep.engine import Served

OUTSIDE = batch([(0, 4, 0, (1 << 20,), b"abcd")])


def test_parameters_stay_where_they_are_and_nothing_is_handed_out(receiver, follow):
    module = torch.nn.Linear(3, 5)
    places = {name: tensor.data_ptr() for name, tensor in module.state_dict().items()}
    follow(module)
    rank = receiver.accept()  # without descriptors
    assert rank.description["format"] == 4
    assert sum(rank.description["memories"]) == 4 * (3 * 5 + 5)
    assert places == {name: tensor.data_ptr() for name, tensor in module.state_dict().items()}


def test_what_is_staged_changes_nothing_while_the_module_is_read(receiver, follow):
    module = torch.nn.Linear(2, 2)
    follower, rank = serving(receiver, follow, module)
    with follower.serving():
        rank.stage(batch([(0, 4, 0, (0,), torch.tensor([2.0]).numpy().tobytes())]))
        rank.expect(STAGED)
        assert values(module) == {1.0}
    rank.pause(2)
    assert values(module) == {1.0}
    rank.write(2)
    rank.serve(2)
    with follower.serving(timeout=60) as served:
        assert served.version == 2 and values(module) == {1.0, 2.0}


def test_what_cannot_be_staged_is_refused_by_name_and_the_rank_serves_on(receiver, follow):
    module = torch.nn.Linear(2, 2)
    follower, rank = serving(receiver, follow, module)
    rank.stage(OUTSIDE)
    assert "run 0 has 4 bytes for byte 1048576 of memory 0" in rank.refusal()
    assert follower.served is not None and values(module) == {1.0}
    again = receiver.accept()
    assert again.version == 1
    again.attached()
    again.send_write(2)
    assert "WRITE of memory that is being read" in again.refusal()
    assert values(module) == {1.0} and receiver.accept().version == 1


def test_orders_before_the_rank_is_attached_end_the_connection(receiver, follow):
    follow(torch.nn.Linear(2, 2))
    rank = receiver.accept()
    rank.send_write(1)
    assert rank.is_closed()
    rank = receiver.accept()
    rank.stage(batch())
    assert rank.is_closed()


def test_only_what_was_written_wholly_is_served(receiver, follow):
    follower, rank = serving(receiver, follow, torch.nn.Linear(2, 2))
    rank.pause(2)
    rank.fill(2.0, version=0, names=["weight"])  # more is to come
    rank.send_serve(2)
    assert rank.is_closed() and follower.served is None
    again = receiver.accept()
    assert (again.state, again.version) == ("waiting", 0)


def test_a_rank_that_was_written_and_not_told_to_serve_waits_and_says_what_it_holds(receiver, follow):
    module = torch.nn.Linear(2, 2)
    follower, rank = serving(receiver, follow, module)
    rank.pause(2)
    rank.fill(2.0, version=2)
    rank.close()
    again = receiver.accept()
    assert (again.state, again.version) == ("waiting", 2) and follower.served is None
    again.attached()
    again.pause(2)
    again.serve(2)  # without a WRITE: it is there
    assert follower.wait_for(2, timeout=60) == Served(RUN, 2) and values(module) == {2.0}


def test_a_rank_that_waits_serves_the_version_before_once_it_was_written_again(receiver, follow):
    follower, rank = serving(receiver, follow, torch.nn.Linear(2, 2))
    rank.pause(2)
    rank.fill(2.0, version=2)
    rank.close()
    again = receiver.accept()
    again.attached()
    again.send_serve(1)  # which it does not hold
    assert again.is_closed() and follower.served is None
    again = receiver.accept()
    assert (again.state, again.version) == ("waiting", 2)
    again.attached()
    again.pause(1)
    again.fill(1.0)
    again.serve(1)
    assert follower.wait_for(1, timeout=60) == Served(RUN, 1)


def test_what_a_receiver_staged_before_it_went_is_not_written_for_the_next(receiver, follow):
    module = torch.nn.Linear(2, 2)
    follower, rank = serving(receiver, follow, module)
    rank.stage(batch([(0, 4, 0, (0,), b"abcd")]))
    rank.expect(STAGED)
    rank.close()
    again = receiver.accept()
    again.attached()
    again.pause(2)
    again.write(2)
    again.serve(2)
    assert follower.wait_for(2, timeout=60).version == 2 and values(module) == {1.0}


def test_what_is_dropped_is_not_written(receiver, follow):
    module = torch.nn.Linear(2, 2)
    _, rank = serving(receiver, follow, module)
    rank.stage(batch([(0, 4, 0, (0,), b"abcd")]))
    rank.expect(STAGED)
    rank.drop()
    rank.pause(2)
    rank.write(2)
    rank.serve(2)
    assert values(module) == {1.0}


def test_a_rank_says_whether_it_holds_what_it_is_to_compare_while_it_is_read(receiver, follow):
    module = torch.nn.Linear(2, 2)
    follower, rank = serving(receiver, follow, module)
    ones = torch.ones(2, 2).numpy().tobytes()
    with follower.serving():
        for content, answer in ((ones, b"\1"), (ones[:-1] + b"\0", b"\0")):
            weight = next(own for own in rank.description["parameters"] if own["name"] == "weight")
            copy = ((weight.get("memory", 0), weight["offset"], 1, 16, 0), content)
            rank.stage(batch(copies=[copy]))
            rank.expect(STAGED)
            assert rank.compare() == answer
    assert values(module) == {1.0}


@pytest.mark.parametrize("order", ["pause", "write", "serve"])
def test_a_rank_that_only_compares_takes_no_order_that_writes_or_serves(receiver, follow, order):
    module = torch.nn.Linear(2, 2)
    before = [parameter.clone() for parameter in module.parameters()]
    follower = follow(module, compare_only=True)
    rank = receiver.accept()
    assert (rank.state, rank.attach["gated"], rank.version) == ("comparing", False, 0)
    rank.attached()
    rank.stage(batch(zeros=[(0, rank.description["parameters"][0]["offset"], 1, 8, 0)]))
    rank.expect(STAGED)
    {"pause": rank.send_pause, "write": rank.send_write, "serve": rank.send_serve}[order](1)
    assert "being read" in rank.refusal() if order == "write" else rank.is_closed()
    assert all(torch.equal(*pair) for pair in zip(before, module.parameters()))
    for refused in (follower.wait_for, follower.serving):
        with pytest.raises(lockstep.StateError, match="compares only"):
            refused(timeout=1)


def test_a_rank_that_is_being_read_answers_stage_before_its_readers_leave_and_pause_after(receiver, follow):
    follower, rank = serving(receiver, follow, torch.nn.Linear(2, 2))
    with follower.serving():
        rank.stage(batch())
        rank.expect(STAGED)
        rank.send_pause(2)
        assert rank.is_silent()
    rank.expect(PAUSED)


def test_parameters_that_touch_or_overlap_are_one_memory(receiver, follow):
    module = torch.nn.Module()
    whole = torch.zeros(16)
    module.first, module.second = torch.nn.Parameter(whole[:8]), torch.nn.Parameter(whole[4:12])
    module.third, module.empty = torch.nn.Parameter(whole[12:]), torch.nn.Parameter(torch.zeros(0))
    follow(module)
    description = receiver.accept().description
    assert description["memories"] == [64]
    assert {own["name"]: own["offset"] for own in description["parameters"]} == {
        "first": 0,
        "second": 16,
        "third": 48,
        "empty": 0,
    }


def test_a_version_may_come_in_several_writes(receiver, follow):
    module = torch.nn.Linear(2, 2)
    follower, rank = serving(receiver, follow, module)
    rank.pause(2)
    rank.fill(2.0, names=["weight"], version=0)
    rank.fill(2.0, names=["bias"], version=2)
    rank.serve(2)
    with follower.serving(timeout=60) as served:
        assert served.version == 2 and values(module) == {2.0}
