"""Recordings of SGLang's loaders say what the loaders do, for models of its registry that do more than copy."""

from pathlib import Path

import pytest
from record_registry import main, rows_of
from sglang_process import SglangProgram

_LAYOUTS = Path(__file__).resolve().parents[1] / "layouts"

_PLACES = ("tp1", "tp2.1", "tp8.5", "ep2.1")

# What they compute.
_VARIED = {
    "Gemma2ForCausalLM": "add",
    "LongcatFlashForCausalLM": "mul",
    "Mamba2ForCausalLM": "to exp neg",
    "Qwen3NextForCausalLM": "add",
}


@pytest.fixture(scope="module")
def program():
    program = SglangProgram("sglang_recordings.py", _LAYOUTS, models="placed_models")
    yield program
    program.close()


@pytest.mark.parametrize("architecture", _VARIED)
def test_a_varied_few_are_recorded(architecture, program):
    steps = _VARIED[architecture]
    rows = rows_of(program, architecture, _PLACES)
    assert {(row["result"], row["why"]) for row in rows} == {("computes", steps)}


def test_stages_are_recorded(program):
    rows = rows_of(program, "LlamaForCausalLM", ["pp2.0", "pp2.1"])
    assert [row["result"] for row in rows] == ["recorded", "recorded"]


def test_a_loader_that_goes_on_after_exceptions_is_recorded(program):
    rows = rows_of(program, "MiniMaxM3SparseForCausalLM", _PLACES)
    assert {row["result"] for row in rows} == {"recorded"}


def test_what_each_load_makes_anew_is_named(program):
    [row] = rows_of(program, "KimiLinearForCausalLM", ["tp1"])
    assert (row["result"], row["unwritten"][0]) == ("in part", "model.layers.0.self_attn.w_kc")


@pytest.mark.nightly
def test_the_whole_registry_is_recorded_or_refused_and_none_is_wrong():
    assert main(["--engine", "sglang", "--least", "98"]) == 0
