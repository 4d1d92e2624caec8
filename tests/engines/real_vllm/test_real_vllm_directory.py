"""A whole vLLM server that loads every version's directory, under load. One server for all tests, in this order."""

import pytest
from real_fleet import (
    daemons_end_at_random_moments,
    follows_under_load,
    new_fleet,
    restarted_server_is_not_ready_before_it_has_the_version,
)
from vllm_server import VllmServer


@pytest.fixture(scope="module")
def fleet():
    new_server = lambda model, directory, _: VllmServer(model, directory)  # noqa: E731
    with new_fleet(new_server, "vllm", in_place=False) as fleet:
        yield fleet


def test_every_version_is_served_under_load_and_no_answer_is_by_another(fleet):
    fleet.receive(engine_check="checksums")
    follows_under_load(fleet, versions=6)


@pytest.mark.nightly  # the server in place and SGLang's have it, too
def test_daemons_that_end_at_random_moments_leave_no_wrong_answer(fleet):
    daemons_end_at_random_moments(fleet, rounds=3, seed=2)


def test_a_server_that_is_killed_is_not_ready_until_it_has_the_version(fleet):
    restarted_server_is_not_ready_before_it_has_the_version(fleet, fleet.server.kill)
