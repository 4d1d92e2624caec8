"""A whole SGLang server that is written in place, under load. One server for all tests, in this order."""

import functools

import pytest
from harness import wait_until
from real_fleet import (
    daemons_end_at_random_moments,
    dies_in_a_pause,
    fleet_of,
    follows_under_load,
    restarted_server_is_not_ready_before_it_has_the_version,
)
from sglang_server import SglangServer

fleet = fleet_of(SglangServer, "sglang", in_place=True)


def test_every_version_is_served_under_load_and_no_answer_is_by_another(fleet):
    follows_under_load(fleet, versions=8)
    assert fleet.receiver.ctl("verify", "--engines").returncode == 0


def test_a_pause_that_aborts_gives_every_answer_one_version(fleet):
    fleet.receive(engine_pause_mode="abort")
    answers = follows_under_load(fleet, versions=3)
    assert all(len(answer.spans) <= 1 for answer in answers)


@pytest.mark.parametrize(
    ("path", "body"),
    [("/update_weights_from_disk", {"flush_cache": True}), ("/weights_checker", {"action": "reset_tensors"})],
)
def test_weights_that_sglang_wrote_itself_are_written_over(path, body, fleet):
    fleet.server.post(path, {"model_path": str(fleet.start), **body} if "disk" in path else body)
    wait_until(lambda: fleet.receiver.ctl("verify", "--engines").returncode == 0, "the version is written again")
    follows_under_load(fleet, versions=1)


def test_daemons_that_end_at_random_moments_leave_no_wrong_answer(fleet):
    daemons_end_at_random_moments(fleet, rounds=4, seed=3)


def test_a_server_whose_scheduler_dies_in_a_pause_is_not_ready_until_it_has_the_version(fleet):
    kill = functools.partial(dies_in_a_pause, fleet, "sglang::scheduler")
    restarted_server_is_not_ready_before_it_has_the_version(fleet, kill)
