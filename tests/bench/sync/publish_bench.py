"""How long a trainer is blocked by publishing, against a plain copy of the same bytes by PyTorch with as many threads, into
memory of the same kind, which was written before; versions and copies take turns, and before each the caches hold
other data.

The figure is with both daemons, a receiver that follows, and a pause in which the trainer would compute the next step,
until the receiver has the version; a series has smaller models, too. The receiver stands for one on another host: it
has the lowest priority, so that its work is not done on the trainer's cores while the trainer wants them. A second figure
is of two threads against one, in turns, without a receiver.
"""

import os
import statistics
import time
from pathlib import Path

import numpy as np
import processes
import program
import torch
from harness import Cluster
from processes import WARMING, Trainer
from weights import Weights

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

    def __init__(self, path: Path, source: np.ndarray) -> None:
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


class BusyTrainer(Trainer):
    """Publishes the weights as they are, when the caches hold other data."""

    def publish(self) -> float:
        SOMEBODY_ELSE.work()
        return super().publish(self.weights.tensors)


def followed(model_bytes: int, repeats: int) -> "tuple[list[float], list[float]]":
    """Seconds of each publish, and of each plain copy."""
    published, copied = [], []
    weights = Weights(model_bytes)
    with Cluster() as cluster:
        agent = cluster.agent()
        trainer = BusyTrainer(agent, weights)
        copy = PlainCopy(cluster.directory / "copy", weights.flat)
        receiver = cluster.receiver(agent, start=False)
        receiver.command[:0] = ["nice", "-n", "19"]
        receiver.start()
        for _ in range(1 + WARMING + repeats):
            weights.step()
            published.append(trainer.publish())
            processes.wait_published(receiver, trainer.version)
            copied.append(copy.seconds())
        trainer.close()
    return published[1 + WARMING :], copied[1 + WARMING :]


def by_two_threads(model_bytes: int, repeats: int) -> "tuple[list[float], list[float]]":
    """Seconds of each publish by two threads, and by one."""
    weights = Weights(model_bytes)
    with Cluster() as cluster:
        agent = cluster.agent()
        trainers = [BusyTrainer(agent, weights, f"threads-{threads}", threads=threads) for threads in (2, 1)]
        seconds: "list[list[float]]" = [[], []]
        for _ in range(WARMING + repeats):
            weights.step()
            for trainer, of_trainer in zip(trainers, seconds):
                of_trainer.append(trainer.publish())
                trainer.wait_served()
        for trainer in trainers:
            trainer.close()
    return seconds[0][WARMING:], seconds[1][WARMING:]


def main() -> None:
    options = program.options(COPIES)
    size = options.model_bytes
    program.print_figure("publish_blocked", "s", size, *followed(size, options.repeats))
    program.print_figure("publish_threads", "s", size, *by_two_threads(size, options.repeats))
    for smaller in (size // 10, size // 2):
        published, copied = map(statistics.median, followed(smaller, options.repeats))
        program.print_series("publish_blocked_smaller", "copies", smaller, [{"ratio": published / copied}])


if __name__ == "__main__":
    main()
