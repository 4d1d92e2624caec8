"""What lockstepctl plan makes of a trainer's sizes, and what real Megatron models of those sizes describe."""

import json
import subprocess
from pathlib import Path

import pytest
import trainer
from cases import CASES, Case
from harness import LOCKSTEPCTL
from megatron_models import VOCABULARY_DIVISIBLE_BY
from ranks import Rank, Ranks

import lockstep

PLANNED = [case for case in CASES if case.te_names or case.model in ("llama", "qwen2", "qwen3_moe", "deepseek_v3")]


def write_description(rank: Rank, checkpoint: Path, te_names: bool, directory: Path) -> None:
    """This rank's description, as a file."""
    trainer.build(rank, checkpoint, te_names)
    part = lockstep.megatron(rank.chunks, rank.hf).describe()
    description = {"format": 1, "on_agent_host": True, "parts": [part]}
    (directory / f"rank-{rank.number:05}.json").write_text(json.dumps(description))


def flags_of(case: Case) -> "list[str]":
    topology = case.topology
    flags = {
        "tp": topology.tp,
        "pp": topology.pp,
        "vpp": topology.vpp,
        "cp": topology.cp,
        "ep": topology.ep,
        "etp": topology.etp,
        "world-size": topology.world,
        "first-stage-layers": topology.first_layers,
        "last-stage-layers": topology.last_layers,
        "pipeline-layout": topology.layout,
        "make-vocab-size-divisible-by": VOCABULARY_DIVISIBLE_BY,
    }
    given = [f"--{name}={value}" for name, value in flags.items() if value is not None]
    return [*given, "--fused-norms"] if case.te_names else given


def plan(*arguments: object) -> dict:
    command = [LOCKSTEPCTL, "--json", "plan", *arguments]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("case", PLANNED, ids=str)
def test_the_plan_of_a_shape_is_the_plan_of_its_megatron_models(checkpoints, tmp_path, case):
    checkpoint = checkpoints.get(case.model)
    with Ranks(case.topology) as ranks:
        ranks.call(write_description, checkpoint, case.te_names, tmp_path)
    of_sizes = plan("--config", checkpoint, *flags_of(case))
    of_models = plan("--descriptions", tmp_path)
    assert of_sizes == of_models
    assert len(of_models["ranks"]) == case.topology.world
