"""How long after the trainer's commit the last engine of a host serves the version: eight engines on one receiver, each
written in place by itself, against one.

Real daemons; each engine is one rank of a Llama, as a process with host memory; 0.5 GB in bfloat16, 1 % of the elements
changed in each version. Baseline and figure are measured in turns: seven engines leave, and come back.
"""

import time

import program
import torch
from engine_ranks import attach, leave
from harness import Cluster, wait_until
from pause_bench import build, fitting_layers, jobs, model_bytes, serving
from processes import Trainer
from ranks import Ranks
from weights import Weights, llama

ENGINES = 8
LAYERS, QUICK_LAYERS = 2, 1
ROUNDS, QUICK_ROUNDS = 3, 1
VERSIONS = 4  # of a round; the first warms memory
# The trainer's, two slots, two replicas, eight engines'; one for lists and processes.
COPIES = 14.0


def measure(cluster: Cluster, ranks: Ranks, layers: int, rounds: int) -> "dict[int, list[float]]":
    """Seconds from a publish's return to the last engine's resume, by number of engines."""
    agent = cluster.agent()
    socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=socket)
    ranks.call(build, jobs([f"engine-{number}" for number in range(ENGINES)], 1, layers, socket), layers)
    trainer = Trainer(agent, Weights(llama(layers)))
    trainer.publish()
    ranks.call(attach, only=[0])
    others = list(range(1, ENGINES))
    seconds: "dict[int, list[float]]" = {1: [], ENGINES: []}
    for _ in range(rounds):
        for engines in seconds:
            if engines > 1:
                ranks.call(attach, only=others)
                serving(receiver, trainer.version, ENGINES)
            for number in range(VERSIONS):
                trainer.publish()
                begin = time.perf_counter()
                trainer.publisher.wait_served(version=trainer.version, engines=engines, timeout=120)
                if number > 0:
                    seconds[engines].append(time.perf_counter() - begin)
        ranks.call(leave, only=others)
        wait_until(lambda: len(receiver.model_status()["rank_groups"]) == 1, "one is left")
    trainer.close()
    return seconds


def main() -> None:
    options = program.options(COPIES, model_bytes(LAYERS), model_bytes(QUICK_LAYERS))
    torch.set_num_threads(1)
    layers = fitting_layers(options)
    with Cluster() as cluster, Ranks(ENGINES, timeout_s=300) as ranks:
        seconds = measure(cluster, ranks, layers, QUICK_ROUNDS if options.quick else ROUNDS)
    program.print_figure("engines_eight", "s", model_bytes(layers), seconds[ENGINES], seconds[1])


if __name__ == "__main__":
    main()
