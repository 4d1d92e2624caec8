"""Whole SGLang servers, one for each test: other families, two ranks, processes that end."""

import pytest
from real_fleet import follows_under_load, new_fleet, server_processes_end_at_random_moments
from sglang_server import SglangServer

pytestmark = pytest.mark.nightly

# SGLang's layers on a CPU are padded where a rank's part is no multiple of 64, and then refused.


def server(*options, **environment):
    """For a fleet."""
    return lambda model, directory, follows: SglangServer(
        model, directory, *options, follows={**follows, **environment}
    )


@pytest.mark.parametrize(
    ("model", "overrides"), [("llama", {"head_dim": 32}), ("qwen3_moe", {"moe_intermediate_size": 64})]
)
def test_a_family_is_written_in_place(model, overrides):
    with new_fleet(server(), "sglang", in_place=True, model=model, **overrides) as fleet:
        follows_under_load(fleet, versions=4)
        assert fleet.receiver.ctl("verify", "--engines").returncode == 0


@pytest.mark.parametrize("in_place", [True, False])
def test_two_ranks_share_every_tensor(in_place):
    two = server("--tensor-parallel-size", "2", SGLANG_CPU_OMP_THREADS_BIND="0|1")
    with new_fleet(two, "sglang", in_place=in_place, model="llama", head_dim=32, intermediate_size=128) as fleet:
        follows_under_load(fleet, versions=4)
        assert not in_place or fleet.receiver.ctl("verify", "--engines").returncode == 0


@pytest.mark.parametrize("in_place", [True, False])
def test_processes_of_a_server_that_end_at_random_moments_leave_no_wrong_answer(in_place):
    with new_fleet(server(), "sglang", in_place=in_place) as fleet:
        server_processes_end_at_random_moments(fleet, 5, 7 + in_place, ["sglang::scheduler", "serve.py"])
