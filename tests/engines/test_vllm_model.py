"""show_model.py shows every side of a model."""

from show_model import model_of
from topologies import topology_of


def test_a_model_is_shown_as_a_checkpoint_megatron_and_vllm_have_it(vllm_checkpoints, vllm_loader):
    hf, local, te, vllm = model_of("llama", topology_of("tp2"), vllm_checkpoints, vllm_loader).values()
    assert "model.layers.3.mlp.up_proj.weight 96 64 torch.bfloat16" in hf
    assert "decoder.layers.3.mlp.linear_fc1.weight 96 64" in local
    assert "decoder.layers.3.mlp.linear_fc1.layer_norm_weight 64" in te
    assert "model.layers.3.mlp.gate_up_proj.weight 96 64 torch.bfloat16" in vllm
