"""What TLS costs a receiver: two pairs of daemons over loopback, one of them with TLS, which take turns.

full_pull_tls is against 1 / (1/P + 1/C): P the plain pull beside it, C what one core's cipher does meanwhile (`openssl
speed`), all in GB/s. delta_sync_tls is the time from a trainer's commit to a receiver that shows the version, with TLS
against without, 1 % of the elements changed.
"""

import contextlib
import re
import subprocess

import processes
import program
from full_pull_bench import LANES, full_pull
from harness import Cluster
from processes import WARMING, Trainer
from weights import Weights

MODEL_BYTES = 1_500_000_000
COPIES = 9.0  # the trainer's, two slots and two replicas of each pair
RECORD_BYTES = 16384


def cipher_gb_per_s() -> float:
    """Of one core, with the cipher and the records of lanes."""
    command = f"openssl speed -elapsed -mr -seconds 1 -bytes {RECORD_BYTES} -evp aes-128-gcm"
    printed = subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout
    return float(re.search(r"^\+F:.*:([0-9.]+)$", printed, re.MULTILINE)[1]) / 1e9


def main() -> None:
    options = program.options(COPIES, full_bytes=MODEL_BYTES)
    weights = Weights(options.model_bytes)
    with contextlib.ExitStack() as stack:
        pairs = []
        for tls in (True, False):
            agent, [receiver] = processes.daemons(stack.enter_context(Cluster()), [True], tls, lanes=LANES)
            pairs.append((Trainer(agent, weights), receiver))
        syncs = []
        for _ in range(1 + WARMING + options.repeats):
            weights.step()
            syncs.append([trainer.sync(receiver, weights.tensors) for trainer, receiver in pairs])
        pulls, bounds = [], []
        for _ in range(2 + options.repeats):
            encrypted, plain = (options.model_bytes / full_pull(receiver)["pull_us"] / 1e3 for _, receiver in pairs)
            pulls.append(encrypted)
            bounds.append(1 / (1 / plain + 1 / cipher_gb_per_s()))
        for trainer, _ in pairs:
            trainer.close()
    program.print_figure("full_pull_tls", "GB/s", options.model_bytes, pulls[2:], bounds[2:])
    program.print_figure("delta_sync_tls", "s", options.model_bytes, *map(list, zip(*syncs[1 + WARMING :])))


if __name__ == "__main__":
    main()
