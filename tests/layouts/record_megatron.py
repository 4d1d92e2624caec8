"""Records what the ranks of real Megatron-core models hold: the test data of the rules for export.

    PYTHONPATH=python .cache/venv/bin/python -W ignore tests/layouts/record_megatron.py

It rewrites export_plugin/rules/testdata/megatron_core_*.txt. The file itself says what to build: of each case it keeps
the lines "case", "config", "topology" and "spec", and writes anew what follows them. So a case is added by its four
lines. Models are built on the CPU, in as many processes as the topology has ranks.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks are forked, and OpenMP's threads are not

import json
import re
from pathlib import Path
from typing import Any

from megatron.core import parallel_state
from megatron_models import build_chunks
from ranks import Rank, Ranks
from topologies import Topology
from transformers import AutoConfig

import lockstep

RECORDED = Path(__file__).resolve().parents[2] / "export_plugin/rules/testdata/megatron_core_0.16.1.txt"

Case = "dict[str, str]"  # the first word of each of its four lines -> the rest


def recorded_again(text: str) -> str:
    """The file with what the models of its cases hold now."""
    comment = [line for line in text.splitlines() if line.startswith("#")]
    recorded = [line for case in cases_of(text) for line in lines_of(case)]
    return "\n".join([*comment, *recorded]) + "\n"


def cases_of(text: str) -> "list[Case]":
    """The cases of a file, without what is recorded of them."""
    cases: "list[Case]" = []
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if word == "case":
            cases.append({})
        if word in ("case", "config", "topology", "spec"):
            cases[-1][word] = rest
    return cases


def lines_of(case: Case) -> "list[str]":
    """A case as it is in the file: its four lines, and the parameters of the last rank of each pipeline stage."""
    with Ranks(topology_of(json.loads(case["topology"]))) as ranks:
        held = ranks.call(parameters, json.loads(case["config"]), case["spec"] == "te")
    last_of_stage = {stage: number for number, (stage, _) in enumerate(held)}
    lines = [f"{word} {rest}" for word, rest in case.items()]
    for number in sorted(last_of_stage.values()):
        of_experts = folded(held[number][1], r"(?<=local_experts\.)\d+|(?<=weight)\d+")
        lines += [f"rank {number}", *folded(of_experts, r"(?<=layers\.)\d+")]
    return lines


def folded(lines: "list[str]", number: str) -> "list[str]":
    """Lines that differ only where `number` matches, as one line with all their numbers: "layers.{0,1}.norm 64"."""
    numbers: "dict[str, list[str]]" = {}
    for line in lines:
        found = re.search(number, line)
        numbers.setdefault(re.sub(number, "*", line, count=1), []).append(found[0] if found else "")
    return [line.replace("*", n[0] if len(n) == 1 else f"{{{','.join(n)}}}") for line, n in numbers.items()]


def topology_of(sizes: "dict[str, Any]") -> Topology:
    """A line "topology"."""
    return Topology(
        tp=sizes["tensor"],
        pp=sizes["pipeline"],
        vpp=sizes["virtual_pipeline"] if sizes["virtual_pipeline"] > 1 else None,
        cp=sizes["context"],
        ep=sizes["expert"],
        etp=sizes["expert_tensor"],
        dp=sizes["world"] // (sizes["tensor"] * sizes["pipeline"] * sizes["context"]),
        first_layers=sizes["first"] or None,
        last_layers=sizes["last"] or None,
        layout=sizes["layout"] or None,
        embedding_in_split=sizes["embedding"] == 1,
        loss_in_split=sizes["loss"] == 1,
    )


def parameters(rank: Rank, config: "dict[str, Any]", te_names: bool) -> "tuple[int, list[str]]":
    """This rank's pipeline stage, and its parameters: names with global layers, and local shapes."""
    hf = AutoConfig.for_model(**config)
    description = lockstep.megatron(build_chunks(hf, rank.topology, te_names), hf).describe()
    lines = sorted(" ".join(map(str, [held["name"], *held["shape"]])) for held in description["parameters"])
    return parallel_state.get_pipeline_model_parallel_rank(), lines


if __name__ == "__main__":
    RECORDED.write_text(recorded_again(RECORDED.read_text()))
