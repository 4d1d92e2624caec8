"""Parameters that get other memory, or another form, while a follower follows them."""

import copy
import time

import pytest
import torch
from fake_receiver import RUN, STAGED
from helpers import serving, values, wait_until
from write_batches import batch

import lockstep
from lockstep.engine import Served


class Model(torch.nn.Module):
    """Two layers, and a head that is tied to the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.second = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 4, bias=False)
        self.head.weight = self.first.weight


def new_data(model: Model) -> None:
    model.second.weight.data = model.second.weight.data.clone()


def new_strides(model: Model) -> None:
    model.second.weight.data = model.second.weight.data.t()


def assigned(model: Model) -> None:
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


def converted(model: Model) -> None:
    model.to(torch.bfloat16)


def other_parameter(model: Model) -> None:
    model.second.weight = torch.nn.Parameter(model.second.weight.detach().clone())


def other_module(model: Model) -> None:
    model.second = copy.deepcopy(model.second)


def untied(model: Model) -> None:
    model.head.weight = torch.nn.Parameter(model.first.weight.detach().clone())


WAYS = {
    new_data: '"second.weight"',
    new_strides: '"second.weight"',
    assigned: '"first.weight"',
    converted: '"first.weight"',
    other_parameter: '"second.weight"',
    other_module: '"second"',
    untied: '"head.weight"',
}


def written_anew(receiver, follower, model, version: int) -> None:
    """The rank attaches with nothing, and takes a version into the module as it is now."""
    rank = receiver.accept()
    assert (rank.state, rank.version) == ("waiting", 0) and follower.served is None
    dtypes = {"BF16": torch.bfloat16, "F32": torch.float32}
    described = {own["name"]: (dtypes[own["dtype"]], own["shape"]) for own in rank.description["parameters"]}
    assert all(described.get(name) in (None, (own.dtype, list(own.shape))) for name, own in model.named_parameters())
    rank.attached()
    rank.commit(version, float(version))
    with follower.serving(timeout=60) as served:
        assert served == Served(RUN, version) and values(model) == {float(version)}
    assert follower.error is None


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_parameter_that_moved_is_refused_by_name_before_it_is_written_and_written_whole_then(receiver, follow, way):
    model = Model()
    follower, rank = serving(receiver, follow, model)
    way(model)
    rank.send_pause(2)
    reason = rank.refusal()
    assert WAYS[way] in reason and "attaches again" in reason
    wait_until(lambda: reason in (follower.error or ""), "it says so")
    written_anew(receiver, follower, model, 2)


def test_a_comparison_finds_that_a_parameter_moved_and_the_module_is_not_read_on(receiver, follow):
    model = Model()
    follower, rank = serving(receiver, follow, model)
    new_data(model)
    with follower.serving():
        rank.stage(batch())
        rank.expect(STAGED)
        wait_until(lambda: time.monotonic() >= follower._rank._look_at, "a comparison looks where parameters are")
        rank.send_compare()
        assert '"second.weight"' in rank.refusal()
        again = receiver.accept()
        assert (again.state, again.version) == ("waiting", 0)
        again.attached()
        again.send_pause(2)
        assert again.is_silent()  # until the reader of the moved one has left
    again.expect(5)
    again.fill(2.0)
    again.serve(2)
    assert follower.wait_for(2, timeout=60) == Served(RUN, 2) and values(model) == {2.0}


def test_a_parameter_that_moved_while_it_was_written_is_not_served(receiver, follow):
    model = Model()
    follower, rank = serving(receiver, follow, model)
    rank.pause(2)
    new_data(model)
    rank.fill(2.0)
    rank.send_serve(2)
    assert '"second.weight"' in rank.refusal() and follower.served is None
    written_anew(receiver, follower, model, 2)


def test_what_moved_in_a_pause_is_not_read_again_when_the_receiver_goes(receiver, follow):
    model = Model()
    follower, rank = serving(receiver, follow, model)
    rank.pause(2)
    new_data(model)
    rank.close()
    written_anew(receiver, follower, model, 2)


def test_what_moved_while_the_rank_slept_is_not_taken_for_what_was_kept(receiver, follow):
    model = Model()
    follower, rank = serving(receiver, follow, model)
    follower.sleep(kept=True)
    assert receiver.accept().state == "asleep"
    assigned(model)
    follower.wake()
    written_anew(receiver, follower, model, 1)


def test_a_rank_that_compares_describes_what_moved_anew(receiver, follow):
    model = Model()
    follower = follow(model, compare_only=True)
    rank = receiver.accept()
    rank.attached()
    converted(model)
    rank.stage(batch())
    rank.expect(STAGED)
    rank.send_compare()
    assert '"first.weight"' in rank.refusal()
    again = receiver.accept()
    assert again.state == "comparing" and {own["dtype"] for own in again.description["parameters"]} == {"BF16"}
    again.attached()
    wait_until(lambda: follower.error is None, "it is attached")


def test_what_moved_to_where_it_cannot_be_written_is_not_served_until_it_is_back(receiver, follow):
    model = Model()
    follower, rank = serving(receiver, follow, model)
    there = model.second.weight
    model.second.weight = torch.nn.Parameter(torch.empty(4, 4, device="meta"))
    rank.send_pause(2)
    assert '"second.weight"' in rank.refusal()
    wait_until(lambda: "parameters on cpu, meta" in (follower.error or ""), "it says so")
    assert follower.served is None
    model.second.weight = there
    written_anew(receiver, follower, model, 2)


def test_a_module_that_moved_is_checked_as_at_the_start(receiver, follow):
    model, copies = Model(), []

    def check() -> None:
        if copies:
            raise lockstep.BadDataError("second keeps a copy of its weight")

    follower, rank = serving(receiver, follow, model, check=check)
    new_data(model)
    copies.append(model.second.weight)
    rank.send_pause(2)
    assert '"second.weight"' in rank.refusal()
    wait_until(lambda: "second keeps a copy" in (follower.error or ""), "it is refused")
    copies.clear()
    written_anew(receiver, follower, model, 2)
    copies.append(model.second.weight)
    with pytest.raises(lockstep.BadDataError, match="keeps a copy"):
        follow(model, check=check)


def test_what_is_no_part_of_what_is_written_may_move(receiver, follow):
    model = Model()
    model.register_buffer("cache", torch.zeros(4), persistent=False)
    follower, rank = serving(receiver, follow, model)
    model.cache = torch.ones(4)
    rank.commit(2, 2.0)
    assert follower.wait_for(2, timeout=60) == Served(RUN, 2)
