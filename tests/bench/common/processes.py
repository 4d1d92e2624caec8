"""A benchmark's trainer, what a receiver shows in its directory, and what the system says of processes."""

import contextlib
import os
import re
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from credentials import Ca
from harness import MODEL, Agent, Cluster, Receiver, wait_until
from weights import Weights

import lockstep

WARMING = 3  # versions: both slots and both replicas were written, and written into
POLL_S = 0.0005
SAMPLE_S = 0.002


class Trainer:
    """Publishes version after version of its weights, 1 % changed in each. Close it."""

    def __init__(self, agent: Agent, weights: Weights, model: str = MODEL, **options: object) -> None:
        self.agent, self.weights, self.model = agent, weights, model
        self.publisher: lockstep.Publisher = agent.publisher(weights.tensors, model, **options)
        self.close = self.publisher.close
        self.version = 0

    def publish(self, tensors: object = None) -> float:
        """Seconds in publish(), of the next version: of `tensors`, or of the weights a step on."""
        if tensors is None and self.version:
            self.weights.step()
        self.version += 1
        begin = time.perf_counter()
        self.publisher.publish(version=self.version, tensors=self.weights.tensors if tensors is None else tensors)
        return time.perf_counter() - begin

    def sync(self, receiver: Receiver, tensors: object = None) -> float:
        """Seconds from the publish of the next version to the receiver's commit of it."""
        self.publish(tensors)
        begin = time.perf_counter()
        return wait_published(receiver, self.version) - begin

    def wait_served(self) -> None:
        """Until the agent serves what was published last."""
        newest = "newest_version"
        wait_until(lambda: self.agent.model_status(self.model)[newest] == self.version, "it is served", timeout_s=120)


def published_version(receiver: Receiver, model: str = MODEL) -> int:
    """Of the version that a receiver shows; 0 for none."""
    try:
        return int(re.match(r"v(\d+)", Path(os.readlink(receiver.published(model))).name)[1])
    except FileNotFoundError:
        return 0


def wait_published(receiver: Receiver, version: int, timeout_s: float = 120, model: str = MODEL) -> float:
    """Waits until the receiver shows `version`, and returns when it was seen, by time.perf_counter()."""
    deadline = time.perf_counter() + timeout_s
    while published_version(receiver, model) != version:
        if time.perf_counter() > deadline or not receiver.running():
            raise SystemExit(f"version {version} was not committed in {timeout_s} s:\n{receiver.log_tail()}")
        time.sleep(POLL_S)
    return time.perf_counter()


def check_equal(what: str, path: Path, bits: np.ndarray) -> None:
    """Ends the program unless the file ends with exactly these elements."""
    offset = path.stat().st_size - bits.nbytes
    if not np.array_equal(np.memmap(path, np.uint16, "r", offset), bits):
        raise SystemExit(f"{what} holds other bytes than were published")


def check(record: dict, **wanted: object) -> dict:
    """A sync's record; ends the program where it is not the sync that was wanted."""
    if any(record[key] != value for key, value in wanted.items()):
        raise SystemExit(f"not the sync that was wanted: {record}")
    return record


def daemons(cluster: Cluster, follow: "Iterable[bool]", tls: bool, **options: object) -> "tuple[Agent, list[Receiver]]":
    """An agent and its receivers, with TLS or without; `follow`: whether each of them follows."""
    of_agent: dict = {}
    of_receiver: dict = {}
    if tls:
        ca = Ca(cluster.directory / "ca")
        ca.allow(("receiver", "receiver"), ("operator", "operator"))
        of_agent, of_receiver = ca.daemon("agent"), ca.daemon("receiver")
    agent = cluster.agent(**of_agent)
    made = [cluster.receiver(agent, follow=follows, **of_receiver, **options) for follows in follow]
    for receiver in made:
        receiver.credentials = ca.files("operator") if tls else {}
    return agent, made


@contextlib.contextmanager
def scraped(daemons: "Iterable[Agent | Receiver]") -> "Iterator[None]":
    """As by Prometheus, at once and then each second, as long as this lasts."""
    over = threading.Event()

    def scrape() -> None:
        while True:
            for daemon in daemons:
                urllib.request.urlopen(f"http://{daemon.addresses['metrics']}/metrics").read()
            if over.wait(1.0):
                return

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def cpu_s(pid: int) -> float:
    """CPU time of a process, in the kernel too, with all threads that it has or had; in nanoseconds' resolution."""
    return time.clock_gettime((~pid << 3) | 2)  # what clock_getcpuclockid(3) would name


class PeakMemory:
    """Within a with block: watches processes, and keeps the most that each had beyond shared memory, in bytes."""

    def __init__(self, pids: "dict[str, int]") -> None:
        self._pids = pids
        self.peaks = dict.fromkeys(pids, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while True:
            for name, pid in self._pids.items():
                kib = dict(re.findall(r"(Rss\w+):\s+(\d+)", Path(f"/proc/{pid}/status").read_text()))
                self.peaks[name] = max(self.peaks[name], (int(kib["RssAnon"]) + int(kib["RssFile"])) << 10)
            if self._ended.wait(SAMPLE_S):
                return

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()
