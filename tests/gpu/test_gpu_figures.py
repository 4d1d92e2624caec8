"""Figures of a model of 3 GB in bfloat16, each beside its ceiling, measured in the same minute.

Where memory is too short the model is smaller; below a gigabyte nothing is measured. A rehearsal on the CPU takes a tiny one.
"""

import shutil
import statistics
import time

import pytest
import torch
from gpu_models import ON_GPU, Weights, exporter, follower, module, stream_publisher, synchronize
from harness import Agent, Cluster, roomy_directory
from test_gpu_probe import PinnedCopy

MODEL_BYTES, LEAST_BYTES = (3_000_000_000, 1_000_000_000) if ON_GPU else (12_000_000, 6_000_000)
NARROW, WIDE = (4096, 8192) if ON_GPU else (512, 2048)  # of each layer
REPEATS = 7 if ON_GPU else 2
DEVICE_COPIES = 4  # of the model in bfloat16: two models, one of masters, which is twice as large, and a copy
CHANGED = 0.01
THREADS = 8


def large(dtype: torch.dtype, copies: int) -> Weights:
    """Weights of about 3 GB in bfloat16, or as many bytes as shared memory has room for `copies` of, and the device for
    what any figure has there."""
    shared = shutil.disk_usage(roomy_directory()).free * 0.9 / copies
    torch.cuda.empty_cache()
    device = torch.cuda.mem_get_info()[0] * 0.9 / DEVICE_COPIES if ON_GPU else shared
    fitting = int(min(MODEL_BYTES, shared, device))
    if fitting < LEAST_BYTES:
        pytest.skip(f"{shared / 1e9:.2g} GB of {roomy_directory()} for each copy, {device / 1e9:.2g} GB of the GPU")
    return Weights(dtype, layers=fitting // (2 * NARROW * WIDE), narrow=NARROW, wide=WIDE)


class Publishing:
    """A trainer at an agent; each publish begins when the agent is done with the one before."""

    def __init__(self, agent: Agent, weights: Weights) -> None:
        self.agent, self.weights, self.version = agent, weights, 0
        self.trainer = exporter(agent.socket, weights, threads=1)

    def seconds(self) -> float:
        """Of the call, as a training feels it: weights are ready, and nothing else runs."""
        self.weights.step(CHANGED)
        synchronize()
        began = time.perf_counter()
        self.publish()
        taken = time.perf_counter() - began
        self.agent.wait_for(self.version)
        return taken

    def publish(self) -> None:
        self.version += 1
        self.trainer.publish(version=self.version)

    def against_pinned_copy(self) -> "tuple[float, float, str]":
        """How fast versions are published, in GB/s; the ratio to a copy of as many bytes to pinned memory; that, in words."""
        copy, taken = PinnedCopy(self.weights.bf16_bytes), []
        for _ in range(REPEATS):
            taken.append((self.seconds(), copy.seconds()))
        rate = statistics.median(self.weights.bf16_bytes / own / 1e9 for own, _ in taken)
        ratio = statistics.median(ceiling / own for own, ceiling in taken)
        return rate, ratio, f"{rate / ratio:.3g} GB/s of a pinned copy to the host"


class Streaming(Publishing):
    """As Publishing, of a trainer that gives one tensor after the other."""

    def __init__(self, agent: Agent, weights: Weights) -> None:
        self.agent, self.weights, self.version = agent, weights, 0
        self.trainer = stream_publisher(agent.socket, weights, threads=1)

    def publish(self) -> None:
        self.version += 1
        self.trainer.publish(version=self.version, tensors=self.weights.tensors.items())


def test_weights_are_published_as_fast_as_the_bus_and_the_first_time_too(cluster, figure):
    weights = large(torch.bfloat16, copies=2)
    own = Publishing(cluster.agent(threads=THREADS), weights)
    with own.trainer:
        first = own.seconds()
        own.seconds()  # the other slot's first time
        rate, ratio, of = own.against_pinned_copy()
    figure("publish_blocked_gpu", rate, "GB/s", of, ratio, least=0.9, model_bytes=weights.bf16_bytes)
    later = weights.bf16_bytes / rate / 1e9
    figure(
        "first_publish_gpu",
        first,
        "s",
        f"{later:.3g} s of later ones",
        first / later,
        most=1.5,
        model_bytes=weights.bf16_bytes,
    )


def test_a_stream_of_tensors_is_published_nearly_as_fast(cluster, figure):
    """Each is pinned when it is first copied to a slot."""
    own = Streaming(cluster.agent(threads=THREADS), large(torch.bfloat16, copies=2))
    with own.trainer:
        own.seconds()
        own.seconds()
        rate, ratio, of = own.against_pinned_copy()
    figure("publish_stream_gpu", rate, "GB/s", of, ratio, least=0.8, model_bytes=own.weights.bf16_bytes)


def test_float32_masters_are_published_as_fast_as_bfloat16_weights(cluster, figure):
    weights = large(torch.float32, copies=4)
    narrow = Weights(torch.bfloat16, layers=len(weights.sizes), narrow=NARROW, wide=WIDE)
    with Cluster() as other:
        masters = Publishing(cluster.agent(threads=THREADS), weights)
        bf16 = Publishing(other.agent(threads=THREADS), narrow)
        with masters.trainer, bf16.trainer:
            taken = [(masters.seconds(), bf16.seconds()) for _ in range(2 + REPEATS)][2:]
    wide, of = (statistics.median(values) for values in zip(*taken))
    ratio = statistics.median(one / another for one, another in taken)
    figure(
        "publish_fp32_gpu",
        wide,
        "s",
        f"{of:.3g} s of bfloat16 weights",
        ratio,
        most=1.1,
        model_bytes=weights.bf16_bytes,
    )


def test_a_module_stands_still_for_milliseconds_where_a_hundredth_changes(cluster, figure):
    weights = large(torch.bfloat16, copies=5)
    agent, socket = cluster.agent(threads=THREADS), cluster.directory / "engine.sock"
    cluster.receiver(agent, engine_load="in-place", engine_socket=socket, threads=THREADS)
    own = Publishing(agent, weights)
    with own.trainer, follower(module(weights), socket) as follows:
        for _ in range(REPEATS + 3):
            own.seconds()
            follows.wait_for(own.version, timeout=60)
        taken = 1000 * statistics.median(follows.pauses[-REPEATS:])
    figure("pause_gpu", taken, "ms", "5 ms", taken / 5, most=1, model_bytes=weights.bf16_bytes)
