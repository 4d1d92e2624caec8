"""Loads HuggingFace checkpoints into Megatron models through mbridge, the witness that owes nothing to Lockstep, and
exports them by its generator."""

import contextlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from mbridge import AutoBridge
from mbridge.core.bridge import Bridge
from mbridge.core.safetensor_io import SafeTensorIO
from mbridge.models.deepseek_v3 import DeepseekV3Bridge
from megatron_config import rope_theta
from megatron_models import VOCABULARY_DIVISIBLE_BY, megatron_on_cpu, padded_vocabulary
from topologies import Topology
from transformers import PretrainedConfig


class TinyDeepseekV3Bridge(DeepseekV3Bridge):
    """mbridge's DeepSeek-V3 for any number of layers, and without its reader, which needs a GPU."""

    def _get_safetensor_io(self, weights_path: str) -> SafeTensorIO:
        return SafeTensorIO(self._get_actual_hf_path(weights_path))

    def _build_base_config(self, **options: Any) -> Any:
        options.pop("max_position_embeddings", None)  # megatron-core 0.16 has no such option any more
        return super()._build_base_config(**options)

    def _convert_mtp_param(self, name: str) -> "list[str]":
        match = re.fullmatch(r"mtp\.layers\.(\d+)\.(.*)", name)
        layer, rest = self.config.num_layers + int(match[1]), match[2]
        if rest.startswith("transformer_layer."):
            return self._weight_name_mapping_mcore_to_hf(f"decoder.layers.{layer}.{rest.split('.', 1)[1]}")
        return [f"model.layers.{layer}.{rest.replace('final_layernorm', 'shared_head.norm')}"]


class TeNamed:
    """A chunk of the local spec seen under TransformerEngine's names, the only ones mbridge knows."""

    def __init__(self, chunk: torch.nn.Module) -> None:
        self.decoder = chunk.decoder
        state = {name: t for name, t in chunk.state_dict().items() if "_extra_state" not in name}
        self._state = {te_name(name, state.keys()): tensor for name, tensor in state.items()}

    def state_dict(self) -> "dict[str, torch.Tensor]":
        """The chunk's own tensors, renamed."""
        return self._state


# A norm of the local spec -> the linear that holds it under TransformerEngine's spec, if the layer has that.
_FUSED = (
    (r"(.*\.self_attention\.)(q|kv)_layernorm\.weight", "{1}linear_{2}_up_proj"),
    (r"(.*\.)pre_mlp_layernorm\.weight", "{1}mlp.linear_fc1"),
    (r"(.*\.)input_layernorm\.weight", "{1}self_attention.linear_qkv"),
)


def te_name(name: str, names: Any) -> str:
    """TransformerEngine's name of a parameter of the local spec; `names` are all of the chunk's."""
    expert = re.fullmatch(r"(.*\.mlp\.experts)\.local_experts\.(\d+)\.(linear_fc[12]\.weight)", name)
    if expert:
        return f"{expert[1]}.{expert[3]}{expert[2]}"
    for pattern, linear in _FUSED:
        match = re.fullmatch(pattern, name)
        if match:
            holder = linear.format(*(match[i] for i in range(match.re.groups + 1)))
            return f"{holder}.layer_norm_weight" if f"{holder}.weight" in names else name
    return name


def bridge_of(hf: PretrainedConfig, topology: Topology) -> Bridge:
    """The family's bridge; parallel state must be set up."""
    hf = hf.__class__.from_dict(hf.to_dict())
    if not hasattr(hf, "rope_theta"):
        hf.rope_theta = rope_theta(hf)
    if getattr(hf, "head_dim", 0) is None:
        hf.head_dim = hf.hidden_size // hf.num_attention_heads
    if hf.model_type == "deepseek_v3":
        hf.rope_scaling = None
        bridge = TinyDeepseekV3Bridge(hf, dtype=torch.bfloat16)
    else:
        bridge = AutoBridge.from_config(hf, dtype=torch.bfloat16)
    bridge.make_vocab_size_divisible_by = VOCABULARY_DIVISIBLE_BY
    bridge.vocab_size = hf.vocab_size
    bridge.padded_vocab_size = padded_vocabulary(hf.vocab_size, topology)
    return bridge


def load(chunks: "list[Any]", hf: PretrainedConfig, topology: Topology, directory: Path, te_names: bool) -> None:
    """Fills this rank's chunks from a checkpoint. All ranks call it together."""
    with warnings.catch_warnings(), megatron_on_cpu(), torch.no_grad():
        warnings.simplefilter("ignore")
        bridge = bridge_of(hf, topology)
        bridge.load_weights(chunks if te_names else [TeNamed(chunk) for chunk in chunks], str(directory))


@contextlib.contextmanager
def exported(chunks: "list[Any]", hf: PretrainedConfig, topology: Topology) -> "Iterator[Any]":
    """mbridge's generator of (name, whole tensor), of chunks with TransformerEngine's names; used inside the block. All
    ranks take it together."""
    with megatron_on_cpu(), torch.no_grad():
        yield bridge_of(hf, topology).export_weights(chunks)
