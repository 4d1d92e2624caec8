"""A whole vLLM server that loads every version's directory, under load. One server for all tests, in this order."""

import pytest
from real_fleet import (
    daemons_end_at_random_moments,
    fleet_of,
    follows_under_load,
    restarted_server_is_not_ready_before_it_has_the_version,
)
from vllm_server import VllmServer

fleet = fleet_of(VllmServer, "vllm", in_place=False)


def test_every_version_is_served_under_load_and_no_answer_is_by_another(fleet):
    fleet.receive(engine_check="checksums")
    follows_under_load(fleet, versions=6)


@pytest.mark.nightly  # the server in place and SGLang's have it, too
def test_daemons_that_end_at_random_moments_leave_no_wrong_answer(fleet):
    daemons_end_at_random_moments(fleet, rounds=3, seed=2)


def test_a_server_that_is_killed_is_not_ready_until_it_has_the_version(fleet):
    restarted_server_is_not_ready_before_it_has_the_version(fleet, fleet.server.kill)
