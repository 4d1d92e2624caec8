"""A program: records vLLM's own loaders of tiny models, and proves the recordings by values (json_program.py).

Asked by record_registry.py.
"""

import copy
import re
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch
import vllm.model_executor.models.registry as registry
from index_values import NEVER, Numbers, differences, faults, sources
from json_program import answer_requests
from safetensors.torch import save_file
from tensor_forms import draft_forms, forms_of, saved_forms
from tiny_configs import is_known, tiny_config
from transformers import DeepseekV3Config, PretrainedConfig, Qwen3MoeConfig
from vllm.config import SpeculativeConfig
from vllm_model import Model, Rank

from lockstep.core.errors import BadDataError
from lockstep.engine._processing import Processing
from lockstep.engine._recorded import Recorded, tensors_of
from lockstep.engine._recorder import Recording, TensorForm, record

PLACES = {
    "tp1": Rank(),
    **{f"tp2.{rank}": Rank((2, rank)) for rank in range(2)},
    "tp4.1": Rank((4, 1)),
    "tp8.5": Rank((8, 5)),
    **{f"ep2.{rank}": Rank((2, rank), expert_parallel=True) for rank in range(2)},
    **{f"pp2.{rank}": Rank(pipeline=(2, rank)) for rank in range(2)},
    "tower2.1": Rank((2, 1), whole_tower=True),
}


# What vLLM gives a draft of its model after loading.
_SHARED = r"embed_tokens|lm_head|shared_head\.head"


def architectures(images: bool = False, drafts: bool = False) -> "list[str]":
    """The causal ones; of them those with layers that draft; or those with images that transformers has, too."""
    if images:
        return list(filter(is_known, registry._MULTIMODAL_MODELS))
    return [name for name in registry._TEXT_GENERATION_MODELS if not drafts or _drafts(name)]


def _drafts(architecture: str) -> bool:
    try:
        config = _config(architecture, draft=True)
        return SpeculativeConfig.hf_config_override(config).architectures != [architecture]
    except ValueError:
        return False  # vLLM knows that it has none


def _config(architecture: str, draft: bool = False) -> PretrainedConfig:
    config = copy.deepcopy(tiny_config(architecture))
    if draft:
        config.num_nextn_predict_layers = config.mtp_num_hidden_layers = 1
    return config


def check(architecture: str, place: str, draft: bool = False) -> "dict[str, Any]":
    """What became of the loader's recording at this place: "result", and "why" if it is not "recorded"."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            forms = _forms(architecture, draft)
            _config(architecture, draft).save_pretrained(directory)
            model = Model(Path(directory), PLACES[place], draft)
        except Exception as error:
            return {"result": "not built", "why": _line(error)}
        with model.current():
            return _checked(model, forms, _SHARED if draft else "")


def write_checkpoint(architecture: str, output: str) -> None:
    """A tiny one, at random."""
    forms = _forms(architecture)
    tiny_config(architecture).save_pretrained(output)
    tensors = {form.name: (torch.randn(form.shape) * 0.05).to(form.dtype) for form in forms}
    save_file(tensors, Path(output) / "model.safetensors")


# Models as they are published, and the ranks of a server of theirs.
_WHOLE: "dict[str, tuple[PretrainedConfig, str, int]]" = {
    "Qwen3-30B-A3B": (
        Qwen3MoeConfig(
            hidden_size=2048,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=4,
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
            intermediate_size=6144,
            vocab_size=151936,
            max_position_embeddings=40960,
        ),
        "Qwen3MoeForCausalLM",
        2,
    ),
    "DeepSeek-V3": (
        DeepseekV3Config(topk_method="noaux_tc", scoring_func="sigmoid", moe_layer_freq=1),
        "DeepseekV3ForCausalLM",
        8,
    ),
}


def cost(name: str) -> "dict[str, Any]":
    """What it takes to record a whole model: seconds, and bytes that the process grew by."""
    config, architecture, ranks = _WHOLE[name]
    config.architectures = [architecture]
    forms = saved_forms(config)
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        with torch.device("meta"):
            model = Model(Path(directory), Rank((ranks, 1)))
        before, times = _resident(), [time.monotonic()]
        with model.current():
            twin = model.twin()
            times.append(time.monotonic())
            recorded = Recorded(model.module, twin, twin.load_weights, Processing(model.module).end(model.module))
            recorded.take("whole", forms)
            placement = recorded.place()
            times.append(time.monotonic())
    return {
        "tensors": len(forms),
        "ranks": ranks,
        "entries": len(placement.parameters),
        "slices": sum(len(own.slices) for own in placement.parameters),
        "twin_s": times[1] - times[0],
        "record_s": times[2] - times[1],
        "grown_bytes": _resident() - before,
    }


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@cache
def _forms(architecture: str, draft: bool = False) -> "list[TensorForm]":
    config = _config(architecture, draft)

    def build() -> torch.nn.Module:
        with tempfile.TemporaryDirectory() as directory:
            config.save_pretrained(directory)
            return Model(Path(directory), Rank(), draft).module

    if draft:
        return draft_forms(build())
    return forms_of(architecture, config if is_known(architecture) else None, build)


def _checked(model: Model, forms: "list[TensorForm]", shared: str) -> "dict[str, Any]":
    module, numbers = model.module, Numbers(forms)
    destinations = tensors_of(module)
    try:
        found = sources(module.load_weights, destinations, numbers)
    except Exception as error:
        return {"result": "not loaded", "why": _line(error)}
    try:
        twin = model.twin()
        recording = record(tensors_of(twin), twin.load_weights, forms)
    except Exception as error:
        return {"result": "refused", "why": str(error) if isinstance(error, BadDataError) else _line(error)}
    on = next(twin.parameters()).device.type
    wrong = faults(recording, found, destinations, numbers)
    wrong += differences(recording, module.load_weights, destinations, forms)
    amounts = {"on": on, **_amounts(module, recording, found, shared)}
    return {"result": "wrong" if wrong else "recorded", "why": "; ".join(wrong[:3]), **amounts}


def _amounts(
    module: torch.nn.Module, recording: Recording, found: "dict[str, torch.Tensor]", shared: str
) -> "dict[str, Any]":
    pieces = [piece for pieces in recording.pieces.values() for piece in pieces]
    steps = {" ".join(op[0] for op in piece.ops) for piece in pieces if any(op[0] != "to" for op in piece.ops)}
    own = (name for name, _ in module.named_parameters() if not shared or not re.search(shared, name))
    unwritten = [name for name in own if (found[name] == NEVER).any()]
    return {"pieces": len(pieces), "computed": sorted(steps), "unwritten": unwritten, "unused": recording.unused}


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


if __name__ == "__main__":
    answer_requests(architectures, check, cost, write_checkpoint)
