"""Tiny models of the families that Megatron-Bridge has, built by its own providers and exported by its own exporter, in ranks of
ranks.Ranks that megatron_bridge_stand_ins.use_megatron_bridge prepares. For test_recorded_megatron_bridge.py.

Functions import Megatron and transformers themselves: the process of the tests has others.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from megatron_bridge_stand_ins import forget_attention_settings
from ranks import Rank
from tiny_options import COMMON, EXPERTS, FIRST_DENSE, LATENT

if TYPE_CHECKING:
    from topologies import Topology

_LATENT = {**LATENT, "num_nextn_predict_layers": 0}
_MROPE: "dict[str, Any]" = {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True}

_QWEN3_TOWER = {"out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [0, 1]}


def _with_vision(text: "dict[str, Any]", **vision: Any) -> "dict[str, Any]":
    own = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 4, **vision}
    return {"text_config": {**COMMON, "head_dim": 16, **text}, "vision_config": own, "tie_word_embeddings": False}


_UNPADDED = {"vocab_size": 124}  # of providers that pad the embedding and not the head, or none
# family -> (transformers' architecture, model_type, what differs from the common configuration)
# fmt: off
FAMILIES: "dict[str, tuple[str, str, dict[str, Any]]]" = {
    "llama": ("LlamaForCausalLM", "llama", {"head_dim": 16}),
    "mistral": ("MistralForCausalLM", "mistral", {"head_dim": 16}),
    "qwen2": ("Qwen2ForCausalLM", "qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3ForCausalLM", "qwen3", {"head_dim": 32}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "qwen3_moe", {"head_dim": 32, "num_experts": 4, **EXPERTS}),
    "qwen3_next": ("Qwen3NextForCausalLM", "qwen3_next", {
        "head_dim": 16, "num_experts": 4, "shared_expert_intermediate_size": 40, "full_attention_interval": 2,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, **EXPERTS}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", "deepseek_v2", _LATENT),
    "deepseek_v3": ("DeepseekV3ForCausalLM", "deepseek_v3", {**_LATENT, "scoring_func": "sigmoid"}),
    "glm4_moe": ("Glm4MoeForCausalLM", "glm4_moe", {
        "head_dim": 16, "attention_bias": True, "use_qk_norm": True, **FIRST_DENSE}),
    "glm4_moe_mtp": ("Glm4MoeForCausalLM", "glm4_moe", {
        "head_dim": 16, "attention_bias": True, "use_qk_norm": True, "num_nextn_predict_layers": 1, **FIRST_DENSE}),
    "kimi_k2": ("DeepseekV3ForCausalLM", "deepseek_v3", {**_LATENT, "scoring_func": "sigmoid"}),
    "nemotron_h": ("NemotronHForCausalLM", "nemotron_h", {
        "head_dim": 16, "hybrid_override_pattern": "M-*M", "mamba_head_dim": 16, "mamba_num_heads": 8,
        "n_groups": 2, "ssm_state_size": 8, "conv_kernel": 4, "layer_norm_epsilon": 1e-5, "mlp_hidden_act": "relu2",
        "rope_theta": 10000.0}),
    "gemma": ("GemmaForCausalLM", "gemma", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma2": ("Gemma2ForCausalLM", "gemma2", {"head_dim": 16, "tie_word_embeddings": True}),
    "gemma3": ("Gemma3ForCausalLM", "gemma3_text", {"head_dim": 16, "tie_word_embeddings": True, **_UNPADDED}),
    "gpt_oss": ("GptOssForCausalLM", "gpt_oss", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "olmoe": ("OlmoeForCausalLM", "olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4}),
    "nemotron": ("NemotronForCausalLM", "nemotron", {"head_dim": 16}),
    "gemma3_vl": ("Gemma3ForConditionalGeneration", "gemma3", _with_vision(
        {"tie_word_embeddings": True, **_UNPADDED}, num_hidden_layers=2, num_attention_heads=2, image_size=16,
        model_type="siglip_vision_model")),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", _with_vision(
        {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, out_hidden_size=64,
        fullatt_block_indexes=[1])),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", "qwen3_vl", _with_vision(
        {"rope_scaling": _MROPE, **_UNPADDED}, **_QWEN3_TOWER)),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", _with_vision(
        {"rope_scaling": _MROPE, "num_experts": 4, **EXPERTS, **_UNPADDED}, **_QWEN3_TOWER)),
    "glm4v_moe": ("Glm4vMoeForConditionalGeneration", "glm4v_moe", _with_vision(
        {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]}, "attention_bias": True,
         "use_qk_norm": False, **FIRST_DENSE}, out_hidden_size=64, image_size=16)),
    "mistral3": ("Mistral3ForConditionalGeneration", "mistral3", _with_vision(
        {"model_type": "mistral"}, num_hidden_layers=2, num_attention_heads=2, image_size=16,
        model_type="pixtral")),
}
# fmt: on

# Copies that a layer for multi-token prediction has in a checkpoint, of which Megatron-Bridge exports none.
SHARED = ("model.layers.*.embed_tokens.weight", "model.layers.*.shared_head.head.weight")
# family -> its configuration, as the checkpoint has it in Python
REMOTE = {
    "kimi_k2": "from transformers import DeepseekV3Config\n\n\nclass Config(DeepseekV3Config):\n    model_type = 'kimi_k2'\n",
    "nemotron_h": "from transformers import PretrainedConfig\n\n\nclass Config(PretrainedConfig):\n    model_type = 'nemotron_h'\n",
}


def build(rank: Rank, family: str, topology: "Topology", checkpoints: Path, store: str) -> None:
    """Joins a world of this topology and builds this rank's chunks, in bfloat16."""
    from topologies import join

    forget_attention_settings()
    rank.topology = topology
    join(topology, rank.number, store)
    import transformers
    from megatron.bridge import AutoBridge

    transformers.dynamic_module_utils.HF_MODULES_CACHE = str(checkpoints / f"modules-{rank.number}")
    checkpoint = checkpoints / family
    if rank.number == 0 and not checkpoint.exists():
        _write_checkpoint(checkpoint, family)
    torch.distributed.barrier()
    rank.bridge = AutoBridge.from_hf_pretrained(checkpoint, trust_remote_code=True)
    provider = rank.bridge.to_megatron_provider(load_weights=False)
    for name, value in _options(topology).items():
        setattr(provider, name, value)
    provider.should_pad_vocab = provider.vocab_size != _UNPADDED["vocab_size"]
    provider.finalize()
    with contextlib.redirect_stdout(None):
        rank.chunks = provider.provide_distributed_model(wrap_with_ddp=False, use_cpu_initialization=True, bf16=True)


