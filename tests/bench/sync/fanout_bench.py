"""What the eighth receiver of a delta costs the agent, in CPU time, against the first: all that the agent spends on a
version for a receiver that follows, which is diff, hashes, encoding and sending.

The other receivers ask for the version one after another when the first has it. One JSON line for the figure, one of
the same with TLS, and one with the medians of each receiver in turn, without.
"""

import statistics
import time

import processes
import program
from credentials import Ca
from harness import Agent, Cluster, Receiver
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


def spent(agent: Agent, act: object) -> float:
    """CPU seconds of the agent for what `act` makes it do."""
    before = settled_cpu_s(agent)
    act()
    return settled_cpu_s(agent) - before


def daemons(cluster: Cluster, count: int, tls: bool) -> "tuple[Agent, list[Receiver]]":
    """An agent and its receivers, of which the first follows."""
    credentials: "dict[str, dict]" = {name: {} for name in ("agent", "receiver", "operator")}
    if tls:
        ca = Ca(cluster.directory / "ca")
        ca.allow(("receiver", "receiver"), ("operator", "operator"))
        credentials = {"agent": ca.daemon("agent"), "receiver": ca.daemon("receiver"), "operator": ca.files("operator")}
    agent = cluster.agent(**credentials["agent"])
    receivers = [cluster.receiver(agent, follow=number == 0, **credentials["receiver"]) for number in range(count)]
    for receiver in receivers:
        receiver.credentials = credentials["operator"]
    return agent, receivers


def measure(cluster: Cluster, options: program.Options, tls: bool) -> "list[tuple[float, ...]]":
    """CPU seconds: for each receiver in turn, of each version."""
    weights = Weights(options.model_bytes)
    agent, (follower, *others) = daemons(cluster, QUICK_RECEIVERS if options.quick else RECEIVERS, tls)
    rows = []
    with agent.publisher(weights.tensors) as publisher:
        for version in range(1, 2 + WARMING + options.repeats):
            weights.step()

            def publish() -> None:
                publisher.publish(version=version, tensors=weights.tensors)
                processes.wait_published(follower, version)

            def pull(receiver: object) -> None:
                record = receiver.ask("pull")
                if version > 1 and (record["mode"], record["to"]["version"]) != ("delta", version):
                    raise SystemExit(f"not the pull that was wanted: {record}")

            rows.append([spent(agent, publish), *(spent(agent, lambda: pull(receiver)) for receiver in others)])
    return list(zip(*rows[1 + WARMING :]))


def main() -> None:
    options = program.options(COPIES, full_bytes=MODEL_BYTES, quick_bytes=2_000_000, repeats=11)
    for name, tls in [("fanout_cpu_tls", True), ("fanout_cpu", False)]:
        with Cluster() as cluster:
            in_turn = measure(cluster, options, tls)
        program.print_figure(name, "s", options.model_bytes, in_turn[-1], in_turn[0])
    medians = [{"receiver": number, "cpu": statistics.median(column)} for number, column in enumerate(in_turn, 1)]
    program.print_series("fanout_cpu_in_turn", "s", options.model_bytes, medians)


if __name__ == "__main__":
    main()
