"""Recordings of loaders say what the loaders do: toys, with planted faults, and models of vLLM's registry."""

from dataclasses import replace

import pytest
import torch
from index_values import Numbers, differences, faults, sources
from record_registry import GOOD, PLACES, TOWER, main, rows_of

from lockstep.engine._recorder import Piece, Recording, TensorForm, record

_VARIED = (
    "LlamaForCausalLM",
    "Qwen3MoeForCausalLM",
    "DeepseekV2ForCausalLM",
    "GptOssForCausalLM",
    "Gemma3ForCausalLM",
    "BloomForCausalLM",
    "Phi3ForCausalLM",
    "MambaForCausalLM",
    "JambaForCausalLM",
    "Qwen3NextForCausalLM",
)
_FORMS = [
    TensorForm("table", torch.bfloat16, (300, 40)),
    TensorForm("bias", torch.bfloat16, (40,)),
    TensorForm("rates", torch.bfloat16, (8,)),
]


class _Toy:
    """A loader that copies, turns, pads, converts, computes, and leaves rows unwritten."""

    def __init__(self) -> None:
        self.tensors = {
            "half": torch.zeros(40, 160, dtype=torch.bfloat16),
            "bias": torch.zeros(64, dtype=torch.float32),
            "rates": torch.zeros(8, dtype=torch.float32),
        }

    def load(self, weights):
        given = dict(weights)
        self.tensors["half"][:, :150].copy_(given["table"][150:].t())
        self.tensors["bias"][:40].copy_(given["bias"])
        self.tensors["bias"][40:50].zero_()
        self.tensors["rates"].copy_(-given["rates"].float().exp())


def _faults_of(toy: _Toy, recording: Recording) -> "list[str]":
    numbers = Numbers(_FORMS)
    found = sources(toy.load, toy.tensors, numbers)
    lines = faults(recording, found, toy.tensors, numbers)
    return lines + differences(recording, toy.load, toy.tensors, _FORMS)


def _with(recording: Recording, name: str, *pieces: Piece) -> Recording:
    return Recording({**recording.pieces, name: list(pieces)}, recording.unused)


def test_a_recording_says_what_the_loader_does():
    toy = _Toy()
    recording = record(toy.tensors, toy.load, _FORMS)
    assert _faults_of(toy, recording) == []
    assert [piece.ops for piece in recording.pieces["rates"]] == [(("to", "float32"), ("exp",), ("neg",))]


@pytest.mark.parametrize("fault", ["shifted", "turned", "dropped", "added", "constant", "without a step"])
def test_a_planted_fault_is_found(fault):
    toy = _Toy()
    recording = record(toy.tensors, toy.load, _FORMS)
    [half], [copied, zeros], [rates] = (recording.pieces[name] for name in ("half", "bias", "rates"))
    planted = {
        "shifted": _with(recording, "half", replace(half, start=half.start - 40)),
        "turned": _with(recording, "half", replace(half, strides=half.strides[::-1], start=0)),
        "dropped": _with(recording, "bias", zeros),
        "added": _with(recording, "bias", copied, zeros, replace(zeros, at=(50,))),
        "constant": _with(recording, "bias", copied, replace(zeros, value=1)),
        "without a step": _with(recording, "rates", replace(rates, ops=rates.ops[:-1])),
    }
    assert _faults_of(toy, planted[fault]) != []


def test_values_tell_copies_from_what_is_computed_or_unwritten():
    toy = _Toy()
    numbers = Numbers(_FORMS)
    found = sources(toy.load, toy.tensors, numbers)
    named = {name: sorted({numbers.name(n) for n in found[name].flatten()[[0, -1]].tolist()}) for name in found}
    assert named == {
        "half": ["nothing", "table[6000]"],
        "bias": ["bias[0]", "nothing"],
        "rates": ["something computed"],
    }
    assert numbers.name(int(found["bias"][45])) == "a constant"


@pytest.mark.parametrize("architecture", _VARIED)
def test_a_varied_few_are_recorded_at_every_place(architecture, vllm_recordings):
    rows = rows_of(vllm_recordings, architecture, PLACES)
    assert [row for row in rows if row["result"] not in GOOD] == []
    assert {row["on"] for row in rows} == {"cpu" if architecture == "BloomForCausalLM" else "meta"}


@pytest.mark.parametrize("architecture", ("DeepseekV3ForCausalLM", "MiMoForCausalLM", "Qwen3NextForCausalLM"))
def test_layers_that_draft_are_recorded(architecture, vllm_recordings):
    rows = rows_of(vllm_recordings, architecture, ["tp1", "tp2.1", "ep2.1"], draft=True)
    assert [row for row in rows if row["result"] not in GOOD] == []


@pytest.mark.nightly
def test_the_whole_registry_is_recorded_or_refused_and_none_is_wrong():
    assert main(["--least", "109"]) == 0


@pytest.mark.nightly
def test_text_and_tower_of_models_with_images_are_recorded():
    assert main(["--images", "--places", "tp1", "tp2.1", TOWER, "--least", "26"]) == 0


@pytest.mark.nightly
def test_all_layers_that_draft_are_recorded_or_refused_and_none_is_wrong():
    assert main(["--drafts", "--places", "tp1", "tp2.1", "ep2.1", "--least", "15"]) == 0
