"""A whole SGLang server that loads every version's directory, under load. One server for all tests, in this order."""

import pytest
from real_fleet import (
    daemons_end_at_random_moments,
    fleet_of,
    follows_under_load,
    restarted_server_is_not_ready_before_it_has_the_version,
)
from sglang_server import SglangServer

fleet = fleet_of(SglangServer, "sglang", in_place=False)


def test_every_version_is_served_under_load_and_no_answer_is_by_another(fleet):
    fleet.receive(engine_check="checksums")
    follows_under_load(fleet, versions=6)


def test_daemons_that_end_at_random_moments_leave_no_wrong_answer(fleet):
    daemons_end_at_random_moments(fleet, rounds=3, seed=4)


@pytest.mark.nightly  # a start more
def test_a_server_that_is_killed_is_not_ready_until_it_has_the_version(fleet):
    restarted_server_is_not_ready_before_it_has_the_version(fleet, fleet.server.kill)
