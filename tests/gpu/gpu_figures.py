"""Figures of a model of 3 GB in bfloat16, each beside its ceiling, measured in the same minute: gpu_figures.py NAME.

Where memory is too short the model is smaller, and says so; below a gigabyte nothing is measured.
"""

import contextlib
import shutil
import statistics
import sys
import time
from typing import Any, Iterator

import torch
from gpu_models import Weights, exporter, follower, module, stream_publisher
from gpu_probe import PinnedCopy, say
from gpu_run import NOT_RUN
from gpu_steps import LEAST_BYTES, SHARED_COPIES
from harness import Agent, Cluster, roomy_directory

MODEL_BYTES = 3_000_000_000
NARROW, WIDE = 4096, 8192  # of each layer
DEVICE_COPIES = 4  # of the model in bfloat16: two models, one of masters, which is twice as large, and a copy
CHANGED = 0.01
REPEATS = 7
THREADS = 8


def not_run(why: str) -> None:
    print(f"@not-run {why}", flush=True)
    raise SystemExit(NOT_RUN)


def figure(
    name: str, value: float, unit: str, of: str, ratio: float, goal: str, met: bool, weights: Weights, **more: Any
) -> None:
    """`of`: what the value is held against, in words."""
    say(
        "figure",
        name=name,
        value=value,
        unit=unit,
        of=of,
        ratio=ratio,
        goal=goal,
        met=met,
        model_bytes=weights.bf16_bytes,
        **more,
    )


