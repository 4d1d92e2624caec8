"""A stream against whole tensors: how long a trainer is blocked, and what memory it takes beside the model.

Time is of tensors that lie there, which both publish in turns. Memory is of tensors that are gathered for each version,
each into memory of its own, as a framework's generator does: the most that the process has more than before, against
the largest tensor and 16 MiB. One series has what Publisher takes, for which all of them must be there at once.
"""

import os
import time
from typing import Any, Iterator, Tuple

import processes
import program
from harness import Cluster, wait_until
from weights import Bf16, Weights

import lockstep

ALLOWANCE = 16 << 20
COPIES = 7.0  # the weights, two slots of two models, and what Publisher needs gathered


def gathered(weights: Weights) -> "Iterator[Tuple[str, Bf16]]":
    """A generator as frameworks have it."""
    for name, tensor in weights.tensors.items():
        yield name, Bf16(tensor.bits.copy())


def growth(publish: Any) -> int:
    """The most memory in bytes, beyond shared memory, that this process has in addition while it publishes."""
    this = {"this": os.getpid()}
    with processes.PeakMemory(this) as before:
        pass
    with processes.PeakMemory(this) as peak:
        publish()
    return max(0, peak.peaks["this"] - before.peaks["this"])


class Trainer:
    """Publishes version after version of one model, each when the one before is served."""

    def __init__(self, agent: Any, model: str, publisher: Any) -> None:
        self._agent, self._model, self._publisher = agent, model, publisher
        self._version = 0

    def publish(self, tensors: Any) -> float:
        """Seconds in publish(), of the next version."""
        self._version += 1
        begin = time.perf_counter()
        self._publisher.publish(version=self._version, tensors=tensors)
        seconds = time.perf_counter() - begin
        wait_until(self._served, f"version {self._version} of {self._model} is served", timeout_s=120)
        return seconds

    def _served(self) -> bool:
        return bool(self._agent.model_status(self._model)["newest_version"] == self._version)


def measure(cluster: Cluster, options: program.Options) -> None:
    """Prints both figures, and the memory of both publishers."""
    weights = Weights(options.model_bytes)
    agent = cluster.agent()
    plain_publisher = agent.publisher(weights.tensors, "plain")
    stream_publisher = lockstep.Publisher.from_stream(weights.tensors, model="streamed", socket=agent.socket)
    with plain_publisher, stream_publisher:
        plain, streamed = Trainer(agent, "plain", plain_publisher), Trainer(agent, "streamed", stream_publisher)
        for trainer in (plain, streamed) * 2:  # both slots are warm then
            trainer.publish(weights.tensors)
        values, baselines = [], []
        for _ in range(options.repeats):
            weights.step()
            values.append(streamed.publish(iter(weights.tensors.items())))
            baselines.append(plain.publish(weights.tensors))
        program.print_figure("stream_blocked", "s", options.model_bytes, values, baselines)
        memory = [growth(lambda: streamed.publish(gathered(weights))) for _ in range(options.repeats)]
        bound = max(tensor.bits.nbytes for tensor in weights.tensors.values()) + ALLOWANCE
        program.print_figure("stream_extra_memory", "B", options.model_bytes, [max(memory)], [bound])
        rows = [
            {"publisher": "from_stream", "extra": max(memory)},
            {"publisher": "in_place", "extra": growth(lambda: plain.publish(dict(gathered(weights))))},
        ]
    program.print_series("stream_memory", "B", options.model_bytes, rows)


def main() -> None:
    options = program.options(COPIES)
    with Cluster() as cluster:
        measure(cluster, options)


if __name__ == "__main__":
    main()
