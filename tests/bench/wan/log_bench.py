"""Sixteen receivers that read a log over a wide-area link, beside one that follows the agent over the same link.

log_readers: from the trainer's commit to the last of the sixteen's, against the same of the one. The log is a directory
at the agent's end; nginx serves it as a store would, for it is read alone. The series has what the agent spent on a
version (CPU time, and how many receivers it knows), and the bytes that readers read against those of the delta.

Status 77: no such link here, or no nginx.
"""

import json
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import processes
import program
import wan_net
from harness import Receiver, wait_until
from processes import Trainer
from wan_net import CannotMeasure, LinkedCluster, Shape
from weights import Weights

READERS, QUICK_READERS = 16, 3
MODEL_BYTES, QUICK_BYTES = 300_000_000, 8_000_000
COPIES = 2.0 * (READERS + 2) + 4.0
VERSIONS, QUICK_VERSIONS, WARMING = 20, 3, 2
PAUSE_S = 1.0
STORE_PORT = 7780
SHAPE = Shape(1_000_000_000, 0.01)
BUCKET = "weights"
READER = {"log_poll": "100ms", "threads": 1, "lanes": 2}

NGINX = """
daemon off; master_process off; pid {directory}/nginx.pid; error_log {directory}/error.log;
worker_rlimit_nofile 4096;
events {{ worker_connections 1024; }}
http {{
  access_log off; sendfile on; tcp_nodelay on; keepalive_requests 1000000;
  server {{ listen 0.0.0.0:{port}; root {directory}; }}
}}
"""


def start_store(cluster: LinkedCluster, store: Path) -> subprocess.Popen:
    config = store / "nginx.conf"
    config.write_text(NGINX.format(directory=store, port=STORE_PORT))
    command = [*cluster.link.prefix(0), "nginx", "-c", str(config)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def start_readers(cluster: LinkedCluster, store: Path, count: int) -> "tuple[Receiver, list[Receiver]]":
    """The log's writer, at the agent's end, and its readers."""
    credentials = store / "credentials"
    credentials.touch(mode=0o600)
    credentials.write_text("[default]\naws_access_key_id = any\naws_secret_access_key = any\n")
    endpoint = f"http://{cluster.link.addresses[0]}:{STORE_PORT}"
    source = f"s3://{BUCKET}?endpoint={endpoint}&credentials={credentials}"
    archive = f"file://{store / BUCKET}"
    writer = cluster.receiver_at(0, cluster.the_agent, name="writer", archive=archive)
    return writer, [cluster.receiver_at(1, source, name=f"reader-{number}", **READER) for number in range(count)]


def seconds_to_all(trainer: Trainer, receivers: "list[Receiver]") -> "list[float]":
    """From the publish of the next version to the commit of each receiver."""
    trainer.publish()
    begin = time.perf_counter()
    when: "dict[str, float]" = {}

    def all_have_it() -> bool:
        for receiver in receivers:
            if receiver.name not in when and processes.published_version(receiver) == trainer.version:
                when[receiver.name] = time.perf_counter() - begin
        return len(when) == len(receivers)

    wait_until(all_have_it, f"version {trainer.version} is everywhere", timeout_s=300, interval_s=0.002)
    return [when[receiver.name] for receiver in receivers]


def bytes_of_delta(receiver: Receiver) -> float:
    lines = (json.loads(line) for line in receiver.log().splitlines() if '"version_committed"' in line)
    return statistics.median(line["bytes"] for line in lines if line["mode"] != "full")


def measure() -> None:
    options = program.options(COPIES, MODEL_BYTES, QUICK_BYTES, repeats=VERSIONS)
    if shutil.which("nginx") is None:
        raise CannotMeasure("nginx is not installed")
    count, versions = (QUICK_READERS, QUICK_VERSIONS) if options.quick else (READERS, VERSIONS)
    with LinkedCluster(SHAPE) as cluster:
        agent, direct = cluster.the_agent, cluster.the_receiver
        store = cluster.directory / "store"
        (store / BUCKET).mkdir(parents=True)
        nginx = start_store(cluster, store)
        try:
            writer, readers = start_readers(cluster, store, count)
            trainer = Trainer(agent, Weights(options.model_bytes))
            times = [seconds_to_all(trainer, [direct, *readers])]
            before = processes.cpu_s(agent.process.pid)
            for _ in range(WARMING + versions - 1):
                time.sleep(PAUSE_S)
                times.append(seconds_to_all(trainer, [direct, *readers]))
            agent_cpu = (processes.cpu_s(agent.process.pid) - before) / (len(times) - 1)
            for receiver in (*readers, direct, writer):
                processes.check_equal(f"the replica of {receiver.name}", receiver.file(), trainer.weights.flat)
            row = {
                "readers": count,
                "agent_knows": len(agent.model_status()["receivers"]),
                "agent_cpu_s_a_version": agent_cpu,
                "delta_bytes": bytes_of_delta(direct),
                "read_bytes_a_reader": statistics.median(map(bytes_of_delta, readers)),
            }
            trainer.close()
        finally:
            nginx.kill()
            nginx.wait()
    program.print_series("log_readers_cost", "s", options.model_bytes, [row])
    last, one = zip(*((max(others), first) for first, *others in times[WARMING:]))
    program.print_figure("log_readers", "s", options.model_bytes, list(last), list(one))


if __name__ == "__main__":
    wan_net.run(measure)
