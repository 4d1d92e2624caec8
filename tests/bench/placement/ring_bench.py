"""How long a version takes through a ring of two buckets, one filled while the other is taken, against one bucket.

Two real processes: a trainer's float32 masters, 1 GiB of them, rounded to bfloat16 on the way, into the parameters of
an engine's module. One thread each, so two cores.
"""

import time
from pathlib import Path

import program
import torch
from harness import MODEL, Cluster
from ranks import Rank, Ranks

import lockstep

SHAPE = (2048, 2048)
LAYER_BYTES = 2 * SHAPE[0] * SHAPE[1]  # in bfloat16
FULL_BYTES, QUICK_BYTES = 64 * LAYER_BYTES, 4 * LAYER_BYTES
COPIES = 8.0  # in bfloat16: the masters are two, the engine's one, three buckets, two slots of the agent
BUCKETS = {"serial": 1, "ring": 2}


def module_of(layers: int, dtype: torch.dtype) -> torch.nn.Module:
    return torch.nn.ParameterList([torch.ones(SHAPE, dtype=dtype) for _ in range(layers)])


def follow(rank: Rank, layers: int, directory: Path) -> None:
    rank.module = module_of(layers, torch.bfloat16)
    rank.readers = {name: lockstep.RingReader(directory / name, lockstep.IntoModule(rank.module)) for name in BUCKETS}


def take(rank: Rank, name: str) -> "tuple[int, float]":
    """The version that arrived, and an element of it."""
    served = rank.readers[name].take(timeout=60)
    return served.version, float(rank.module[-1].detach()[-1, -1])


@torch.no_grad()
def seconds(ring: lockstep.BucketRing, name: str, engine: Ranks, module: torch.nn.Module, version: int) -> float:
    """From the call to the engine having all of it."""
    for tensor in module.parameters():
        tensor.fill_(version)
    engine.start(take, name)
    time.sleep(0.05)  # until it waits
    start = time.perf_counter()
    ring.send(version)
    taken = time.perf_counter() - start
    if engine.answers() != [(version, float(version))]:
        raise SystemExit(f"not version {version} arrived")
    return taken


def measure(cluster: Cluster, layers: int, repeats: int) -> "dict[str, list[float]]":
    module = module_of(layers, torch.float32)
    socket = cluster.agent().socket
    opened = lockstep.Publisher.from_tensors
    tensors = dict(module.named_parameters())
    with Ranks(1) as engine, opened(tensors, dtype=torch.bfloat16, socket=socket, model=MODEL) as exporter:
        engine.call(follow, layers, cluster.directory)
        rings = {
            name: lockstep.BucketRing(exporter, socket=cluster.directory / name, buckets=buckets)
            for name, buckets in BUCKETS.items()
        }
        found: "dict[str, list[float]]" = {name: [] for name in rings}
        for version in range(1, repeats + 2):
            for name, ring in rings.items():
                found[name].append(seconds(ring, name, engine, module, version))
        for ring in rings.values():
            ring.close()
    return {name: values[1:] for name, values in found.items()}


def main() -> None:
    options = program.options(COPIES, FULL_BYTES, QUICK_BYTES)
    torch.set_num_threads(1)
    layers = options.model_bytes // LAYER_BYTES
    with Cluster() as cluster:
        found = measure(cluster, layers, options.repeats)
    program.print_figure("ring_pipelining", "s", layers * LAYER_BYTES, found["ring"], found["serial"])


if __name__ == "__main__":
    main()
