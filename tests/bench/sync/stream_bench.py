"""A stream against whole tensors: how long a trainer is blocked, and what memory it takes beside the model.

Time is of tensors that lie there, which both publish in turns. Memory is of tensors that are gathered for each version,
each into memory of its own, as a framework's generator does: the most that the process has more than before, against
the largest tensor and 16 MiB.
"""

import os
from collections.abc import Callable, Iterator

import processes
import program
from harness import Agent, Cluster
from processes import WARMING, Trainer
from weights import Bf16, Weights

import lockstep

ALLOWANCE = 16 << 20
COPIES = 5.0  # the weights, two slots of two models


class StreamTrainer(Trainer):
    def __init__(self, agent: Agent, weights: Weights) -> None:
        self.agent, self.weights, self.model, self.version = agent, weights, "streamed", 0
        self.publisher = lockstep.Publisher.from_stream(weights.tensors, model=self.model, socket=agent.socket)
        self.close = self.publisher.close


def gathered(weights: Weights) -> "Iterator[tuple[str, Bf16]]":
    """A generator as frameworks have it."""
    for name, tensor in weights.tensors.items():
        yield name, Bf16(tensor.bits.copy())


def growth(act: "Callable[[], object]") -> int:
    """The most memory in bytes, beyond shared memory, that this process has in addition during `act`."""
    this = {"this": os.getpid()}
    with processes.PeakMemory(this) as before:
        pass
    with processes.PeakMemory(this) as peak:
        act()
    return max(0, peak.peaks["this"] - before.peaks["this"])


def measure(cluster: Cluster, options: program.Options) -> None:
    """Prints both figures."""
    weights = Weights(options.model_bytes)
    agent = cluster.agent()
    streamed, plain = StreamTrainer(agent, weights), Trainer(agent, weights, "plain")

    def publish(trainer: Trainer, tensors: object) -> float:
        seconds = trainer.publish(tensors)
        trainer.wait_served()
        return seconds

    values, baselines = [], []
    for _ in range(WARMING + options.repeats):
        weights.step()
        values.append(publish(streamed, iter(weights.tensors.items())))
        baselines.append(publish(plain, weights.tensors))
    program.print_figure("stream_blocked", "s", options.model_bytes, values[WARMING:], baselines[WARMING:])
    memory = [growth(lambda: publish(streamed, gathered(weights))) for _ in range(options.repeats)]
    bound = max(tensor.bits.nbytes for tensor in weights.tensors.values()) + ALLOWANCE
    program.print_figure("stream_extra_memory", "B", options.model_bytes, [max(memory)], [bound])
    streamed.close()
    plain.close()


if __name__ == "__main__":
    with Cluster() as cluster:
        measure(cluster, program.options(COPIES))
