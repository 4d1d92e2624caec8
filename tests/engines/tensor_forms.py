"""The tensors that a checkpoint of an architecture has, without data: what record_registry.py gives to loaders."""

import re
from collections.abc import Callable, Iterator

import torch
import transformers
from transformers import PretrainedConfig
from transformers.core_model_loading import revert_weight_conversion

from lockstep.engine._recorder import TensorForm

# Architectures of which transformers saves other names, or fewer, than vLLM's loader takes.
_AS_EXPECTED = {"AXK1ForCausalLM", "HYV4ForCausalLM"}

# Architecture -> regular expressions in those names, and what stands for them in checkpoints.
_RENAMED: "dict[str, dict[str, str]]" = {
    "HYV4ForCausalLM": {r"(hc_fn|hc_head_fn)\.weight": r"\1"},
    "IQuestLoopCoderForCausalLM": {r"(gate_projections\.\d+)\.gate_proj": r"\1"},
    "MuseGlimmerForCausalLM": {r"model\.language_model\.": "model."},
    "OlmoHybridForCausalLM": {r"attention_layer_norm": "input_layernorm", r"feedforward_": "post_attention_"},
    **dict.fromkeys(
        (
            "Cohere2VisionForConditionalGeneration",
            "Gemma3ForConditionalGeneration",
            "LlavaForConditionalGeneration",
            "LlavaNextForConditionalGeneration",
            "LlavaNextVideoForConditionalGeneration",
            "LlavaOnevisionForConditionalGeneration",
            "PaliGemmaForConditionalGeneration",
        ),
        {r"vision_tower\.": "vision_tower.vision_model."},
    ),
    "TeleChat2ForCausalLM": {r"\.q_proj": ".query", r"\.k_proj": ".key", r"\.v_proj": ".value"},
}

# Experts that checkpoints have stacked, and vLLM's mapping has one by one.
_STACKED = {"Step3TextForCausalLM": r"\.experts\.\d+"}

# Tensors of three dimensions that published checkpoints have the other way round than transformers saves them.
_TURNED = {"Qwen3VLMoeForConditionalGeneration": r".*\.experts\.(gate_up|down)_proj"}


def forms_of(
    architecture: str, config: "PretrainedConfig | None", build: "Callable[[], torch.nn.Module]"
) -> "list[TensorForm]":
    """The tensors of a checkpoint. ``config``: transformers', if it has the architecture. ``build``: vLLM's whole model."""
    forms = expected_forms(build()) if config is None or architecture in _AS_EXPECTED else saved_forms(config)
    for pattern, name in _RENAMED.get(architecture, {}).items():
        forms = [form._replace(name=re.sub(pattern, name, form.name)) for form in forms]
    forms = _stacked(forms, _STACKED[architecture]) if architecture in _STACKED else forms
    turned = re.compile(_TURNED.get(architecture, "(?!)"))
    forms = [f._replace(shape=(f.shape[0], *f.shape[:0:-1])) if turned.fullmatch(f.name) else f for f in forms]
    return sorted(forms, key=lambda form: form.name)


def _stacked(forms: "list[TensorForm]", pattern: str) -> "list[TensorForm]":
    groups: "dict[str, list[TensorForm]]" = {}
    for form in forms:
        groups.setdefault(re.sub(pattern, "", form.name), []).append(form)
    single = {form.name for form in forms}
    return [
        form._replace(name=name, shape=form.shape if name in single else (len(group), *form.shape))
        for name, group in groups.items()
        for form in group[:1]
    ]


def saved_forms(config: PretrainedConfig) -> "list[TensorForm]":
    """What transformers saves of its own model."""
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])._from_config(config, dtype=torch.bfloat16)
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in model.all_tied_weights_keys}
    return [TensorForm(name, t.dtype, tuple(t.shape)) for name, t in revert_weight_conversion(model, state).items()]


def draft_forms(model: torch.nn.Module) -> "list[TensorForm]":
    """What layers that draft ask for, by the names of checkpoints: as another layer of the model, or as "mtp"."""
    forms = []
    for form in expected_forms(model):
        name = form.name.replace(".mtp_block.", ".")
        if re.match("Qwen3|Exaone|Nemotron", type(model).__name__):
            name = re.sub(r"^model\.(?!embed_tokens)", "mtp.", name)
        forms.append(form._replace(name=name))
    return sorted(forms, key=lambda form: form.name)


# How loaders call the parts of a fused layer that no mapping of the model names.
_PARTS = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}


def expected_forms(model: torch.nn.Module) -> "list[TensorForm]":
    """What vLLM's model of one rank asks for: its own parameters, with fused layers and experts taken apart."""
    forms = {form.name: form for name, p in model.named_parameters() for form in _forms_of(model, name, p)}
    return list(forms.values())


def _forms_of(model: torch.nn.Module, name: str, parameter: torch.Tensor) -> "Iterator[TensorForm]":
    path, _, leaf = name.rpartition(".")
    owner, layer = model.get_submodule(path), path.rpartition(".")[2]
    shape, parts = list(parameter.shape), _parts_of(model, layer)
    sizes = getattr(owner, "output_sizes", [shape[0] // len(parts)] * len(parts) if parts and shape else [])
    if match := re.fullmatch(r"(.*)\.experts(\.routed_experts)?\.(w13|w2)_(weight|bias)", name):
        yield from _experts(model, match, parameter)
    elif parts and len(parts) == len(sizes) and sum(sizes) == shape[0]:
        for part, size in zip(parts, sizes):
            yield _form(model, f"{path[: -len(layer)]}{part}.{leaf}", parameter, [size, *shape[1:]])
    else:
        size = getattr(owner, "org_vocab_size", shape[0] if shape else 0)  # without padding
        yield _form(model, name, parameter, [size, *shape[1:]] if shape else [])


def _parts_of(model: torch.nn.Module, layer: str) -> "list[str]":
    if layer in getattr(model, "packed_modules_mapping", {}):
        return model.packed_modules_mapping[layer]
    stacked = getattr(getattr(model, "hf_to_vllm_mapper", None), "orig_to_new_stacked", {})
    parts = [old.strip(".") for old, (new, _) in stacked.items() if new.strip(".").endswith(layer)]
    return parts or _PARTS.get(layer, [])


def _experts(model: torch.nn.Module, match: "re.Match[str]", parameter: torch.Tensor) -> "Iterator[TensorForm]":
    block, _, group, leaf = match.groups()
    wanted = {"w13": ("w1", "w3"), "w2": ("w2",)}[group]
    shape = list(parameter.shape[1:])
    mapping = [entry for entry in _expert_mapping(model) if entry[3] in wanted]
    shards = len({entry[3] for entry in mapping})
    shape[0] //= shards
    for _, part, *_ in mapping:
        yield _form(model, f"{block}.{part}{leaf}", parameter, shape)


def _expert_mapping(model: torch.nn.Module) -> "list[tuple[str, str, int, str]]":
    for module in model.modules():
        if hasattr(module, "get_expert_mapping"):
            return module.get_expert_mapping()
    return []


def _form(model: torch.nn.Module, name: str, parameter: torch.Tensor, shape: "list[int]") -> TensorForm:
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    for kind, has in (("prefix", str.startswith), ("suffix", str.endswith), ("substr", str.__contains__)):
        for old, new in getattr(mapper, f"orig_to_new_{kind}", {}).items():
            if new and has(name, new):
                name = name.replace(new, old, 1)
    return TensorForm(name, parameter.dtype, tuple(shape))
