"""What both daemons take of the machine in addition to what they are for: memory while they work, CPU while they do not.

Memory is the most that a daemon ever had resident, sampled while versions of 1 % are published and a full pull is made:
everything but the files in shared memory, which are the slots, the replicas and the retained deltas. The same with half
of all elements changed is in a line of its own. CPU is what both take together while one follows the other and nothing
happens, for ten seconds, as a share of a core; also while Prometheus would scrape both each second.
"""

import time

import processes
import program
from harness import Cluster
from weights import Weights

MEMORY_LIMIT = 256 << 20
IDLE_LIMIT, SCRAPED_LIMIT = 0.002, 0.003
COPIES = 5.0
DENSE = 0.5
IDLE_S, QUICK_IDLE_S, IDLE_WINDOWS = 10.0, 0.5, 3


def idle_share(daemons: "dict[str, object]", window_s: float) -> "dict[str, float]":
    """CPU time of each by wall time."""
    before = {name: processes.cpu_s(daemon.process.pid) for name, daemon in daemons.items()}
    begin = time.perf_counter()
    time.sleep(window_s)
    wall = time.perf_counter() - begin
    return {name: (processes.cpu_s(daemon.process.pid) - before[name]) / wall for name, daemon in daemons.items()}


def measure(cluster: Cluster, options: program.Options) -> None:
    """Prints the memory at 1 %, the CPU time of idle windows, and the memory at 50 %."""
    size = options.model_bytes
    weights = Weights(size)
    agent = cluster.agent(metrics_listen="127.0.0.1:0")
    receiver = cluster.receiver(agent, metrics_listen="127.0.0.1:0")
    daemons = {"agent": agent, "receiver": receiver}
    pids = {name: daemon.process.pid for name, daemon in daemons.items()}
    with agent.publisher(weights.tensors) as publisher:

        def publish(version: int, density: float) -> None:
            weights.step(density)
            publisher.publish(version=version, tensors=weights.tensors)
            processes.wait_published(receiver, version)

        with processes.PeakMemory(pids) as sparse:
            for version in range(1, 2 + options.repeats):
                publish(version, 0.01)
            receiver.ask("pull", "--full")
        for name, peak in sparse.peaks.items():
            program.print_figure(f"{name}_rss", "B", size, [peak], [MEMORY_LIMIT])
        time.sleep(1.0 if not options.quick else 0.1)
        window_s = QUICK_IDLE_S if options.quick else IDLE_S
        shares, scraped_shares = [], []
        for _ in range(IDLE_WINDOWS):
            shares.append(idle_share(daemons, window_s))
            with processes.scraped(daemons.values()):
                scraped_shares.append(idle_share(daemons, window_s))
        idle = (("idle_cpu", shares, IDLE_LIMIT), ("idle_cpu_scraped", scraped_shares, SCRAPED_LIMIT))
        for name, series, limit in idle:
            program.print_figure(name, "of a core", size, [sum(share.values()) for share in series], [limit])
        program.print_series("idle_cpu_by_daemon", "of a core", size, shares)
        with processes.PeakMemory(pids) as dense:
            for version in range(2 + options.repeats, 4 + options.repeats):
                publish(version, DENSE)
    rows = [{"daemon": name, "rss": sparse.peaks[name], "dense_rss": dense.peaks[name]} for name in daemons]
    program.print_series("memory_beyond", "B", size, rows)


def main() -> None:
    options = program.options(COPIES, repeats=4)
    with Cluster() as cluster:
        measure(cluster, options)


if __name__ == "__main__":
    main()
