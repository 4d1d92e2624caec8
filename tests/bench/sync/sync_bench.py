"""How long after the trainer's commit a receiver shows the version: with both daemons, over lanes, 1 % of the elements
changed; against the same by NumPy (numpy_pipeline.py), and by stages. Every other version is scraped: both daemons are
asked for their metrics when the trainer begins to publish it, and each second from then on.

Daemons and the pipeline take turns in memory, not in time: the model, two slots and two replicas are all that the machine
must hold. The series has rows {"kind", "stages": {name: median seconds}}.
"""

import contextlib
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
import processes
import program
from harness import Cluster, roomy_directory
from numpy_pipeline import NumpyPipeline
from processes import WARMING, Trainer
from weights import Weights, change, step_table

COPIES = 5.0
STAGES = ("negotiate", "pull", "apply", "commit")


def stages_of(record: dict) -> "dict[str, float]":
    return {stage: record[f"{stage}_us"] / 1e6 for stage in STAGES}


def medians(rows: "list[dict[str, float]]") -> "dict[str, float]":
    return {stage: statistics.median(row[stage] for row in rows) for stage in rows[0]}


def diff_tails(log: str) -> "dict[int, float]":
    """Version -> seconds from its commit to its being served, as the agent's log says."""
    entries = [json.loads(line) for line in log.splitlines() if '"version_committed"' in line]
    return {entry["version"]: entry["diff_tail_s"] for entry in entries}


def by_daemons(options: program.Options) -> "tuple[list[float], list[float], list[dict]]":
    """Seconds from publish()'s return to the switch of `current`, those of versions that were scraped, and rows of stages
    of what happened in the others."""
    with Cluster() as cluster:
        agent = cluster.agent(metrics_listen="127.0.0.1:0")
        receiver = cluster.receiver(agent, metrics_listen="127.0.0.1:0")
        trainer = Trainer(agent, Weights(options.model_bytes))
        seconds = {1: trainer.sync(receiver)}
        with receiver.recorded_syncs() as records:
            for version in range(2, 2 + WARMING + 2 * options.repeats):
                with processes.scraped((agent, receiver)) if version % 2 else contextlib.nullcontext():
                    seconds[version] = trainer.sync(receiver)
        full = [receiver.ask("pull", "--full") for _ in range(3)][1:]
        trainer.close()
        processes.check_equal("the replica", receiver.file(), trainer.weights.flat)
        tails = diff_tails(agent.log())
    measured = [processes.check(record, mode="delta") for record in records[WARMING:]]
    plain, scraped = ([r for r in measured if r["to"]["version"] % 2 == odd] for odd in (0, 1))
    took = [[seconds[record["to"]["version"]] for record in these] for these in (plain, scraped)]
    delta = [
        {"diff": tails[record["to"]["version"]], **stages_of(record), "total": total}
        for record, total in zip(plain, took[0])
    ]
    rows = [
        {"kind": "delta", "stages": medians(delta)},
        {"kind": "full", "stages": medians([stages_of(record) for record in full])},
    ]
    return took[0], took[1], rows


def by_numpy(options: program.Options) -> "tuple[list[float], list[dict]]":
    """Seconds from two slots in shared memory to the renamed file, and rows of stages."""
    random, steps = np.random.default_rng(2), step_table()
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir=roomy_directory()) as directory:
        paths = [Path(directory) / name for name in ("slot-a", "slot-b")]
        first = Weights(options.model_bytes).flat
        for path in paths:
            first.tofile(path)
        elements = first.size
        del first
        slots = [np.memmap(path, np.uint16, "r+") for path in paths]
        with NumpyPipeline(Path(directory), paths[0], elements) as pipeline:
            rows = []
            for version in range(1, 1 + WARMING + options.repeats):
                old, new = slots[1 - version % 2], slots[version % 2]
                np.copyto(new, old)
                change(new, 0.01, random, steps)
                rows.append(pipeline.sync(old, new))
        processes.check_equal("the NumPy pipeline's file", pipeline.file, new)
    measured = rows[WARMING:]
    return [row["total"] for row in measured], [{"kind": "numpy", "stages": medians(measured)}]


def main() -> None:
    options = program.options(COPIES)
    values, scraped, rows = by_daemons(options)
    baselines, reference = by_numpy(options)
    program.print_figure("delta_sync", "s", options.model_bytes, values, baselines)
    program.print_figure("delta_sync_scraped", "s", options.model_bytes, scraped, values)
    program.print_series("delta_sync_stages", "s", options.model_bytes, rows + reference)


if __name__ == "__main__":
    main()
