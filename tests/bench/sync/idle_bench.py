"""What both daemons take of the machine in addition to what they are for: memory while they work, CPU while they do not.

Memory is the most that a daemon ever had resident, sampled while versions of 1 % are published and a full pull is made:
everything but the files in shared memory, which are the slots, the replicas and the retained deltas. CPU is what both take
together while one follows the other and nothing happens, for ten seconds, as a share of a core; also while Prometheus
would scrape both each second.
"""

import contextlib
import time

import processes
import program
from harness import Agent, Cluster, Receiver
from processes import Trainer
from weights import Weights

MEMORY_LIMIT = 256 << 20
IDLE_LIMIT, SCRAPED_LIMIT = 0.002, 0.003
COPIES = 5.0
IDLE_WINDOWS = 3


def idle_share(daemons: "tuple[Agent | Receiver, ...]", window_s: float) -> float:
    """CPU time of both by wall time."""

    def spent() -> float:
        return sum(processes.cpu_s(daemon.process.pid) for daemon in daemons)

    before, begin = spent(), time.perf_counter()
    time.sleep(window_s)
    return (spent() - before) / (time.perf_counter() - begin)


def measure(cluster: Cluster, options: program.Options) -> None:
    agent = cluster.agent(metrics_listen="127.0.0.1:0")
    receiver = cluster.receiver(agent, metrics_listen="127.0.0.1:0")
    trainer = Trainer(agent, Weights(options.model_bytes))
    with processes.PeakMemory({"agent": agent.process.pid, "receiver": receiver.process.pid}) as memory:
        for _ in range(1 + options.repeats):
            trainer.sync(receiver)
        receiver.ask("pull", "--full")
    for name, peak in memory.peaks.items():
        program.print_figure(f"{name}_rss", "B", options.model_bytes, [peak], [MEMORY_LIMIT])
    settling_s, window_s = (0.1, 0.5) if options.quick else (1.0, 10.0)
    time.sleep(settling_s)
    shares: "dict[str, list[float]]" = {"idle_cpu": [], "idle_cpu_scraped": []}
    for _ in range(IDLE_WINDOWS):
        for name, scraping in (
            ("idle_cpu", contextlib.nullcontext()),
            ("idle_cpu_scraped", processes.scraped((agent, receiver))),
        ):
            with scraping:
                shares[name].append(idle_share((agent, receiver), window_s))
    trainer.close()
    for (name, values), limit in zip(shares.items(), (IDLE_LIMIT, SCRAPED_LIMIT)):
        program.print_figure(name, "of a core", options.model_bytes, values, [limit])


if __name__ == "__main__":
    with Cluster() as cluster:
        measure(cluster, program.options(COPIES, repeats=4))
