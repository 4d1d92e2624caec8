"""A ring of buckets in GPU memory between a trainer and an engine of another process on the same GPU."""

import pytest
import torch
from gpu_models import DEVICE, DTYPES, ON_GPU, Weights, busy, exporter
from gpu_ranks import read_ring, taken_unlike
from ranks import Ranks

import lockstep

BUCKET_BYTES = 1 << 18  # many for these weights


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_versions_go_through_a_ring_bit_for_bit(cluster, dtype):
    agent, path = cluster.agent(), cluster.directory / "ring.sock"
    weights, twin = Weights(dtype), Weights(dtype, "cpu")
    device = DEVICE if ON_GPU else None
    with (
        exporter(agent.socket, weights) as trainer,
        lockstep.BucketRing(trainer, socket=path, bucket_bytes=BUCKET_BYTES, device=device, timeout=60) as ring,
        Ranks(1, start="spawn", timeout_s=90) as engines,
    ):
        engines.call(read_ring, path)
        for version in range(1, 6):
            expected = twin.step().published()
            engines.start(taken_unlike, version, expected)
            busy(100)
            weights.step()
            ring.send(version)
            assert engines.answers() == [[]], f"version {version}"


def test_another_engine_takes_over_when_one_is_killed_in_a_version(cluster):
    agent, path = cluster.agent(), cluster.directory / "ring.sock"
    weights = Weights(torch.bfloat16)
    with (
        exporter(agent.socket, weights) as trainer,
        lockstep.BucketRing(
            trainer, socket=path, bucket_bytes=BUCKET_BYTES, device=DEVICE if ON_GPU else None, timeout=60
        ) as ring,
        Ranks(2, start="spawn", timeout_s=90) as engines,
    ):
        engines.call(read_ring, path)
        engines.start(taken_unlike, 1, weights.published(), only=[0])
        ring.send(1)
        assert engines.answers(only=[0]) == [[]]
        engines.kill(0)
        weights.step()
        engines.start(taken_unlike, 2, weights.published(), only=[1])
        ring.send(2)
        assert engines.answers(only=[1]) == [[]]