def _options(topology: "Topology") -> "dict[str, Any]":
    return {
        "tensor_model_parallel_size": topology.tp,
        "pipeline_model_parallel_size": topology.pp,
        "virtual_pipeline_model_parallel_size": topology.vpp,
        "expert_model_parallel_size": topology.ep,
        "expert_tensor_parallel_size": topology.etp or topology.tp,
        "num_layers_in_first_pipeline_stage": topology.first_layers,
        "params_dtype": torch.bfloat16,
        "pipeline_dtype": torch.bfloat16,
        "perform_initialization": False,
        "make_vocab_size_divisible_by": 4,
        "apply_rope_fusion": False,
        "moe_permute_fusion": False,
        "gradient_accumulation_fusion": False,
    }


def _write_checkpoint(directory: Path, family: str) -> None:
    """Only names and shapes of its tensors are read."""
    import transformers
    from safetensors.torch import save_file

    architecture, model_type, special = FAMILIES[family]
    options = special if "text_config" in special else {**COMMON, **special}
    if family == "nemotron_h":
        config = transformers.PretrainedConfig(architectures=[architecture], **options)
        config.save_pretrained(directory)
        tensors = {
            name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in _shapes_of_nemotron_h(options).items()
        }
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    else:
        config = transformers.AutoConfig.for_model(model_type, **options)
        config.dtype = torch.bfloat16
        getattr(transformers, architecture)(config).to(torch.bfloat16).save_pretrained(directory)
    if options.get("num_nextn_predict_layers"):
        _add_mtp_layer(directory / "model.safetensors", options["num_hidden_layers"])
    if family in REMOTE:
        (directory / "configuration.py").write_text(REMOTE[family])
        written = json.loads((directory / "config.json").read_text())
        auto_map = {"AutoConfig": "configuration.Config", "AutoModelForCausalLM": f"modeling.{architecture}"}
        written |= {"model_type": family, "torch_dtype": "bfloat16", "auto_map": auto_map}
        (directory / "config.json").write_text(json.dumps(written))


