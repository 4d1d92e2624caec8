"""How long a full pull takes on the agent's own host: out of its memory, against lanes over loopback.

Real daemons, one model of 0.75 GiB; pulls take turns, from negotiation to the committed replica. One JSON line.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in ("python", "tests", "tests/integration"):
    sys.path.insert(0, str(ROOT / folder))

from harness import Cluster  # noqa: E402
from replicas import ToyModel  # noqa: E402

FULL_BLOCKS, QUICK_BLOCKS = 3072, 128  # of 256 KiB
FULL_REPEATS, QUICK_REPEATS = 9, 2
PHASES = ("negotiate_us", "pull_us", "apply_us", "commit_us")


def seconds(record: dict, local: bool) -> float:
    """Of one full pull, which must have come all in the one way or all in the other."""
    if record["mode"] != "full" or record["local_bytes"] != (record["payload_bytes"] if local else 0):
        raise SystemExit(f"not the pull that was wanted: {record}")
    return sum(record[phase] for phase in PHASES) / 1e6


def measure(cluster: Cluster, blocks: int, repeats: int) -> "tuple[list[float], list[float]]":
    """Seconds by memory and by lanes, after one pull of each that warms the replicas."""
    model = ToyModel(blocks=blocks)
    path = cluster.directory / "pull.sock"
    hidden = path.with_suffix(".hidden")  # where the receiver does not look for it
    agent = cluster.agent(local_socket=path)
    receiver = cluster.receiver(agent, follow=False)
    memory, lanes = [], []
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(1, model.tensors)
        for _ in range(repeats + 1):
            memory.append(seconds(receiver.ask("pull", "--full"), local=True))
            path.rename(hidden)
            lanes.append(seconds(receiver.ask("pull", "--full"), local=False))
            hidden.rename(path)
    return memory[1:], lanes[1:]


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    cluster = Cluster()
    try:
        values, baselines = measure(
            cluster, QUICK_BLOCKS if quick else FULL_BLOCKS, QUICK_REPEATS if quick else FULL_REPEATS
        )
    finally:
        cluster.close()
    print(json.dumps({"name": "colocated_full_pull", "unit": "s", "values": values, "baselines": baselines}))


if __name__ == "__main__":
    main()
