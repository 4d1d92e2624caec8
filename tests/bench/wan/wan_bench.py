"""Full pulls and deltas over emulated wide-area links, against what the links give.

wan_full_pull: bytes a second of a full pull, from its negotiation to its last byte, against iperf3 with as many streams
over the same link for as long; they take turns. wan_delta_latency: from the trainer's commit to the
receiver's of a small delta, against two round trips, its bytes at the link's rate, and what the same takes over a link
without delay or limit; they take turns too. Each figure is of the link where it is worst; rows of all links follow.

Status 77: no such links here.
"""

import contextlib
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import processes
import program
from harness import wait_until
from sync_bench import check_equal
from wan_net import NOT_ALLOWED, CannotMeasure, LinkedCluster, Shape
from weights import Weights

LANES = 4
FULL_BYTES, DELTA_BYTES, QUICK_BYTES = 750_000_000, 64_000_000, 8_000_000
FAST_LINKS = 2  # times as many bytes are pulled over them: a second of it is slow start
COPIES = 5.0 * FAST_LINKS
WARMING, DELTAS_PER_PULL = 2, 3
PAUSE_S = 0.5  # between versions: longer than any retransmission timeout, so that congestion windows grow old

# Of both hosts, as docs/howto/sizing.md says for long links: room for twice rate x round trip / lanes, and windows that
# a pause between versions does not close.
HOSTS = {
    "net.ipv4.tcp_rmem": "4096 131072 67108864",
    "net.ipv4.tcp_wmem": "4096 65536 67108864",
    "net.ipv4.tcp_slow_start_after_idle": 0,
}

GBIT = 1_000_000_000
LINKS = [Shape(rate * GBIT, trip, loss) for rate in (1, 10) for trip in (0.01, 0.1) for loss in (0.0, 0.001)]
QUICK_LINKS = [Shape(1 * GBIT, 0.01)]


@dataclass(frozen=True)
class Measured:
    """One figure on one link."""

    shape: Shape
    model_bytes: int
    values: "list[float]"
    baselines: "list[float]"
    about: "dict[str, object]"

    def ratio(self) -> float:
        return statistics.median(self.values) / statistics.median(self.baselines)

    def row(self) -> "dict[str, object]":
        medians = {"value": statistics.median(self.values), "baseline": statistics.median(self.baselines)}
        return {"link": str(self.shape), **medians, "ratio": self.ratio(), **self.about}


def full_pull(shape: Shape, options: program.Options) -> Measured:
    """Bytes a second, by lanes and by iperf3, after one of each."""
    model_bytes = options.model_bytes * (FAST_LINKS if shape.bits_per_s > GBIT else 1)
    weights = Weights(model_bytes)
    ours, theirs = [], []
    with contextlib.closing(LinkedCluster(shape, HOSTS, follow=False, lanes=LANES)) as cluster:
        with cluster.the_agent.publisher(weights.tensors) as publisher:
            publisher.publish(version=1, tensors=weights.tensors)
            wait_until(lambda: cluster.the_agent.model_status()["newest_version"], "version 1 is served", timeout_s=120)
            for _ in range(1 + options.repeats):
                pulled = cluster.the_receiver.ctl("--json", "pull", "--full", timeout_ms=55_000)
                if pulled.returncode != 0:
                    raise SystemExit(f"{shape}: {pulled.stderr}\n{cluster.the_receiver.log_tail()}")
                record = json.loads(pulled.stdout)
                seconds = (record["negotiate_us"] + record["pull_us"]) / 1e6
                ours.append(record["payload_bytes"] / seconds)
                theirs.append(cluster.link.iperf_bytes_per_s(LANES, seconds))
        check_equal(f"the replica over {shape}", cluster.the_receiver.file(), weights.flat)
        totals = cluster.link.totals()[0]
    return Measured(shape, model_bytes, ours[1:], theirs[1:], {"bytes": record["payload_bytes"], "totals": totals})


class Followed:
    """A trainer, its agent and a receiver that follows over a link; close it."""

    def __init__(self, shape: Shape, model_bytes: int) -> None:
        self.weights = Weights(model_bytes)
        self.version = 0
        with contextlib.ExitStack() as opened:
            self.cluster = LinkedCluster(shape, HOSTS, lanes=LANES)
            opened.callback(self.cluster.close)
            self.publisher = opened.enter_context(self.cluster.the_agent.publisher(self.weights.tensors))
            self.publish()
            self.close = opened.pop_all().close

    def publish(self) -> float:
        """Seconds from publish()'s return to the receiver's commit of a new version."""
        if self.version:
            self.weights.step()
        self.version += 1
        self.publisher.publish(version=self.version, tensors=self.weights.tensors)
        begin = time.perf_counter()
        return processes.wait_published(self.cluster.the_receiver, self.version) - begin


def delta_latency(shape: Shape, options: program.Options) -> Measured:
    """Seconds, and the seconds allowed."""
    model_bytes = min(options.model_bytes, DELTA_BYTES)
    times, repeats = [], DELTAS_PER_PULL * options.repeats
    with contextlib.ExitStack() as opened:
        near, far = (opened.enter_context(contextlib.closing(Followed(one, model_bytes))) for one in (Shape(), shape))
        with far.cluster.the_receiver.recorded_syncs() as records:
            for _ in range(WARMING + repeats):
                time.sleep(PAUSE_S)
                times.append((far.publish(), near.publish()))
        check_equal(f"the replica over {shape}", far.cluster.the_receiver.file(), far.weights.flat)
        totals = far.cluster.link.totals()[0]
    measured = records[-repeats:]
    if [record["mode"] for record in measured] != ["delta"] * repeats:
        raise SystemExit(f"{shape}: not the syncs that were wanted: {measured}")
    allowed = [
        2 * shape.round_trip_s + 8 * record["payload_bytes"] / shape.bits_per_s + undelayed
        for record, (_, undelayed) in zip(measured, times[WARMING:])
    ]
    stages = {
        stage: statistics.median(record[f"{stage}_us"] for record in measured) / 1e6
        for stage in ("negotiate", "pull", "apply", "commit", "publish_to_commit")
    }
    about = {
        "bytes": measured[-1]["payload_bytes"],
        "round_trips": statistics.median(ours - near for ours, near in times[WARMING:]) / shape.round_trip_s,
        "undelayed": statistics.median(undelayed for _, undelayed in times[WARMING:]),
        "stages": stages,
        "totals": totals,
    }
    return Measured(shape, model_bytes, [ours for ours, _ in times[WARMING:]], allowed, about)


def measure(
    name: str, unit: str, links: "list[Shape]", on_link: "Callable[[Shape], Measured]", worst: "Callable"
) -> None:
    """Prints a row for each link when it is measured, and the figure of the worst one."""
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    measured = []
    for shape in links:
        one = on_link(shape)
        measured.append(one)
        program.print_series(f"{name}_by_link", unit, one.model_bytes, [{**one.row(), "congestion_control": control}])
    found = worst(measured, key=Measured.ratio)
    program.print_figure(name, unit, found.model_bytes, found.values, found.baselines)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = program.options(COPIES, FULL_BYTES, QUICK_BYTES, repeats=3)
    links = QUICK_LINKS if options.quick else LINKS
    try:
        measure("wan_full_pull", "B/s", links, lambda shape: full_pull(shape, options), min)
        measure("wan_delta_latency", "s", links, lambda shape: delta_latency(shape, options), max)
    except CannotMeasure as why:
        print(f"wan_bench: cannot measure here: {why}", file=sys.stderr)
        return NOT_ALLOWED
    return 0


if __name__ == "__main__":
    sys.exit(main())
