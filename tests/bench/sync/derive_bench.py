"""A trainer's model and the FP8 model that the agent derives from it (Fp8Block): how long after the trainer's commit receivers show a
version of each, 1 % of the elements changed; and how long the trainer is blocked while the agent derives the version before, against
the same without a derived model, in turns. The receivers stand for ones on other hosts, as in publish_bench.py.

The series has a row for each model: what share of its elements changes, the bytes of a delta, and those of a receiver's replicas.
"""

import time

import processes
import program
from harness import MODEL, Cluster
from processes import WARMING, Trainer
from weights import Weights

import lockstep

COPIES = 12.0
DERIVED = f"{MODEL}-fp8"
CONFIG = {"model_type": "llama", "num_hidden_layers": 1000}


def main() -> None:
    options = program.options(COPIES)
    weights = Weights(options.model_bytes)
    waited: "dict[str, list[float]]" = {MODEL: [], DERIVED: []}
    blocked: "dict[str, list[float]]" = {"plain": [], MODEL: []}
    with Cluster() as cluster:
        agent = cluster.agent()
        plain = Trainer(agent, weights, "plain")
        trainer = Trainer(agent, weights, MODEL, derive={DERIVED: lockstep.Fp8Block(CONFIG)})
        receivers = {model: cluster.receiver(agent, name=model, models=(model,), start=False) for model in waited}
        for receiver in receivers.values():
            receiver.command[:0] = ["nice", "-n", "19"]
            receiver.start()
        for _ in range(1 + WARMING + options.repeats):
            weights.step()
            trainer.publish(weights.tensors)
            committed = time.perf_counter()
            for model, receiver in receivers.items():
                waited[model].append(processes.wait_published(receiver, trainer.version, model=model) - committed)
            for publisher in (plain, trainer):
                weights.step()
                publisher.publish(weights.tensors)
                publisher.wait_served()
                blocked[publisher.model].append(publisher.publish())
                publisher.wait_served()
            processes.wait_published(receivers[DERIVED], trainer.version, model=DERIVED)
        for model in receivers:
            status = agent.model_status(model)
            delta = status["deltas"][-1]
            row = {
                "model": model,
                "density": delta["changed_elements"] / weights.flat.size,
                "delta_bytes": delta["payload_bytes"],
                "replica_bytes": 2 * status["model_bytes"],
            }
            program.print_series("derived_model", "", options.model_bytes, [row])
        plain.close()
        trainer.close()
    skip = 1 + WARMING
    program.print_figure("derive_sync", "s", options.model_bytes, waited[DERIVED][skip:], waited[MODEL][skip:])
    program.print_figure("derive_blocked", "s", options.model_bytes, blocked[MODEL][skip:], blocked["plain"][skip:])


if __name__ == "__main__":
    main()
