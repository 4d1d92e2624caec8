"""TransformerEngine's names and marks, put on models that were built with Megatron's local spec.

TransformerEngine needs a GPU to be built. What its spec changes for an exporter is names (norms fused into the linear
after them, experts grouped), MLA's down projections (whole on every rank), and the marks on parameters; these functions
make the same changes. Such a model can no longer be run.
"""

import torch
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_config import TransformerConfig


class _GroupedWeights(torch.nn.Module):
    """weight0..weightN-1, as a grouped linear has them."""

    def __init__(self, weights: "list[torch.nn.Parameter]") -> None:
        super().__init__()
        for i, weight in enumerate(weights):
            self.register_parameter(f"weight{i}", weight)


class _GroupedExperts(torch.nn.Module):
    """linear_fc1 and linear_fc2 of all local experts, as a grouped MLP has them."""

    def __init__(self, fc1: "list[torch.nn.Parameter]", fc2: "list[torch.nn.Parameter]") -> None:
        super().__init__()
        self.linear_fc1 = _GroupedWeights(fc1)
        self.linear_fc2 = _GroupedWeights(fc2)


def use_te_layout(layers: "list[torch.nn.Module]", config: TransformerConfig, *, explicit_comm: bool) -> None:
    """Renames and marks transformer layers. `explicit_comm`: experts are split, unknown to TE's grouped linear."""
    for layer in layers:
        if config.multi_latent_attention:
            _change_latent_attention(layer.self_attention, config)
        else:
            _fuse_norm(layer, "input_layernorm", layer.self_attention.linear_qkv)
        if hasattr(layer.mlp, "experts"):
            _group_experts(layer.mlp, config, explicit_comm)
        else:
            _fuse_norm(layer, "pre_mlp_layernorm", layer.mlp.linear_fc1)


def _change_latent_attention(attention: torch.nn.Module, config: TransformerConfig) -> None:
    if config.q_lora_rank is not None:
        _duplicate(attention.linear_q_down_proj, config.q_lora_rank, config.hidden_size)
        _fuse_norm(attention, "q_layernorm", attention.linear_q_up_proj)
    _duplicate(attention.linear_kv_down_proj, config.kv_lora_rank + config.qk_pos_emb_head_dim, config.hidden_size)
    _fuse_norm(attention, "kv_layernorm", attention.linear_kv_up_proj)


def _group_experts(mlp: torch.nn.Module, config: TransformerConfig, explicit_comm: bool) -> None:
    local = mlp.experts.local_experts
    allreduce = config.expert_model_parallel_size == 1
    fc1 = [_marked(expert.linear_fc1.weight, 0, 1, allreduce) for expert in local]
    fc2 = [_marked(expert.linear_fc2.weight, 0 if explicit_comm else 1, 1, allreduce) for expert in local]
    mlp.experts = _GroupedExperts(fc1, fc2)


def _fuse_norm(owner: torch.nn.Module, norm: str, linear: torch.nn.Module) -> None:
    """Moves a norm's weight into the linear that follows it."""
    linear.register_parameter("layer_norm_weight", getattr(owner, norm).weight)
    setattr(owner, norm, IdentityOp())


def _duplicate(linear: torch.nn.Module, rows: int, columns: int) -> None:
    """A whole weight on every rank, marked as split: that is how TE's duplicated mode marks it."""
    whole = torch.zeros(rows, columns, dtype=linear.weight.dtype)
    linear.weight = _marked(torch.nn.Parameter(whole), 0, 1, True)


def _marked(parameter: torch.nn.Parameter, dim: int, stride: int, allreduce: bool) -> torch.nn.Parameter:
    parameter.tensor_model_parallel = True
    parameter.partition_dim = dim
    parameter.partition_stride = stride
    parameter.allreduce = allreduce
    return parameter
