"""How long a full pull takes on the agent's own host: out of its memory, against lanes over loopback.

Real daemons, one model of 0.75 GiB; pulls take turns, from negotiation to the committed replica. One JSON line.
"""

import program
from harness import Cluster
from replicas import ToyModel

BLOCK_BYTES = 256 << 10
FULL_BYTES, QUICK_BYTES = 3072 * BLOCK_BYTES, 128 * BLOCK_BYTES
COPIES = 5.0
PHASES = ("negotiate_us", "pull_us", "apply_us", "commit_us")


def seconds(record: dict, local: bool) -> float:
    """Of one full pull, which must have come all by memory or all by lanes."""
    if record["mode"] != "full" or record["local_bytes"] != (record["payload_bytes"] if local else 0):
        raise SystemExit(f"not the pull that was wanted: {record}")
    return sum(record[phase] for phase in PHASES) / 1e6


def measure(cluster: Cluster, options: program.Options) -> "tuple[list[float], list[float]]":
    """Seconds by memory and by lanes, after one pull of each that warms the replicas."""
    model = ToyModel(blocks=options.model_bytes // BLOCK_BYTES)
    path = cluster.directory / "pull.sock"
    hidden = path.with_suffix(".hidden")  # where the receiver does not find it
    agent = cluster.agent(local_socket=path)
    receiver = cluster.receiver(agent, follow=False)
    memory, lanes = [], []
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.tensors)
        for _ in range(options.repeats + 1):
            memory.append(seconds(receiver.ask("pull", "--full"), local=True))
            path.rename(hidden)
            lanes.append(seconds(receiver.ask("pull", "--full"), local=False))
            hidden.rename(path)
    return memory[1:], lanes[1:]


def main() -> None:
    options = program.options(COPIES, FULL_BYTES, QUICK_BYTES)
    with Cluster() as cluster:
        values, baselines = measure(cluster, options)
    program.print_figure("colocated_full_pull", "s", options.model_bytes, values, baselines)


if __name__ == "__main__":
    main()
