"""NeMo-RL with Lockstep as its refit transport, by configuration alone, on real daemons. Run by tests/frameworks.sh; its
package on PyPI is a placeholder, so NEMO_RL_SOURCE names a checkout."""

import contextlib
import os
import sys
from pathlib import Path

import pytest
import ray_cluster
import torch

SOURCE = os.environ.get("NEMO_RL_SOURCE", "")
pytestmark = pytest.mark.skipif(not SOURCE, reason="NEMO_RL_SOURCE names no checkout of NeMo-RL")


@contextlib.contextmanager
def started(cluster, checkpoint: Path, policy: str = "Policy"):
    """A policy and rollouts that have had no refit yet."""
    sys.path.insert(0, SOURCE)
    import nemo_rl_workers

    agent = cluster.agent()
    root = cluster.receiver(agent).root
    settings = {"socket": str(agent.socket), "root": str(root), "timeout_s": 30, "release_after_refit": True}
    with ray_cluster.started():
        yield nemo_rl_workers.Job(cluster.directory, str(checkpoint), getattr(nemo_rl_workers, policy), **settings)


@pytest.fixture(scope="module")
def job(module_cluster, checkpoints):
    with started(module_cluster, checkpoints.get("llama")) as job:
        yield job


def check_every_rollout_has(trained: "dict[str, torch.Tensor]", job) -> None:
    for loaded in job.loaded():
        assert loaded.keys() == trained.keys()
        for name, tensor in loaded.items():
            assert torch.equal(tensor.view(torch.uint8), trained[name].view(torch.uint8)), name


def test_by_a_worker_that_gives_its_shards_every_rollout_has_the_policys_bytes(cluster, checkpoints):
    """First of all, for a process has one Ray, which ``job`` keeps."""
    with started(cluster, checkpoints.get("llama"), "PolicyOfShards") as job:
        for _ in range(2):
            job.train(spoiled=True)  # the policy's generator, which is not taken
            job.synchronizer.sync_weights()
            check_every_rollout_has(job.trained(), job)


def test_every_rollout_has_the_policys_bytes_after_each_refit(job):
    before = None
    for _ in range(3):
        job.train()
        job.synchronizer.sync_weights()
        trained = job.trained()
        check_every_rollout_has(trained, job)
        assert before is None or not torch.equal(before, trained["lm_head.weight"])
        before = trained["lm_head.weight"]


def test_a_refit_that_fails_says_why_and_the_next_one_reaches_every_rollout(job):
    before = job.trained()
    job.train(spoiled=True)
    with pytest.raises(Exception, match="opened without it"):
        job.synchronizer.sync_weights()
    check_every_rollout_has(before, job)
    job.synchronizer.sync_weights()
    check_every_rollout_has(job.trained(), job)


def test_a_refit_that_would_not_be_prepared_by_itself_is_refused(job):
    from lockstep.integrations.nemo_rl import LockstepCheckpointEngine

    with pytest.raises(Exception, match="release_after_refit is false"):
        LockstepCheckpointEngine(1 << 20, checkpoint="")
