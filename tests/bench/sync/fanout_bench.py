"""What the eighth receiver of a delta costs the agent, in CPU time, against the first: all that the agent spends on a
version for a receiver that follows, which is diff, hashes, encoding and sending. The other receivers ask for the version
one after another when the first has it.
"""

import time
from collections.abc import Callable

import processes
import program
from harness import Agent, Cluster
from processes import Trainer
from weights import Weights

RECEIVERS, QUICK_RECEIVERS = 8, 3
MODEL_BYTES = 600_000_000  # small: the machine holds two replicas for each receiver
WARMING = 2
COPIES = 3.0 + 2.0 * RECEIVERS
SETTLED_S = 0.02  # this long without CPU time above what watching costs


def settled_cpu_s(agent: Agent) -> float:
    """The agent's CPU time once it does nothing more for what was asked of it."""
    before = processes.cpu_s(agent.process.pid)
    while True:
        time.sleep(SETTLED_S)
        now = processes.cpu_s(agent.process.pid)
        if now - before < 0.01 * SETTLED_S:
            return now
        before = now


def spent(agent: Agent, act: "Callable[[], object]") -> float:
    """CPU seconds of the agent for what `act` makes it do."""
    before = settled_cpu_s(agent)
    act()
    return settled_cpu_s(agent) - before


def measure(cluster: Cluster, options: program.Options, tls: bool) -> "tuple[list[float], list[float]]":
    """CPU seconds for the last receiver, and for the first, of each version."""
    count = QUICK_RECEIVERS if options.quick else RECEIVERS
    agent, (follower, *others) = processes.daemons(cluster, [True] + [False] * (count - 1), tls)
    trainer = Trainer(agent, Weights(options.model_bytes))
    first, last = [], []
    for version in range(1, 2 + WARMING + options.repeats):
        first.append(spent(agent, lambda: trainer.sync(follower)))
        records: "list[dict]" = []
        for receiver in others:
            last_cost = spent(agent, lambda: records.append(receiver.ask("pull")))
        last.append(last_cost)
        for record in records if version > 1 else ():
            processes.check(record, mode="delta")
    trainer.close()
    return last[1 + WARMING :], first[1 + WARMING :]


def main() -> None:
    options = program.options(COPIES, full_bytes=MODEL_BYTES, quick_bytes=2_000_000, repeats=11)
    for name, tls in (("fanout_cpu_tls", True), ("fanout_cpu", False)):
        with Cluster() as cluster:
            program.print_figure(name, "s", options.model_bytes, *measure(cluster, options, tls))


if __name__ == "__main__":
    main()
