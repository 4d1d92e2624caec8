"""A wide-area link with an agent at one end and a receiver at the other, and what iperf3 says of the same link.

The link is wan_link (its header says what it is faithful to). Its namespaces have no names, and what is started in them
is killed when this process ends, however it ends.
"""

import ipaddress
import itertools
import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from harness import BIN, Agent, Cluster, Receiver

WAN_LINK = BIN / "tests/bench/wan/wan_link"
NOT_ALLOWED = 77  # what wan_link ends with, and a benchmark that cannot have it
AGENT_PORT, LANE_PORT = 7700, 7701
IPERF_INTERVAL_S, IPERF_ATTEMPTS, IPERF_RETRY_S = 0.1, 50, 0.1
TOOLS = ("nsenter", "setpriv", "iperf3")


class CannotMeasure(Exception):
    """This machine or user cannot have such a link; says why."""


def run(measure: "Callable[[], None]") -> None:
    """A benchmark program. Ends with NOT_ALLOWED where this machine cannot measure."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        measure()
    except CannotMeasure as why:
        print(f"cannot measure here: {why}", file=sys.stderr)
        sys.exit(NOT_ALLOWED)


@dataclass(frozen=True)
class Shape:
    """What a link is like: bits a second (0: no limit), seconds, and the share of the segments that is lost."""

    bits_per_s: int = 0
    round_trip_s: float = 0.0
    loss: float = 0.0

    def __str__(self) -> str:
        rate = f"{self.bits_per_s / 1e9:g} Gbit/s" if self.bits_per_s else "no limit"
        return f"{rate}, {1000 * self.round_trip_s:g} ms, {100 * self.loss:g} % lost"


def share_before(moment: float, start: float, end: float) -> float:
    """How much of an interval is before that moment: 0 to 1."""
    return min(1.0, max(0.0, (moment - start) / (end - start)))


class Link:
    """A link that is up until close(). Ends: 0 has the agent, 1 the receiver."""

    def __init__(self, shape: Shape, sysctls: "dict[str, object] | None" = None) -> None:
        missing = [tool for tool in TOOLS if shutil.which(tool) is None]
        if missing:
            raise CannotMeasure(f"not installed: {', '.join(missing)}")
        command = [WAN_LINK, "--rate", shape.bits_per_s, "--loss", shape.loss]
        command += ["--rtt-us", round(1e6 * shape.round_trip_s)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._process = subprocess.Popen([str(part) for part in command], text=True, **pipes)
        line = self._process.stdout.readline()
        if not line:
            why = self._process.communicate()[1].strip()
            raise CannotMeasure(why) if self._process.returncode == NOT_ALLOWED else SystemExit(why)
        description = json.loads(line)
        self.addresses: "list[str]" = description["addresses"]
        self._ends: "list[str]" = description["ends"]
        for end, (key, value) in itertools.product((0, 1), (sysctls or {}).items()):
            write = f"echo {value} > /proc/sys/{key.replace('.', '/')}"
            subprocess.run([*self.prefix(end), "sh", "-c", write], check=True)
        self.network = str(ipaddress.ip_network(f"{self.addresses[0]}/24", strict=False))

    def prefix(self, end: int) -> "list[str]":
        """What a command is started with at an end, and ends with when this process does."""
        return ["nsenter", f"--net={self._ends[end]}", "setpriv", "--pdeathsig", "KILL", "--"]

    def totals(self) -> "list[dict[str, int]]":
        """Of the way there and the way back, since the link is up."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def iperf_bytes_per_s(self, streams: int, seconds: float) -> float:
        """What iperf3 gets across with so many streams in so long a time, its slow start included: what its server
        counted until then."""
        server = subprocess.Popen(
            self._iperf(
                1, "--server", "--one-off", "--bind", self.addresses[1], "--interval", IPERF_INTERVAL_S, "--json"
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._run_iperf_client(streams, math.ceil(seconds))
            counted = json.loads(server.communicate(timeout=30)[0])
        finally:
            server.kill()
            server.wait()
            server.stdout.close()
        sums = [interval["sum"] for interval in counted["intervals"]]
        return sum(entry["bytes"] * share_before(seconds, entry["start"], entry["end"]) for entry in sums) / seconds

    def _iperf(self, end: int, *options: object) -> "list[str]":
        return [*self.prefix(end), "iperf3", *map(str, options)]

    def _run_iperf_client(self, streams: int, seconds: int) -> None:
        command = self._iperf(0, "--client", self.addresses[1], "--parallel", streams, "--time", seconds)
        for _ in range(IPERF_ATTEMPTS):
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            if "refused" not in done.stderr:
                break
            time.sleep(IPERF_RETRY_S)  # the server does not listen yet
        if done.returncode != 0:
            raise SystemExit(f"iperf3: {done.stderr}")

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._process.stderr.close()


class LinkedCluster(Cluster):
    """An agent and a receiver with a link between them; the trainer is on the agent's host."""

    def __init__(self, shape: Shape, sysctls: "dict[str, object] | None" = None, **receiver_options) -> None:
        self.link = Link(shape, sysctls)
        super().__init__()
        self._cleanups.callback(self.link.close)
        try:
            listen = {"listen": f"0.0.0.0:{AGENT_PORT}", "lane_listen": f"0.0.0.0:{LANE_PORT}"}
            self.the_agent: Agent = self._at(0, self.agent, **listen)
            self.the_agent.address = f"{self.link.addresses[0]}:{AGENT_PORT}"
            self.the_receiver = self.receiver_at(1, self.the_agent, **receiver_options)
        except BaseException:
            self.close()
            raise

    def receiver_at(self, end: int, source: "Agent | str", **options) -> Receiver:
        return self._at(end, self.receiver, source, **options)

    def _at(self, end: int, make, *arguments, **options):
        daemon = make(*arguments, start=False, allow_insecure_network=self.link.network, **options)
        daemon.prefix = self.link.prefix(end)
        daemon.start()
        return daemon
