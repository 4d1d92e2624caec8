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

COPIES = 9.0
DERIVED = f"{MODEL}-fp8"
DERIVE = {DERIVED: lockstep.Fp8Block({"model_type": "llama", "num_hidden_layers": 1000})}


def synced(options: program.Options) -> "tuple[list[float], list[float]]":
    """Seconds from each commit of the trainer's until a receiver shows the derived version, and until one shows its source."""
    waited: "dict[str, list[float]]" = {MODEL: [], DERIVED: []}
    weights = Weights(options.model_bytes)
    with Cluster() as cluster:
        agent = cluster.agent()
        trainer = Trainer(agent, weights, derive=DERIVE)
        receivers = {model: cluster.receiver(agent, name=model, models=(model,), start=False) for model in waited}
        for receiver in receivers.values():
            receiver.command[:0] = ["nice", "-n", "19"]
            receiver.start()
        for _ in range(1 + WARMING + options.repeats):
            trainer.publish()
            committed = time.perf_counter()
            for model, receiver in receivers.items():
                waited[model].append(processes.wait_published(receiver, trainer.version, model=model) - committed)
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
        trainer.close()
    return waited[DERIVED][1 + WARMING :], waited[MODEL][1 + WARMING :]


def blocked(options: program.Options) -> "tuple[list[float], list[float]]":
    """Seconds of each publish right after the version before is served, so that the agent derives from it; and of each that nothing
    derives from."""
    seconds: "dict[str, list[float]]" = {MODEL: [], "plain": []}
    weights = Weights(options.model_bytes)
    with Cluster() as cluster:
        agent = cluster.agent()
        trainers = [Trainer(agent, weights, MODEL, derive=DERIVE), Trainer(agent, weights, "plain")]
        for _ in range(1 + WARMING + options.repeats):
            for trainer in trainers:
                trainer.publish()
                trainer.wait_served()
                seconds[trainer.model].append(trainer.publish())
                trainer.wait_served()
                agent.wait_for(trainers[0].version, DERIVED)
        for trainer in trainers:
            trainer.close()
    return seconds[MODEL][1 + WARMING :], seconds["plain"][1 + WARMING :]


def main() -> None:
    options = program.options(COPIES)
    program.print_figure("derive_sync", "s", options.model_bytes, *synced(options))
    program.print_figure("derive_blocked", "s", options.model_bytes, *blocked(options))


if __name__ == "__main__":
    main()
