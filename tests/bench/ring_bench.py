"""How long a version takes through a ring of two buckets, one filled while the other is taken, against one bucket.

Two real processes: a trainer's float32 masters, 1 GiB of them, rounded to bfloat16 on the way, into the parameters of
an engine's module. One thread each, so two cores. One JSON line.
"""

import argparse
import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in ("python", "tests", "tests/integration", "tests/layouts"):
    sys.path.insert(0, str(ROOT / folder))

import torch  # noqa: E402
from harness import MODEL, Cluster  # noqa: E402
from ranks import Rank, Ranks  # noqa: E402

import lockstep  # noqa: E402

LAYERS, QUICK_LAYERS = 64, 4  # of 16 MiB in float32
REPEATS, QUICK_REPEATS = 9, 3
SHAPE = (2048, 2048)
NAMES = ("serial", "ring")


def module_of(layers: int, dtype: torch.dtype) -> torch.nn.Module:
    return torch.nn.ParameterList([torch.ones(SHAPE, dtype=dtype) for _ in range(layers)])


def follow(rank: Rank, layers: int, directory: Path) -> None:
    rank.module = module_of(layers, torch.bfloat16)
    rank.readers = {
        name: lockstep.RingReader(directory / name, lockstep.IntoModule(rank.module)) for name in NAMES
    }


def take(rank: Rank, name: str) -> "tuple[int, float]":
    """The version that came, and an element of it."""
    served = rank.readers[name].take(timeout=60)
    return served.version, float(rank.module[-1].detach()[-1, -1])


@torch.no_grad()
def seconds(ring: lockstep.BucketRing, name: str, engine: Ranks, module: torch.nn.Module, version: int) -> float:
    """From the call to the engine having all of it."""
    for tensor in module.parameters():
        tensor.fill_(version)
    engine.start(take, name)
    time.sleep(0.05)  # it waits
    start = time.perf_counter()
    ring.send(version)
    taken = time.perf_counter() - start
    if engine.answers() != [(version, float(version))]:
        raise SystemExit(f"not version {version} arrived")
    return taken


def measure(cluster: Cluster, layers: int, repeats: int) -> "dict[str, list[float]]":
    with Ranks(1) as engine:
        agent = cluster.agent()
        module = module_of(layers, torch.float32)
        exporter = lockstep.Exporter.from_named_tensors(
            dict(module.named_parameters()), dtype=torch.bfloat16, socket=agent.socket, model=MODEL
        )
        engine.call(follow, layers, cluster.directory)
        found: "dict[str, list[float]]" = {name: [] for name in NAMES}
        rings = {
            name: lockstep.BucketRing(exporter, socket=cluster.directory / name, buckets=buckets)
            for name, buckets in zip(NAMES, (1, 2))
        }
        for version in range(1, repeats + 2):
            for name, ring in rings.items():
                found[name].append(seconds(ring, name, engine, module, version))
        for ring in rings.values():
            ring.close()
        exporter.close()
    return {name: values[1:] for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    cluster = Cluster()
    try:
        found = measure(cluster, QUICK_LAYERS if quick else LAYERS, QUICK_REPEATS if quick else REPEATS)
    finally:
        cluster.close()
    print(json.dumps({"name": "ring_pipelining", "unit": "s", "values": found["ring"], "baselines": found["serial"]}))


if __name__ == "__main__":
    main()