def _add_mtp_layer(file: Path, number: int) -> None:
    """As published checkpoints have it: a layer after the last, with a projection and norms of its own, and copies of two tensors."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    last, own = f".layers.{number - 1}.", f".layers.{number}."
    tensors |= {name.replace(last, own): tensor.clone() for name, tensor in tensors.items() if last in name}
    whole = tensors["model.norm.weight"]
    tensors |= {f"model{own}{name}.weight": whole.clone() for name in ("enorm", "hnorm", "shared_head.norm")}
    tensors[f"model{own}eh_proj.weight"] = whole.new_zeros(len(whole), 2 * len(whole))
    tensors[f"model{own}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[f"model{own}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    save_file(tensors, file, {"format": "pt"})


def _shapes_of_nemotron_h(options: "dict[str, Any]") -> "dict[str, tuple[int, ...]]":
    """transformers 4.57 has no such model."""
    hidden, vocabulary, wide = options["hidden_size"], options["vocab_size"], options["intermediate_size"]
    heads, kernel = options["mamba_num_heads"], options["conv_kernel"]
    inner = heads * options["mamba_head_dim"]
    mixed = inner + 2 * options["n_groups"] * options["ssm_state_size"]
    queries = options["num_attention_heads"] * options["head_dim"]
    keys = options["num_key_value_heads"] * options["head_dim"]
    mixers: "dict[str, dict[str, tuple[int, ...]]]" = {
        "M": {
            **dict.fromkeys(("A_log", "D", "dt_bias"), (heads,)),
            "conv1d.weight": (mixed, 1, kernel),
            "conv1d.bias": (mixed,),
            "in_proj.weight": (inner + mixed + heads, hidden),
            "norm.weight": (inner,),
            "out_proj.weight": (hidden, inner),
        },
        "-": {"up_proj.weight": (wide, hidden), "down_proj.weight": (hidden, wide)},
        "*": {
            "q_proj.weight": (queries, hidden),
            **dict.fromkeys(("k_proj.weight", "v_proj.weight"), (keys, hidden)),
            "o_proj.weight": (hidden, queries),
        },
    }
    shapes = {"backbone.embeddings.weight": (vocabulary, hidden), "lm_head.weight": (vocabulary, hidden)}
    for number, kind in enumerate(options["hybrid_override_pattern"]):
        own = {f"backbone.layers.{number}.mixer.{name}": shape for name, shape in mixers[kind].items()}
        shapes |= {**own, f"backbone.layers.{number}.norm.weight": (hidden,)}
    return {**shapes, "backbone.norm_f.weight": (hidden,)}


def leave(rank: Rank) -> None:
    """Forgets the model, and leaves the world for another."""
    from megatron.core import parallel_state

    for name in ("exporter", "ruled", "chunks", "bridge"):
        rank.__dict__.pop(name, None)
    parallel_state.destroy_model_parallel()
    torch.distributed.destroy_process_group()


def fill(rank: Rank, version: int, alike: bool = False) -> None:
    """New random weights, different on every rank, in replicas, too: of which rank a tensor comes is seen. ``alike``: they are not."""
    number_of_rank = 0 if alike else rank.number
    with torch.no_grad():
        for number, chunk in enumerate(rank.chunks):
            for name, tensor in (*chunk.named_parameters(), *chunk.named_buffers()):
                if tensor.is_floating_point():
                    seed = hashlib.sha256(f"{version} {number_of_rank} {number} {name}".encode()).digest()
                    generator = torch.Generator().manual_seed(int.from_bytes(seed[:4], "little"))
                    tensor.copy_(torch.randn(tensor.shape, generator=generator))


def tensors_of(rank: Rank) -> "Iterator[tuple[str, torch.Tensor]]":
    """What Megatron-Bridge exports."""
    for weight in rank.bridge.export_hf_weights(rank.chunks, cpu=True, show_progress=False):
        yield weight.param_name, weight.weight


def exported(rank: Rank) -> "dict[str, torch.Tensor]":
    return {name: tensor.clone() for name, tensor in tensors_of(rank)}


def refusal(rank: Rank, *arguments: Any) -> str:
    """What building and exporting raise."""
    try:
        build(rank, *arguments)
        exported(rank)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def open_publisher(rank: Rank, socket: Path, model: str, by_generator: bool = False) -> None:
    """By the bridge, or by a generator of its tensors."""
    import lockstep

    exporter: "dict[str, Any]" = {"bridge": rank.bridge}
    if by_generator:
        exporter = {"recorded_from": lambda: tensors_of(rank)}
    rank.exporter = lockstep.Publisher.from_megatron(
        rank.chunks, **exporter, ignore=SHARED, socket=socket, model=model, call_timeout=30
    )


def open_by_rules(rank: Rank, socket: Path, model: str) -> None:
    """By the family's rules: the same model."""
    import lockstep

    config = rank.bridge.hf_pretrained.config
    rank.ruled = lockstep.Publisher.from_megatron(rank.chunks, config, socket=socket, model=model, call_timeout=30)


def publish_by_rules(rank: Rank, version: int) -> None:
    rank.ruled.publish(version=version)


def publish(rank: Rank, version: int) -> "tuple[int, int]":
    """The bytes that ranks exchanged: sent, and received."""
    rank.exporter.publish(version=version)
    return rank.exporter.stats["lockstep/bytes_sent"], rank.exporter.stats["lockstep/bytes_received"]


def has_experts(family: str) -> bool:
    """Whether it is a mixture."""
    special = FAMILIES[family][2]
    return "num_experts_per_tok" in special.get("text_config", special)
