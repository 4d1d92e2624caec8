"""How fast a full pull is over lanes: two daemons over loopback, against plain sendfile and recv of the same bytes over as
many connections between two processes (full_pull_stream.cc).

The two take turns; both fill memory that is warm. One JSON line for the figure, bytes of the model by the seconds that
pulling took, every block hashed on the way; and one with rows {"way", "gb_per_s"} for other ways to send the same bytes.
"""

import statistics
import subprocess

import program
from harness import BIN, Cluster, wait_until
from weights import Weights

COPIES = 5.0  # the trainer's, a slot, two replicas, the stream's own
LANES = 4
WAYS = ("sendfile", "write", "splice", "zerocopy")


class Stream:
    """full_pull_stream over the agent's own slot, so that both read the same memory."""

    def __init__(self, cluster: Cluster, model_bytes: int) -> None:
        [slot] = [path for path in cluster.directory.rglob("slot-0") if path.is_file()]
        offset = slot.stat().st_size - model_bytes
        command = [BIN / "tests/bench/sync/full_pull_stream", slot, offset, model_bytes, LANES]
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, way: str) -> float:
        """Of sending the slot once."""
        self.process.stdin.write(way + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(30)


def pull_seconds(receiver: object) -> float:
    """Of one full pull, by lanes alone and from one version."""
    record = receiver.ask("pull", "--full")
    if record["mode"] != "full" or record["local_bytes"] != 0 or record["payload_bytes"] != record["model_bytes"]:
        raise SystemExit(f"not the pull that was wanted: {record}")
    return record["pull_us"] / 1e6


def measure(cluster: Cluster, options: program.Options) -> "tuple[list[float], dict[str, list[float]]]":
    """GB/s of pulls, and of each way to send, after a few that warm memory and windows."""
    agent = cluster.agent()
    receiver = cluster.receiver(agent, follow=False, lanes=LANES)
    weights = Weights(options.model_bytes)
    model_bytes = sum(tensor.bits.nbytes for tensor in weights.tensors.values())
    publisher = agent.publisher(weights.tensors)
    publisher.publish(version=1, tensors=weights.tensors)
    wait_until(lambda: int(agent.ask("status")["models"][0].get("newest_version", 0)) == 1, "version 1 is served")
    del weights
    stream = Stream(cluster, model_bytes)
    pulls, ways = [], {way: [] for way in WAYS}
    for turn in range(-2, options.repeats):
        pull = pull_seconds(receiver)
        sent = {way: stream.seconds(way) for way in WAYS}
        if turn < 0:
            continue
        pulls.append(model_bytes / pull / 1e9)
        for way, seconds in sent.items():
            ways[way].append(model_bytes / seconds / 1e9)
    stream.close()
    publisher.close()
    return pulls, ways


def main() -> None:
    options = program.options(COPIES)
    with Cluster() as cluster:
        pulls, ways = measure(cluster, options)
    program.print_figure("full_pull", "GB/s", options.model_bytes, pulls, ways["sendfile"])
    rows = [{"way": "lanes", "gb_per_s": statistics.median(pulls)}]
    rows += [{"way": way, "gb_per_s": statistics.median(rates)} for way, rates in ways.items()]
    program.print_series("sending_ways", "GB/s", options.model_bytes, rows)


if __name__ == "__main__":
    main()
