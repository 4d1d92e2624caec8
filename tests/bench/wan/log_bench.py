"""Sixteen receivers that read a log over a wide-area link, beside one that follows the agent over the same link.

log_readers: from the trainer's commit to the last of the sixteen's, against the same of the one. The log is a directory
at the agent's end; nginx serves it as a store would, for it is read alone. The series has what the agent spent on a
version (CPU time, and how many receivers it knows), and the bytes that readers read against those of the delta.

Status 77: no such link here, or no nginx.
"""

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time

import processes
import program
from harness import Receiver
from sync_bench import check_equal
from wan_net import NOT_ALLOWED, CannotMeasure, LinkedCluster, Shape
from weights import Weights

READERS, QUICK_READERS = 16, 3
MODEL_BYTES, QUICK_BYTES = 300_000_000, 8_000_000
COPIES = 2.0 * (READERS + 2) + 4.0
VERSIONS, QUICK_VERSIONS, WARMING = 20, 3, 2
PAUSE_S = 1.0
STORE_PORT = 7780
SHAPE = Shape(1_000_000_000, 0.01)
BUCKET = "weights"

NGINX = """
daemon off; master_process off; pid {directory}/nginx.pid; error_log {directory}/error.log;
worker_rlimit_nofile 4096;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nodelay on; keepalive_requests 1000000;
  server {{ listen 0.0.0.0:{port}; root {directory}; }}
}}
"""


class Fleet:
    """All of it, from the first version on; close it."""

    def __init__(self, model_bytes: int, readers: int) -> None:
        with contextlib.ExitStack() as opened:
            self.cluster = LinkedCluster(SHAPE)
            opened.callback(self.cluster.close)
            self.store = self.cluster.directory / "store"
            (self.store / BUCKET).mkdir(parents=True)
            self.start_store(opened)
            link = self.cluster.link
            self.writer: Receiver = self.cluster.receiver(
                self.cluster.the_agent,
                name="writer",
                start=False,
                archive=f"file://{self.store / BUCKET}",
                allow_insecure_network=link.network,
            )
            self.writer.prefix = link.prefix(0)
            self.writer.start()
            credentials = self.store / "credentials"
            credentials.touch(mode=0o600)
            credentials.write_text("[default]\naws_access_key_id = any\naws_secret_access_key = any\n")
            endpoint = f"http://{link.addresses[0]}:{STORE_PORT}"
            self.readers = [
                self.reader(f"s3://{BUCKET}?endpoint={endpoint}&credentials={credentials}", n) for n in range(readers)
            ]
            self.weights = Weights(model_bytes)
            self.version = 0
            self.publisher = opened.enter_context(self.cluster.the_agent.publisher(self.weights.tensors))
            self.close = opened.pop_all().close

    def start_store(self, opened: contextlib.ExitStack) -> None:
        config = self.store / "nginx.conf"
        config.write_text(NGINX.format(directory=self.store, port=STORE_PORT))
        command = [*self.cluster.link.prefix(0), "nginx", "-c", str(config)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        opened.callback(process.wait)
        opened.callback(process.kill)

    def reader(self, source: str, number: int) -> Receiver:
        network = self.cluster.link.network
        options = {"log_poll": "100ms", "threads": 1, "lanes": 2, "allow_insecure_network": network}
        reader = self.cluster.receiver(source, name=f"reader-{number}", start=False, **options)
        reader.prefix = self.cluster.link.prefix(1)
        reader.start()
        return reader

    def publish(self) -> "tuple[float, float]":
        """Seconds from the publish to the last reader's commit, and to that of the one that follows the agent."""
        if self.version:
            self.weights.step()
        self.version += 1
        self.publisher.publish(version=self.version, tensors=self.weights.tensors)
        begin = time.perf_counter()
        waiting = {**{reader.name: reader for reader in self.readers}, "direct": self.cluster.the_receiver}
        when: "dict[str, float]" = {}
        while waiting:
            for name, receiver in list(waiting.items()):
                with contextlib.suppress(FileNotFoundError):
                    if os.readlink(receiver.published()) == f"v{self.version}":
                        when[name] = time.perf_counter() - begin
                        del waiting[name]
            if time.perf_counter() - begin > 300:
                raise SystemExit(f"version {self.version}: not at {sorted(waiting)}")
            time.sleep(0.002)
        direct = when.pop("direct")
        return max(when.values()), direct

    def check(self) -> None:
        for receiver in (*self.readers, self.cluster.the_receiver, self.writer):
            check_equal(f"the replica of {receiver.name}", receiver.file(), self.weights.flat)


def bytes_of_deltas(receiver: Receiver) -> "list[int]":
    lines = (json.loads(line) for line in receiver.log().splitlines() if '"version_committed"' in line)
    return [line["bytes"] for line in lines if line["mode"] != "full"]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = program.options(COPIES, MODEL_BYTES, QUICK_BYTES, repeats=VERSIONS)
    if shutil.which("nginx") is None:
        print("log_bench: cannot measure here: nginx is not installed", file=sys.stderr)
        return NOT_ALLOWED
    readers = QUICK_READERS if options.quick else READERS
    versions = QUICK_VERSIONS if options.quick else VERSIONS
    try:
        with contextlib.closing(Fleet(options.model_bytes, readers)) as fleet:
            agent = fleet.cluster.the_agent
            times = [fleet.publish()]
            before = processes.cpu_s(agent.process.pid)
            for _ in range(WARMING + versions - 1):
                time.sleep(PAUSE_S)
                times.append(fleet.publish())
            agent_cpu = (processes.cpu_s(agent.process.pid) - before) / (len(times) - 1)
            fleet.check()
            known = agent.model_status()["receivers"]
            read = [statistics.median(bytes_of_deltas(reader)) for reader in fleet.readers]
            row = {
                "readers": readers,
                "agent_knows": len(known),
                "agent_cpu_s_a_version": agent_cpu,
                "delta_bytes": statistics.median(bytes_of_deltas(fleet.cluster.the_receiver)),
                "read_bytes_a_reader": statistics.median(read),
            }
    except CannotMeasure as why:
        print(f"log_bench: cannot measure here: {why}", file=sys.stderr)
        return NOT_ALLOWED
    program.print_series("log_readers_cost", "s", options.model_bytes, [row])
    measured = times[WARMING:]
    program.print_figure(
        "log_readers", "s", options.model_bytes, [ours for ours, _ in measured], [one for _, one in measured]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
