"""verl with Lockstep as its checkpoint engine, by configuration alone: real Ray workers, daemons and models. Run by
tests/frameworks.sh, which installs verl; pytest finds this file only when it is named."""

import fcntl
import os
import signal
from pathlib import Path

import pytest
import ray_cluster
import torch
from harness import MODEL, wait_until
from verl_workers import Job

import lockstep
from lockstep.core.places import listener


@pytest.fixture(scope="module", params=("daemons that are there", "daemons that it starts"))
def job(request, module_cluster, checkpoints):
    """A trainer and rollouts that have had no update yet; ``job.replica``: what their receiver publishes."""
    checkpoint, started = str(checkpoints.get("llama")), module_cluster.directory / "started"
    options = {}
    if request.param == "daemons that are there":
        agent = module_cluster.agent()
        options = {"socket": str(agent.socket), "root": str(module_cluster.receiver(agent).root)}
    with ray_cluster.started(LOCKSTEP_RUNTIME_DIR=str(started), VERL_ENGINE_DEVICE="cuda"):
        job = Job(checkpoint, timeout_s=60, **options)
        job.replica = Path(options.get("root", started / "receiver/replicas")) / MODEL
        yield job
    for lock in started.glob("*/lock"):
        wait_until(lambda lock=lock: is_free(lock), f"the daemon of {lock} ends with the workers")


@pytest.mark.parametrize("backend", ["fsdp2", "megatron"])
def test_with_shards_every_rollout_has_what_each_rank_copies_of_its_own(cluster, checkpoints, backend):
    """First of all, for a process has one Ray, which ``job`` keeps."""
    environment = {
        "LOCKSTEP_RUNTIME_DIR": str(cluster.directory / "started"),
        "VERL_ENGINE_DEVICE": "cuda",
        "VERL_ENGINE_VENDOR": "lockstep",
        "XDG_CACHE_HOME": str(cluster.directory / "cache"),
    }
    with ray_cluster.started(**environment):
        job = Job(str(checkpoints.get("llama")), backend, timeout_s=60, shards=True)
        for step in (0, 1, 1):
            job.trainer.train()
            job.update(step)
            check_every_rollout_has(job, step)
            job.trainer.spoil_next_stream("the stream ends")  # it is not taken any more


def is_free(lock: Path) -> bool:
    """A daemon holds it as long as it lives."""
    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def check_every_rollout_has(job: Job, step: int) -> None:
    """Byte for byte what the trainer has."""
    trained = job.trained()
    for global_steps, received in job.received():
        assert global_steps == step
        assert received.keys() == trained.keys()
        for name, tensor in received.items():
            assert tensor.dtype == torch.bfloat16
            assert torch.equal(tensor.view(torch.uint8), trained[name].view(torch.uint8)), name


def test_every_rollout_has_the_trainers_bytes_after_each_step_be_it_zero_or_repeated(job):
    before = None
    for step in (0, 1, 1, 2):
        job.trainer.train()
        job.update(step)
        check_every_rollout_has(job, step)
        trained = job.trained()
        assert before is None or not torch.equal(before, trained["lm_head.weight"])
        before = trained["lm_head.weight"]
        with lockstep.Replica(job.replica) as replica:
            assert replica.label == str(step)


@pytest.mark.parametrize(
    ("how", "error"),
    [("the stream ends", "the trainer ran out of memory"), ("a tensor has another name", "opened without it")],
)
def test_an_update_that_fails_says_why_and_the_next_one_reaches_every_rollout(job, how, error):
    job.update(3)
    held = job.received()
    job.trainer.train()
    job.trainer.spoil_next_stream(how)
    with pytest.raises(Exception, match=error):
        job.update(4)
    for (step, before), (_, now) in zip(held, job.received()):
        assert step == 3
        assert all(torch.equal(before[name], now[name]) for name in before)
    job.update(4)
    check_every_rollout_has(job, 4)


def test_a_rollout_that_joins_later_has_the_next_update(job):
    job.update(4)
    job.manager.remove_replicas(job.replicas[1:])
    job.trainer.train()
    job.update(5)
    (first, _), (second, _) = job.received()
    assert (first, second) == (5, 4)
    job.manager.add_replicas(job.replicas[1:])
    job.update(6)
    check_every_rollout_has(job, 6)


def test_a_trainer_that_was_killed_and_resumes_at_an_earlier_step_brings_its_own_weights(job):
    job.trainer.train()
    job.update(7)
    job.kill_trainer()
    job.start_trainer()
    job.update(2)
    check_every_rollout_has(job, 2)


@pytest.mark.parametrize("job", ["daemons that it starts"], indirect=True)
def test_a_receiver_that_was_killed_is_started_again_by_the_next_update(job):
    job.update(8)
    os.kill(listener(f"{job.replica.parents[1]}/control.sock"), signal.SIGKILL)
    job.trainer.train()
    job.update(9)
    check_every_rollout_has(job, 9)
