"""How long a trainer is blocked by publishing, against a plain copy of the same bytes by PyTorch with as many threads, into
memory of the same kind, which was written before; versions and copies take turns, and before each the caches hold
other data.

The figure is with both daemons, a receiver that follows, and a pause in which the trainer would compute the next step,
until the receiver has the version; a series has smaller models, too. The receiver stands for one on another host: it
has the lowest priority, so that its work is not done on the trainer's cores while the trainer wants them. One JSON line
more has ratios of medians without a receiver, and of versions published back to back, which wait for the previous diff.
A second figure is of two threads against one, in turns, without a receiver.
"""

import os
import statistics
import time
from typing import Callable

import numpy as np
import processes
import program
import torch
from harness import MODEL, Agent, Cluster, Receiver, wait_until
from weights import Weights

WARMING = 3
COPIES = 6.5
THREADS = min(4, len(os.sched_getaffinity(0)))  # a publisher's default


class SomebodyElse:
    """Has the caches, and the host's attention, between one measurement and the next."""

    def __init__(self) -> None:
        self._memory = np.zeros(256 << 20, np.uint8)

    def work(self) -> None:
        self._memory += 1


SOMEBODY_ELSE = SomebodyElse()


class PlainCopy:
    """Copies of the weights into one mapping of a file in memory."""

    def __init__(self, path: object, source: np.ndarray) -> None:
        torch.set_num_threads(THREADS)
        source.tofile(path)
        self._source = torch.from_numpy(source.view(np.int16))
        self._target = torch.from_numpy(np.memmap(path, np.int16, "r+"))
        self.seconds()

    def seconds(self) -> float:
        SOMEBODY_ELSE.work()
        begin = time.perf_counter()
        self._target.copy_(self._source)
        return time.perf_counter() - begin


class Trainer:
    """Publishes version after version."""

    def __init__(self, publisher: object, weights: Weights) -> None:
        self._publisher = publisher
        self.weights = weights
        self.version = 0

    def publish(self) -> float:
        """Seconds in publish(), of the next version."""
        self.version += 1
        SOMEBODY_ELSE.work()
        begin = time.perf_counter()
        self._publisher.publish(version=self.version, tensors=self.weights.tensors)
        return time.perf_counter() - begin


def wait_served(agent: Agent, trainer: Trainer, model: str = MODEL) -> None:
    """Until the agent serves what the trainer published last."""
    wait_until(lambda: agent.model_status(model)["newest_version"] == trainer.version, "it is served", timeout_s=120)


def by_two_threads(agent: Agent, weights: Weights, repeats: int) -> "tuple[list[float], list[float]]":
    """Seconds of each publish by two threads, and by one."""
    by_two, by_one = [], []
    with (
        agent.publisher(weights.tensors, threads=1) as alone,
        agent.publisher(weights.tensors, "two-threads", threads=2) as both,
    ):
        one, two = Trainer(alone, weights), Trainer(both, weights)
        for _ in range(WARMING + repeats):
            weights.step()
            by_two.append(two.publish())
            wait_served(agent, two, "two-threads")
            by_one.append(one.publish())
            wait_served(agent, one)
    return by_two[WARMING:], by_one[WARMING:]


def back_to_back(trainer: Trainer, weights: Weights, versions: int) -> "list[float]":
    """The trainer does nothing but publish: every version waits for the diff of the one before."""
    seconds = []
    for _ in range(versions):
        weights.flat[::997] ^= 1
        seconds.append(trainer.publish())
    return seconds[1:]


def in_turns(trainer: Trainer, copy: PlainCopy, settle: "Callable[[], None]", repeats: int) -> "tuple[list, list]":
    """Seconds of each publish, and of each plain copy."""
    published, copied = [], []
    for _ in range(WARMING + repeats):
        trainer.weights.step()
        published.append(trainer.publish())
        settle()
        copied.append(copy.seconds())
    return published[WARMING:], copied[WARMING:]


def follow(cluster: Cluster, agent: Agent, version: int) -> "Receiver":
    """A receiver of the lowest priority, once it has the version."""
    receiver = cluster.receiver(agent, start=False)
    receiver.command[:0] = ["nice", "-n", "19"]
    receiver.start()
    processes.wait_published(receiver, version)
    return receiver


def measure(cluster: Cluster, options: program.Options) -> "tuple[list[float], list[float], dict[str, float]]":
    """Seconds of each publish, of each plain copy, and the medians of the other circumstances."""
    weights = Weights(options.model_bytes)
    agent = cluster.agent()
    with agent.publisher(weights.tensors) as publisher:
        trainer = Trainer(publisher, weights)
        copy = PlainCopy(cluster.directory / "copy", weights.flat)
        alone, alone_copied = in_turns(trainer, copy, lambda: wait_served(agent, trainer), options.repeats)
        alone_at_once = back_to_back(trainer, weights, options.repeats)
        wait_served(agent, trainer)
        receiver = follow(cluster, agent, trainer.version)
        values, baselines = in_turns(
            trainer, copy, lambda: processes.wait_published(receiver, trainer.version), options.repeats
        )
        at_once = back_to_back(trainer, weights, options.repeats)
        processes.wait_published(receiver, trainer.version)
    others = {
        "followed": statistics.median(values) / statistics.median(baselines),
        "alone": statistics.median(alone) / statistics.median(alone_copied),
        "alone, back to back": statistics.median(alone_at_once) / statistics.median(alone_copied),
        "followed, back to back": statistics.median(at_once) / statistics.median(baselines),
    }
    return values, baselines, others


def followed_ratio(model_bytes: int, repeats: int) -> float:
    """Of a model of another size, by daemons of its own: publishes that a receiver follows, against plain copies."""
    weights = Weights(model_bytes)
    with Cluster() as cluster:
        agent = cluster.agent()
        with agent.publisher(weights.tensors) as publisher:
            trainer = Trainer(publisher, weights)
            copy = PlainCopy(cluster.directory / "copy", weights.flat)
            trainer.publish()
            receiver = follow(cluster, agent, trainer.version)
            values, baselines = in_turns(
                trainer, copy, lambda: processes.wait_published(receiver, trainer.version), repeats
            )
    return statistics.median(values) / statistics.median(baselines)


def main() -> None:
    options = program.options(COPIES)
    with Cluster() as cluster:
        values, baselines, others = measure(cluster, options)
    program.print_figure("publish_blocked", "s", options.model_bytes, values, baselines)
    rows = [{"kind": kind, "ratio": ratio} for kind, ratio in others.items()]
    program.print_series("publish_blocked_circumstances", "copies", options.model_bytes, rows)
    with Cluster() as cluster:
        threads = by_two_threads(cluster.agent(), Weights(options.model_bytes), options.repeats)
    program.print_figure("publish_threads", "s", options.model_bytes, *threads)
    for model_bytes in (options.model_bytes // 10, options.model_bytes // 2):
        ratio = followed_ratio(model_bytes, options.repeats)
        program.print_series("publish_blocked_smaller", "copies", model_bytes, [{"ratio": ratio}])


if __name__ == "__main__":
    main()
