"""Many receivers of one agent, on one machine, and a trainer that goes as fast as they can follow."""

import statistics
import time
from concurrent.futures import ThreadPoolExecutor

from footprint import resident_bytes, threads
from harness import MODEL, Daemon, wait_until
from replicas import ToyModel

# Enough for what the other replica lags behind. More would be filled for a while, which looks like a leak.
KEPT_BYTES = 1 << 20
PACED_BY = 10  # versions
TIMEOUT_S = 120


def published_version(receiver, model: str = MODEL) -> int:
    """What it shows to its engine; 0 for none."""
    try:
        return int(receiver.published(model).readlink().name.removeprefix("v").split("-")[0])
    except FileNotFoundError:
        return 0


class Fleet:
    """`cluster`'s agent, `count` receivers of the smallest size, and a model of a few MiB.

    Receivers are observed through the names of what they publish, which costs them nothing.
    """

    def __init__(self, cluster, count: int) -> None:
        self.agent = cluster.agent(retain_bytes=KEPT_BYTES)
        self.model = ToyModel(blocks=12)
        self.publisher = self.agent.publisher(self.model.tensors)
        self.version = 0
        self.receivers = [
            cluster.receiver(
                self.agent, name=f"r{n}", start=False, threads=1, lanes=1, keep_delta_bytes=KEPT_BYTES, log_level="warn"
            )
            for n in range(count)
        ]

    def start(self) -> None:
        """Version 1 on every receiver."""
        for receiver in self.receivers:
            Daemon.start(receiver)
        for receiver in self.receivers:
            receiver.wait_until_listening()
        self.publish()
        self.wait_for_all()

    def publish(self) -> None:
        self.version += 1
        self.publisher.publish(version=self.version, tensors=self.model.step())

    def held(self) -> "list[int]":
        """The version that each receiver shows."""
        return [published_version(receiver) for receiver in self.receivers]

    def behind(self) -> int:
        """How many versions the last of them is behind the newest."""
        return self.version - min(self.held())

    def wait_for_all(self, behind: int = 0) -> None:
        what = f"every receiver is at most {behind} behind version {self.version}"
        wait_until(lambda: self.behind() <= behind, what, TIMEOUT_S, interval_s=0.005)

    def pace(self) -> float:
        """Seconds that the whole fleet takes for a version, from publish to the last commit: a median."""
        taken = []
        for _ in range(PACED_BY):
            begin = time.monotonic()
            self.publish()
            self.wait_for_all()
            taken.append(time.monotonic() - begin)
        return statistics.median(taken)

    def follow(self, until: int, every_s: float) -> int:
        """Publishes a version every `every_s` seconds up to version `until`, later when a receiver is two behind; answers
        how often that was."""
        waits = 0
        due = time.monotonic()
        while self.version < until:
            time.sleep(max(0.0, due - time.monotonic()))
            if self.behind() > 1:
                waits += 1
                self.wait_for_all(behind=1)
            due = time.monotonic() + every_s
            self.publish()
        return waits

    def resident_bytes(self) -> "list[int]":
        """Of the agent, then of the receivers."""
        return [resident_bytes(daemon.process.pid) for daemon in (self.agent, *self.receivers)]

    def agent_threads(self) -> int:
        return threads(self.agent.process.pid)

    def digests(self) -> "set[str]":
        """What lockstepctl verify makes of the bytes in memory of the agent and of every receiver."""
        with ThreadPoolExecutor(2) as pool:
            verified = pool.map(lambda daemon: daemon.ask("verify"), (self.agent, *self.receivers))
            return {result["computed_digest"] for result in verified}
