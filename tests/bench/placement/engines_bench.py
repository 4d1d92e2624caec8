"""How long after the trainer's commit the last engine of a host serves the version: eight engines on one receiver, each
written in place by itself, against one.

Real daemons; each engine is one rank of a Llama, as a process with host memory; 0.5 GB in bfloat16, 1 % of the elements
changed in each version. Baseline and figure are measured in turns: seven engines leave, and come back.
"""

import time

import program
import torch
from engine_ranks import Job, attach, leave
from harness import MODEL, Cluster, wait_until
from pause_bench import build, change, configuration, fitting_layers, model_bytes, shapes
from ranks import Ranks
from slicing import places

ENGINES = 8
LAYERS, QUICK_LAYERS = 2, 1
ROUNDS, QUICK_ROUNDS = 3, 1
VERSIONS = 4  # of a round; the first warms memory
# The trainer's, two slots, two replicas, eight engines'; one for lists and processes.
COPIES = 14.0


def all_serve(receiver: object, engines: int, version: int) -> "list[dict]":
    """What the receiver says of them, once that many serve a version."""
    found = [one for one in receiver.model_status()["rank_groups"] if one["serving"]["version"] == version]
    return found if len(found) == engines else []


def measure(cluster: Cluster, ranks: Ranks, layers: int, rounds: int) -> "tuple[dict, list[dict]]":
    """Seconds from a publish's return to the last engine's resume, by number of engines, and their pauses."""
    agent = cluster.agent()
    socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=socket)
    jobs = [Job(f"engine-{rank}", 0, 1, places(1)[0], configuration(layers), socket, MODEL) for rank in range(ENGINES)]
    ranks.call(build, jobs, layers)
    tensors = {name: torch.full(shape, 0.02, dtype=torch.bfloat16) for name, shape in shapes(layers).items()}
    generator = torch.Generator().manual_seed(1)
    seconds: "dict[int, list[float]]" = {1: [], ENGINES: []}
    pauses = []
    with agent.publisher(tensors) as publisher:
        publisher.publish(version=1, tensors=tensors)
        ranks.call(attach, only=[0])
        version = 1
        others = list(range(1, ENGINES))
        for _ in range(rounds):
            for engines in seconds:
                if engines > 1:
                    ranks.call(attach, only=others)
                    wait_until(lambda: all_serve(receiver, ENGINES, version), "all are there", timeout_s=120)
                for number in range(VERSIONS):
                    change(tensors, generator)
                    version += 1
                    publisher.publish(version=version, tensors=tensors)
                    begin = time.perf_counter()
                    publisher.wait_served(version=version, engines=engines, timeout=120)
                    if number > 0:
                        seconds[engines].append(time.perf_counter() - begin)
                        found = wait_until(lambda: all_serve(receiver, engines, version), "they serve", timeout_s=120)
                        longest = max(one["last_pause_us"] for one in found) / 1e6
                        pauses.append({"engines": engines, "longest_pause": longest})
            ranks.call(leave, only=others)
            wait_until(lambda: len(receiver.model_status()["rank_groups"]) == 1, "one is left")
    return seconds, pauses


def main() -> None:
    """Prints the figure."""
    quick = program.is_quick()
    torch.set_num_threads(1)
    layers = fitting_layers(QUICK_LAYERS if quick else LAYERS, COPIES)
    with Cluster() as cluster, Ranks(ENGINES, timeout_s=300) as ranks:
        seconds, pauses = measure(cluster, ranks, layers, QUICK_ROUNDS if quick else ROUNDS)
    program.print_figure("engines_eight", "s", model_bytes(layers), seconds[ENGINES], seconds[1])
    program.print_series("engines_pauses", "s", model_bytes(layers), pauses)


if __name__ == "__main__":
    main()
