"""A program: records SGLang's own loaders of tiny models, and proves the recordings by values (json_program.py).

Asked by record_registry.py.
"""

import re
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from index_values import Numbers, differences, faults, sources
from json_program import answer_requests
from safetensors.torch import save_file
from sglang_configs import tiny_config, write_config
from sglang_model import Model, ModelRegistry, Rank
from tensor_forms import forms_of
from tiny_configs import is_known

from lockstep.core.errors import BadDataError
from lockstep.engine._parameters import tensors_of
from lockstep.engine._recorder import Recording, TensorForm
from lockstep.engine._sglang_loading import recorded

PLACES = {
    "tp1": Rank(),
    **{f"tp2.{rank}": Rank((2, rank)) for rank in range(2)},
    "tp4.1": Rank((4, 1)),
    "tp8.5": Rank((8, 5)),
    **{f"ep2.{rank}": Rank((2, rank), 2) for rank in range(2)},
    "ep4of8.5": Rank((8, 5), 4),
    **{f"pp2.{rank}": Rank(pipeline=(2, rank)) for rank in range(2)},
}

# How checkpoints call the parts of experts and of fused layers, where otherwise than most.
_EXPERTS = dict.fromkeys(
    (
        "Grok1ForCausalLM",
        "Grok1ModelForCausalLM",
        "KimiLinearForCausalLM",
        "MiniMaxM3SparseForCausalLM",
        "PhiMoEForCausalLM",
    ),
    ("w1", "w2", "w3"),
)
_PACKED = {
    "ExaoneForCausalLM": {"gate_up_proj": ["c_fc_0", "c_fc_1"]},
    "InternLM2ForCausalLM": {"gate_up_proj": ["w1", "w3"]},
    "QWenLMHeadModel": {"gate_up_proj": ["w2", "w1"]},
}
_OTHER_NAMES = ("KimiLinearForCausalLM",)  # than transformers saves


def architectures() -> "list[str]":
    """The causal ones."""
    others = re.compile("Transformers|TorchNative|Llava|YiVL|.*(OCR|VL2|VLM|ASR|MM|Vision|Eagle3|DSpark|Assistant)")
    ends = ("ForCausalLM", "LMHeadModel", "ChatGLMModel")
    return sorted(name for name in ModelRegistry.models if name.endswith(ends) and not others.match(name))


def check(architecture: str, place: str) -> "dict[str, Any]":
    """What became of the loader's recording at this place: "result", and "why" if it is not "recorded"."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            forms = _forms(architecture)
            write_config(architecture, Path(directory))
            model = Model(Path(directory), PLACES[place])
        except Exception as error:
            return {"result": "not built", "why": _line(error)}
        with model.current():
            return _checked(model, forms)


def write_checkpoint(architecture: str, output: str) -> None:
    """A tiny one, at random."""
    write_config(architecture, Path(output))
    tensors = {form.name: (torch.randn(form.shape) * 0.05).to(form.dtype) for form in _forms(architecture)}
    save_file(tensors, Path(output) / "model.safetensors")


@cache
def _forms(architecture: str) -> "list[TensorForm]":
    def build() -> torch.nn.Module:
        with tempfile.TemporaryDirectory() as directory:
            write_config(architecture, Path(directory))
            module = Model(Path(directory), Rank(), disable_shared_experts_fusion=True).module
        experts = max(
            (own.shape[0] for name, own in module.named_parameters() if name.endswith("w13_weight")), default=0
        )
        parts = zip(("w1", "w2", "w3"), _EXPERTS.get(architecture, ("gate_proj", "down_proj", "up_proj")))
        mapping = [("", f"experts.{k}.{part}.", k, shard) for shard, part in parts for k in range(experts)]
        module.packed_modules_mapping, module.get_expert_mapping = _PACKED.get(architecture, {}), lambda: mapping
        return module

    known = is_known(architecture) and architecture not in _OTHER_NAMES
    return forms_of(architecture, tiny_config(architecture) if known else None, build)


def _checked(model: Model, forms: "list[TensorForm]") -> "dict[str, Any]":
    anew = _Anew(model)
    try:
        anew.load((form.name, torch.zeros(form.shape, dtype=form.dtype)) for form in forms)
    except Exception as error:
        return {"result": "not loaded", "why": _line(error)}
    known = recorded(anew.module)
    known.take("tiny", forms)
    try:
        known.place()
    except BadDataError as error:
        return {"result": "refused", "why": str(error)}
    recording = known._recorded()
    destinations = {name: tensor for name, tensor in anew.tensors.items() if name in tensors_of(known._twin)}
    numbers = Numbers(forms)
    found = sources(anew.load, destinations, numbers)
    wrong = faults(recording, found, destinations, numbers)
    wrong += differences(recording, anew.load, destinations, forms)
    return {
        "result": "wrong" if wrong else "recorded",
        "why": "; ".join(wrong[:3]),
        "unwritten": [],  # such are refused
        **_amounts(recording),
    }


class _Anew:
    """A model that is built anew for each load, because some loaders run once only.

    Attributes:
        module: of the last load.
        tensors: what it has after a load.
    """

    def __init__(self, model: Model) -> None:
        self._model, self.module = model, model.module
        self.tensors: "dict[str, torch.Tensor]" = {}

    def load(self, weights: "Iterable[tuple[str, torch.Tensor]]") -> None:
        """Fills the tensors."""
        self.module = module = self._model.build()
        built = tensors_of(module)
        with torch.no_grad():
            for name in built.keys() & self.tensors.keys():
                built[name].copy_(self.tensors[name])
            module.load_weights(iter(weights))
            loaded = tensors_of(module)
            self.tensors = self.tensors or {name: tensor.clone() for name, tensor in loaded.items()}
            for name, tensor in self.tensors.items():
                tensor.copy_(loaded[name])


def _amounts(recording: Recording) -> "dict[str, Any]":
    """For a row of the table."""
    pieces = [piece for pieces in recording.pieces.values() for piece in pieces]
    steps = {" ".join(op[0] for op in piece.ops) for piece in pieces if any(op[0] != "to" for op in piece.ops)}
    return {"pieces": len(pieces), "computed": sorted(steps), "unused": recording.unused}


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


if __name__ == "__main__":
    answer_requests(architectures, check, write_checkpoint)
