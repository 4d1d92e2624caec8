"""Recordings of SGLang's loaders say what the loaders do, for models of its registry."""

import pytest
from record_registry import main, rows_of

_PLACES = ("tp1", "tp2.1", "tp8.5", "ep2.1")

# What loaders compute.
_VARIED = {
    "Gemma2ForCausalLM": "add",
    "LongcatFlashForCausalLM": "mul",
    "Mamba2ForCausalLM": "to exp neg",
    "Qwen3NextForCausalLM": "add",
}

# MiniMax's loader goes on after exceptions, Kimi's makes w_kc and w_vc anew each time, and GLM's puts the shared expert in the stack of the
# others.
_COPIED = (
    "DeepseekV3ForCausalLM",
    "Glm4ForCausalLM",
    "Glm4MoeForCausalLM",
    "KimiLinearForCausalLM",
    "LlamaForCausalLM",
    "MiniMaxM3SparseForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen2MoeForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)


@pytest.mark.parametrize("architecture", _VARIED)
def test_a_varied_few_are_recorded(architecture, sglang_recordings):
    steps = _VARIED[architecture]
    rows = rows_of(sglang_recordings, architecture, _PLACES)
    assert {(row["result"], row["why"]) for row in rows} == {("computes", steps)}


@pytest.mark.parametrize("architecture", _COPIED)
def test_copies_are_recorded(architecture, sglang_recordings):
    rows = rows_of(sglang_recordings, architecture, (*_PLACES, "ep4of8.5"))
    assert [(row["result"], row["why"]) for row in rows] == [("recorded", "")] * len(rows)


def test_stages_are_recorded(sglang_recordings):
    rows = rows_of(sglang_recordings, "LlamaForCausalLM", ["pp2.0", "pp2.1"])
    assert [row["result"] for row in rows] == ["recorded", "recorded"]


@pytest.mark.nightly
def test_the_whole_registry_is_recorded_or_refused_and_none_is_wrong():
    assert main(["--engine", "sglang", "--least", "100"]) == 0
