"""What both daemons take of the machine beside what they are for: memory while they work, CPU while they do not.

Memory is the most that a daemon ever had resident, sampled while versions of 1 % are published and a full pull is made:
everything but the files in shared memory, which are the halves, the replicas and the retained deltas. The same with half
of all elements changed is in a line of its own. CPU is what both take together while one follows the other and nothing
happens, for ten seconds, as a share of a core.
"""

import json
import threading
import time

import processes
from harness import Cluster
from weights import Weights

MEMORY_LIMIT = 256 << 20
IDLE_LIMIT = 0.002
COPIES = 5.0
SAMPLE_S = 0.002
DENSE = 0.5
IDLE_S, QUICK_IDLE_S, IDLE_WINDOWS = 10.0, 0.5, 3


class PeakMemory:
    """Within a with block: watches processes, and keeps the most that each had beyond shared memory, in bytes."""

    def __init__(self, daemons: "dict[str, object]") -> None:
        self._daemons = daemons
        self.peaks = dict.fromkeys(daemons, 0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            for name, daemon in self._daemons.items():
                now = processes.memory_bytes(daemon.process.pid)
                self.peaks[name] = max(self.peaks[name], now["RssAnon"] + now["RssFile"])

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()


def idle_share(daemons: "dict[str, object]", window_s: float) -> "dict[str, float]":
    """CPU time of each by wall time."""
    before = {name: processes.cpu_s(daemon.process.pid) for name, daemon in daemons.items()}
    begin = time.perf_counter()
    time.sleep(window_s)
    wall = time.perf_counter() - begin
    return {name: (processes.cpu_s(daemon.process.pid) - before[name]) / wall for name, daemon in daemons.items()}


def measure(cluster: Cluster, options: processes.Options) -> "tuple[dict, dict, list[dict]]":
    """Bytes by daemon at 1 %, at 50 %, and each window's shares by daemon."""
    weights = Weights(options.model_bytes)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    daemons = {"agent": agent, "receiver": receiver}
    with agent.publisher(weights.tensors) as publisher:

        def publish(version: int, density: float) -> None:
            weights.step(density)
            publisher.publish(version, weights.tensors)
            processes.wait_published(receiver, version)

        with PeakMemory(daemons) as sparse:
            for version in range(1, 2 + options.repeats):
                publish(version, 0.01)
            receiver.ask("pull", "--full")
        time.sleep(1.0 if not options.quick else 0.1)
        shares = [idle_share(daemons, QUICK_IDLE_S if options.quick else IDLE_S) for _ in range(IDLE_WINDOWS)]
        with PeakMemory(daemons) as dense:
            for version in range(2 + options.repeats, 4 + options.repeats):
                publish(version, DENSE)
    return sparse.peaks, dense.peaks, shares


def main() -> None:
    options = processes.options(COPIES, repeats=4)
    cluster = Cluster()
    try:
        sparse, dense, shares = measure(cluster, options)
    finally:
        cluster.close()
    for name, peak in sparse.items():
        print(json.dumps({"name": f"{name}_rss", "unit": "B", "values": [peak], "baselines": [MEMORY_LIMIT]}))
    together = [sum(share.values()) for share in shares]
    print(json.dumps({"name": "idle_cpu", "unit": "of a core", "values": together, "baselines": [IDLE_LIMIT]}))
    rows = [{"daemon": name, "rss": sparse[name], "dense_rss": dense[name]} for name in sparse]
    print(json.dumps({"series": "memory_beyond", "unit": "B", "rows": rows}))
    print(json.dumps({"series": "idle_cpu_by_daemon", "unit": "of a core", "rows": shares}))


if __name__ == "__main__":
    main()
