"""Real Megatron-core models, tiny and on CPU: built for their parameters (names, shards, dtypes), not to be run."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_decoder_block_spec,
    get_gpt_layer_local_spec,
    get_gpt_mtp_block_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron_config import rope_theta, rotary_share, transformer_config
from te_layout import use_te_layout
from topologies import Topology
from transformers import PretrainedConfig

VOCABULARY_DIVISIBLE_BY = 4


@contextlib.contextmanager
def megatron_on_cpu() -> "Iterator[None]":
    """Lets Megatron build where there is neither CUDA nor TransformerEngine.

    Three names are replaced and put back: `torch.cuda.current_device` (expert_bias buffers), `Tensor.cuda` (copies of
    the embedding on later stages), and `multi_latent_attention.HAVE_TE`, which 0.16 leaves true without
    TransformerEngine.
    """
    saved = torch.cuda.current_device, torch.Tensor.cuda, multi_latent_attention.HAVE_TE
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.Tensor.cuda = lambda self, *arguments, **options: self
    multi_latent_attention.HAVE_TE = False
    try:
        yield
    finally:
        torch.cuda.current_device, torch.Tensor.cuda, multi_latent_attention.HAVE_TE = saved


def padded_vocabulary(vocabulary: int, topology: Topology) -> int:
    """The vocabulary as Megatron-LM pads it, so that it divides over tensor ranks."""
    multiple = VOCABULARY_DIVISIBLE_BY * topology.tp
    return -(-vocabulary // multiple) * multiple


def build_chunks(hf: PretrainedConfig, topology: Topology, te_names: bool = False) -> "list[GPTModel]":
    """This rank's model chunks, one per virtual stage; `te_names`: as TransformerEngine's spec lays them out."""
    config = transformer_config(hf, topology)
    with megatron_on_cpu():
        chunks = [_build_chunk(hf, topology, config, stage) for stage in range(topology.vpp or 1)]
    for chunk in chunks:
        if hf.model_type == "glm4":
            _add_glm4_norms(chunk, config)
        chunk.bfloat16()  # norms of the local spec do not do it; trainers' precision wrappers do this, too
        if te_names:
            expert_ranks = (topology.etp or topology.tp) * topology.ep
            use_te_layout(transformer_layers(chunk), config, explicit_comm=expert_ranks > 1)
    return chunks


class NoAttentionKernel(torch.nn.Module):
    """Stands in the kernel's place (which has no parameters): the local one takes neither MLA nor cp > 1."""

    def __init__(self, **_: Any) -> None:
        super().__init__()


def _without_kernel(spec: ModuleSpec) -> ModuleSpec:
    spec.submodules.self_attention.submodules.core_attention = NoAttentionKernel
    return spec


def _build_chunk(hf: PretrainedConfig, topology: Topology, config: TransformerConfig, stage: int) -> GPTModel:
    vp_stage = None if topology.vpp is None else stage
    block = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage)
    kernel_fits = not config.multi_latent_attention and topology.cp == 1
    if not kernel_fits:
        block.layer_specs = [_without_kernel(spec) for spec in block.layer_specs]
    return GPTModel(
        config=config,
        transformer_layer_spec=block,
        vocab_size=padded_vocabulary(hf.vocab_size, topology),
        max_sequence_length=hf.max_position_embeddings,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        share_embeddings_and_output_weights=bool(hf.tie_word_embeddings),
        position_embedding_type="rope",
        rotary_percent=rotary_share(hf),
        rotary_base=int(rope_theta(hf)),
        mtp_block_spec=_mtp_spec(config, block, vp_stage, kernel_fits) if config.mtp_num_layers else None,
        vp_stage=vp_stage,
    )


def _mtp_spec(config: TransformerConfig, block: Any, vp_stage: "int | None", kernel_fits: bool) -> Any:
    """MTP layers contain a layer like the decoder's last; a stage without decoder layers has none to copy."""
    inner = block
    if not block.layer_specs:
        inner = get_gpt_layer_local_spec(
            num_experts=config.num_moe_experts,
            qk_layernorm=config.qk_layernorm,
            multi_latent_attention=config.multi_latent_attention,
            normalization="RMSNorm",
        )
        if not kernel_fits:
            inner = _without_kernel(inner)
    return get_gpt_mtp_block_spec(config, inner, use_transformer_engine=False, vp_stage=vp_stage)


def transformer_layers(chunk: GPTModel) -> "list[torch.nn.Module]":
    """Every transformer layer of a chunk: the decoder's, then those inside MTP layers."""
    layers = list(chunk.decoder.layers)
    if getattr(chunk, "mtp", None) is not None:
        layers += [layer.transformer_layer for layer in chunk.mtp.layers]
    return layers


def _add_glm4_norms(chunk: GPTModel, config: TransformerConfig) -> None:
    """GLM4's two extra norms, under the names its trainers use; Megatron-core has no option for them."""
    for layer in transformer_layers(chunk):
        for name in ("post_self_attn_layernorm", "post_mlp_layernorm"):
            norm = torch.nn.RMSNorm(config.hidden_size, eps=config.layernorm_epsilon, dtype=config.params_dtype)
            setattr(layer, name, norm)


def weights(chunk: GPTModel) -> "list[tuple[str, torch.Tensor]]":
    """A chunk's parameters, and the buffers that belong to a checkpoint."""
    biases = [(name, buffer) for name, buffer in chunk.named_buffers() if name.endswith(".expert_bias")]
    return [*chunk.named_parameters(), *biases]