def large(dtype: torch.dtype, copies: float) -> Weights:
    """Weights of about 3 GB in bfloat16, or as many bytes as shared memory has room for `copies` of, and the device for
    what any figure has there."""
    shared = shutil.disk_usage(roomy_directory()).free * 0.9 / copies
    device = torch.cuda.mem_get_info()[0] * 0.9 / DEVICE_COPIES
    fitting = int(min(MODEL_BYTES, shared, device))
    if fitting < LEAST_BYTES:
        not_run(
            f"{roomy_directory()} has room for {shared / 1e9:.2g} GB {copies:g} times, the GPU for {device / 1e9:.2g} GB"
        )
    return Weights(dtype, layers=fitting // (2 * NARROW * WIDE), narrow=NARROW, wide=WIDE)


@contextlib.contextmanager
def cluster() -> "Iterator[Cluster]":
    """Daemons of a figure; when it fails, the ends of their logs."""
    with Cluster() as daemons:
        try:
            yield daemons
        except BaseException:
            for daemon in daemons.daemons:
                print(f"--- {daemon.name}\n{daemon.log_tail()}", flush=True)
            raise


class Publishing:
    """A trainer at an agent of its own; each publish begins when the agent is done with the one before."""

    def __init__(self, agent: Agent, weights: Weights) -> None:
        self.agent, self.weights, self.version = agent, weights, 0
        self.trainer = exporter(agent.socket, weights, threads=1)

    def seconds(self) -> float:
        """Of the call, as a training feels it: weights are ready, and nothing else runs."""
        self.train()
        began = time.perf_counter()
        self.publish()
        taken = time.perf_counter() - began
        self.served()
        return taken

    def train(self) -> None:
        self.weights.step(CHANGED)
        torch.cuda.synchronize()

    def publish(self) -> None:
        self.version += 1
        self.trainer.publish(version=self.version)

    def served(self) -> None:
        self.agent.wait_for(self.version)

    def close(self) -> None:
        self.trainer.close()


def publishing(daemons: Cluster, weights: Weights) -> Publishing:
    return Publishing(daemons.agent(threads=THREADS), weights)


def against_pinned_copy(name: str, own: Publishing, least: float) -> float:
    """A figure: how fast versions are published, against a copy of as many bytes to pinned memory. Bytes a second."""
    copy = PinnedCopy(own.weights.bf16_bytes)
    rates, ratios = [], []
    for _ in range(REPEATS):
        taken, ceiling = own.seconds(), copy.seconds()
        rates.append(own.weights.bf16_bytes / taken / 1e9)
        ratios.append(ceiling / taken)
    rate, ratio = statistics.median(rates), statistics.median(ratios)
    of = f"{rate / ratio:.3g} GB/s of a pinned copy to the host"
    figure(name, rate, "GB/s", of, ratio, f">= {least}", ratio >= least, own.weights, values=rates)
    return rate * 1e9


def publish() -> None:
    """bfloat16, all of it copied, against a copy to pinned memory; and the first time against later ones."""
    weights = large(torch.bfloat16, SHARED_COPIES["publish"])
    with cluster() as daemons:
        own = publishing(daemons, weights)
        first = own.seconds()
        own.seconds()  # the other slot's first time
        later = weights.bf16_bytes / against_pinned_copy("publish_blocked_gpu", own, 0.9)
        of = f"{later:.3g} s of later ones"
        figure("first_publish_gpu", first, "s", of, first / later, "<= 1.5", first / later <= 1.5, weights)
        own.close()


def fp32() -> None:
    """float32 masters against bfloat16 weights, in turns."""
    with cluster() as daemons, cluster() as others:
        taken: "dict[torch.dtype, list[float]]" = {torch.float32: [], torch.bfloat16: []}
        weights = large(torch.float32, SHARED_COPIES["fp32"])
        narrow = Weights(torch.bfloat16, layers=len(weights.sizes), narrow=NARROW, wide=WIDE)
        both = [publishing(daemons, weights), publishing(others, narrow)]
        for one in both:
            one.seconds()
            one.seconds()
        for _ in range(REPEATS):
            for one in both:
                taken[one.weights.dtype].append(one.seconds())
        ratio = statistics.median(a / b for a, b in zip(*taken.values()))
        wide, bf16 = (statistics.median(values) for values in taken.values())
        of = f"{bf16:.3g} s of bfloat16 weights"
        figure("publish_fp32_gpu", wide, "s", of, ratio, "<= 1.1", ratio <= 1.1, weights, values=taken[torch.float32])
        for one in both:
            one.close()


class Streaming(Publishing):
    """As Publishing, of a trainer that gives one tensor after the other."""

    def __init__(self, agent: Agent, weights: Weights) -> None:
        self.agent, self.weights, self.version = agent, weights, 0
        self.trainer = stream_publisher(agent.socket, weights, threads=1)

    def publish(self) -> None:
        self.version += 1
        self.trainer.publish(version=self.version, tensors=self.weights.tensors.items())


def stream() -> None:
    """As publish(), one tensor after the other; each is pinned when it is first copied to a slot."""
    weights = large(torch.bfloat16, SHARED_COPIES["stream"])
    with cluster() as daemons:
        own = Streaming(daemons.agent(threads=THREADS), weights)
        own.seconds()
        own.seconds()
        against_pinned_copy("publish_stream_gpu", own, 0.8)
        own.close()


def pause() -> None:
    """How long a module stands still for 1 % of changes."""
    with cluster() as daemons:
        weights = large(torch.bfloat16, SHARED_COPIES["pause"])
        agent = daemons.agent(threads=THREADS)
        socket = daemons.directory / "engine.sock"
        daemons.receiver(agent, engine_load="in-place", engine_socket=socket, threads=THREADS)
        own = Publishing(agent, weights)
        engine = module(weights)
        with follower(engine, socket) as follows:
            for _ in range(REPEATS + 3):
                own.seconds()
                follows.wait_for(own.version, timeout=60)
            pauses = follows.pauses[-REPEATS:]
        own.close()
    taken = 1000 * statistics.median(pauses)
    figure("pause_gpu", taken, "ms", "5 ms", taken / 5, "<= 1", taken <= 5, weights, values=pauses)


FIGURES = {function.__name__: function for function in (publish, stream, fp32, pause)}

if __name__ == "__main__":
    FIGURES[sys.argv[1]]()
