"""Full pulls and deltas over emulated wide-area links, against what the links give.

wan_full_pull: bytes a second of a full pull, from its negotiation to its last byte, against iperf3 with as many streams
over the same link for as long; they take turns. wan_delta_latency: from the trainer's commit to the
receiver's of a small delta, against two round trips, its bytes at the link's rate, and what the same takes over a link
without delay or limit; they take turns too. Each figure is of the link where it is worst; rows of all links follow.

Status 77: no such links here.
"""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import processes
import program
import wan_net
from processes import Trainer
from wan_net import LinkedCluster, Shape
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
    ours, theirs = [], []
    with LinkedCluster(shape, HOSTS, follow=False, lanes=LANES) as cluster:
        trainer = Trainer(cluster.the_agent, Weights(model_bytes))
        trainer.publish()
        trainer.wait_served()
        for _ in range(1 + options.repeats):
            record = cluster.the_receiver.ask("pull", "--full")
            seconds = (record["negotiate_us"] + record["pull_us"]) / 1e6
            ours.append(record["payload_bytes"] / seconds)
            theirs.append(cluster.link.iperf_bytes_per_s(LANES, seconds))
        trainer.close()
        processes.check_equal(f"the replica over {shape}", cluster.the_receiver.file(), trainer.weights.flat)
        totals = cluster.link.totals()[0]
    return Measured(shape, model_bytes, ours[1:], theirs[1:], {"bytes": record["payload_bytes"], "totals": totals})


def delta_latency(shape: Shape, options: program.Options) -> Measured:
    """Seconds, and the seconds allowed."""
    model_bytes = min(options.model_bytes, DELTA_BYTES)
    far_times, near_times, repeats = [], [], DELTAS_PER_PULL * options.repeats
    with contextlib.ExitStack() as opened:
        near, far = (opened.enter_context(LinkedCluster(one, HOSTS, lanes=LANES)) for one in (Shape(), shape))
        trainers = [Trainer(cluster.the_agent, Weights(model_bytes)) for cluster in (far, near)]
        for trainer, cluster in zip(trainers, (far, near)):
            opened.callback(trainer.close)
            trainer.sync(cluster.the_receiver)
        with far.the_receiver.recorded_syncs() as records:
            for _ in range(WARMING + repeats):
                time.sleep(PAUSE_S)
                far_times.append(trainers[0].sync(far.the_receiver))
                near_times.append(trainers[1].sync(near.the_receiver))
        processes.check_equal(f"the replica over {shape}", far.the_receiver.file(), trainers[0].weights.flat)
        totals = far.link.totals()[0]
    measured = [processes.check(record, mode="delta") for record in records[WARMING:]]
    ours, undelayed = far_times[WARMING:], near_times[WARMING:]
    allowed = [
        2 * shape.round_trip_s + 8 * record["payload_bytes"] / shape.bits_per_s + near
        for record, near in zip(measured, undelayed)
    ]
    about = {
        "bytes": measured[-1]["payload_bytes"],
        "round_trips": statistics.median(far - near for far, near in zip(ours, undelayed)) / shape.round_trip_s,
        "undelayed": statistics.median(undelayed),
        "totals": totals,
    }
    return Measured(shape, model_bytes, ours, allowed, about)


def on_links(name: str, unit: str, links: "list[Shape]", of: "Callable[[Shape], Measured]", worst: "Callable") -> None:
    """Prints a row for each link when it is measured, and the figure of the worst one."""
    control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
    measured = []
    for shape in links:
        one = of(shape)
        measured.append(one)
        program.print_series(f"{name}_by_link", unit, one.model_bytes, [{**one.row(), "congestion_control": control}])
    found = worst(measured, key=Measured.ratio)
    program.print_figure(name, unit, found.model_bytes, found.values, found.baselines)


def measure() -> None:
    options = program.options(COPIES, FULL_BYTES, QUICK_BYTES, repeats=3)
    links = QUICK_LINKS if options.quick else LINKS
    on_links("wan_full_pull", "B/s", links, lambda shape: full_pull(shape, options), min)
    on_links("wan_delta_latency", "s", links, lambda shape: delta_latency(shape, options), max)


if __name__ == "__main__":
    wan_net.run(measure)
