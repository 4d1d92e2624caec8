"""The story of a machine with a GPU (gpu_story.py), on the CPU with a tiny model. That proves nothing of a GPU."""

import re
import sys
from pathlib import Path

import gpu_last
from gpu_run import Outcome, Run, Shared, Step
from gpu_story import STEPS, shape_for
from gpu_story_engine import SHAPES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDERS = ("python", "tests", "tests/gpu", "tests/integration", "tests/layouts")
# Fails where the story leaves a file in shared memory.
COMMAND = '"$0" "$1" && left=$(find "$LOCKSTEP_TEST_SHARED" -mindepth 1) && echo "left: $left" && [ -z "$left" ]'
ROW = re.compile(r"^ +\d+ +(\S+)% +(\S+) s +(\S+) s +(\S+) ms$", re.MULTILINE)
GB = 1e9


def told(directory: Path, *python_path: Path) -> "tuple[Outcome, str]":
    """What came of the step, and what it printed."""
    environment = {
        "LOCKSTEP_GPU_DEVICE": "cpu",
        "LOCKSTEP_STORY_SHAPE": "tiny",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": ":".join(map(str, [*python_path, *(ROOT / folder for folder in FOLDERS)])),
    }
    command = ("sh", "-c", COMMAND, sys.executable, str(HERE / "gpu_story.py"))
    with Shared() as shared:
        run = Run(directory, [Step("story", command, 240, environment=environment)], {}, 240, shared)
        run.go()
    return run.outcomes[0], run.log.read_text()


def test_an_engine_follows_a_training_and_the_figures_join_the_record(tmp_path):
    outcome, log = told(tmp_path)
    assert (outcome.outcome, outcome.why) == ("passed", ""), log
    rows = ROW.findall(log)
    assert len(rows) == STEPS
    assert all(
        0 < float(density) < 50 and float(blocked) <= float(to_served) for density, blocked, to_served, _ in rows
    )
    for what in ("followed", "CUDA IPC", "save and load"):
        assert f"{what}: {11 * SHAPES['tiny'][2] + 2} tensors are equal, bit for bit" in log

    figures = {figure["name"]: figure for figure in outcome.figures}
    with_ratio = {"story_blocked", "story_publish_to_served", "story_pause"}
    plain = {"story_density_first", "story_density_last", "story_ipc_pause", "story_save_load_pause"}
    assert figures.keys() == with_ratio | plain
    assert all(figure["value"] > 0 for figure in figures.values())
    assert all(len(figures[name]["values"]) == STEPS for name in with_ratio)

    about = {"digest": "d", "commit": "c", "sources": {}, "device": "A GPU", "driver": "1.2", "finished": True}
    step = {"step": outcome.step, "outcome": outcome.outcome, "why": "", "figures": outcome.figures}
    table = gpu_last.table(gpu_last.record({**about, "steps": [step]}, "2030-01-02")).splitlines()
    shown = [line for line in table if line.startswith("| `story_")]
    assert len(shown) == len(figures) and all(line.count("|") == 6 for line in shown)
    assert any(re.match(r"\| `story_pause` \| \S+ s \| \S+ s by CUDA IPC, tiny \| \S+ \|  \|", line) for line in shown)


def test_without_transformers_the_story_is_not_run_and_says_so(tmp_path):
    (tmp_path / "transformers.py").write_text("raise ModuleNotFoundError('there is no transformers here')\n")
    outcome, log = told(tmp_path, tmp_path)
    assert outcome.outcome == "not run", log
    assert outcome.why == f"{sys.executable}: there is no transformers here"


def test_a_machine_gets_the_largest_shape_that_its_memories_have_room_for():
    h100, shared, host = 84 * GB, 128 * GB, 120 * GB
    assert shape_for(h100, shared, host) == ("qwen3-4b", "")
    assert shape_for(40 * GB, shared, host) == ("qwen3-1.7b", "")
    assert shape_for(h100, 40 * GB, host) == ("qwen3-1.7b", "")
    assert shape_for(h100, shared, 45 * GB) == ("qwen3-1.7b", "")
    shape, why = shape_for(h100, 8 * GB, 16 * GB)
    assert shape == ""
    assert "qwen3-1.7b needs 17.2 GB of /" in why and "25.2 GB of the host's memory, and 16 GB are free" in why
