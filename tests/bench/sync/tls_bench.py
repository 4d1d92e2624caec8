"""What TLS costs a receiver: two pairs of daemons over loopback, one of them with TLS, which take turns.

One JSON line for full pulls with TLS, against 1 / (1/P + 1/C): P the plain pull beside it, C what one core's cipher
does meanwhile (`openssl speed`), all in GB/s; one for the time from a trainer's commit to a receiver that shows the
version, with TLS against without, 1 % of the elements changed.
"""

import contextlib
import re
import subprocess
import time

import processes
import program
from credentials import Ca
from full_pull_bench import LANES, pull_seconds
from harness import Cluster, Receiver
from weights import Weights

import lockstep

WARMING = 3  # versions: both slots and both replicas were written, and written into
MODEL_BYTES = 1_500_000_000
COPIES = 9.0  # the trainer's, and two slots and two replicas of each pair
RECORD_BYTES = 16384


def cipher_gb_per_s() -> float:
    """Of one core, with the cipher and the records of lanes."""
    command = f"openssl speed -elapsed -mr -seconds 1 -bytes {RECORD_BYTES} -evp aes-128-gcm"
    printed = subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout
    return float(re.search(r"^\+F:.*:([0-9.]+)$", printed, re.MULTILINE)[1]) / 1e9


class Pair:
    """An agent, its receiver and its trainer, on lanes of one form."""

    def __init__(self, cluster: Cluster, weights: Weights, ca: "Ca | None") -> None:
        names = ("agent", "receiver", "operator")
        options: "dict[str, dict]" = {name: {} for name in names}
        if ca is not None:
            ca.allow(("receiver", "receiver"), ("operator", "operator"))
            options = {"agent": ca.daemon("agent"), "receiver": ca.daemon("receiver"), "operator": ca.files("operator")}
        agent = cluster.agent(**options["agent"])
        self.receiver: Receiver = cluster.receiver(agent, lanes=LANES, **options["receiver"])
        self.receiver.credentials = options["operator"]
        self.publisher: lockstep.Publisher = agent.publisher(weights.tensors)

    def sync_seconds(self, version: int, weights: Weights) -> float:
        """From publish()'s return to the switch of `current`."""
        self.publisher.publish(version=version, tensors=weights.tensors)
        end = time.perf_counter()
        return processes.wait_published(self.receiver, version) - end


def measure(plain: Pair, encrypted: Pair, weights: Weights, options: program.Options) -> "dict[str, list[list[float]]]":
    """For each figure its values and its baselines."""
    syncs: "list[list[float]]" = [[], []]
    for version in range(1, 2 + WARMING + options.repeats):
        weights.step()
        for pair, seconds in zip((encrypted, plain), syncs):
            seconds.append(pair.sync_seconds(version, weights))
    pulls: "list[list[float]]" = [[], []]
    for turn in range(-2, options.repeats):
        of_tls, of_plain = (options.model_bytes / pull_seconds(pair.receiver) / 1e9 for pair in (encrypted, plain))
        if turn >= 0:
            pulls[0].append(of_tls)
            pulls[1].append(1 / (1 / of_plain + 1 / cipher_gb_per_s()))
    return {"full_pull_tls": pulls, "delta_sync_tls": [seconds[1 + WARMING :] for seconds in syncs]}


def main() -> None:
    options = program.options(COPIES, full_bytes=MODEL_BYTES)
    weights = Weights(options.model_bytes)
    with contextlib.ExitStack() as stack:
        clusters = [stack.enter_context(Cluster()) for _ in range(2)]
        plain = Pair(clusters[0], weights, None)
        encrypted = Pair(clusters[1], weights, Ca(clusters[1].directory / "ca"))
        figures = measure(plain, encrypted, weights, options)
        for pair in (plain, encrypted):
            pair.publisher.close()
    for (name, (values, baselines)), unit in zip(figures.items(), ("GB/s", "s")):
        program.print_figure(name, unit, options.model_bytes, values, baselines)


if __name__ == "__main__":
    main()
