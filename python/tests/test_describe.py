"""Descriptions of modules: names, forms, places, and what transformers' modules are made of."""

import dataclasses

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import lockstep
from lockstep.engine import DescribeOptions, _memory
from lockstep.engine._options import DescribeKeywords
from lockstep.engine._parameters import parameters_of


def tiny(family: str, **options) -> torch.nn.Module:
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model(family, **{**shape, "num_key_value_heads": 2, "vocab_size": 32, **options})
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def by_name(description: dict) -> dict:
    return {own["name"]: own for own in description["parameters"]}


def test_a_transformers_model_is_its_checkpoints_tensors_and_tied_ones_are_there_once():
    names = by_name(lockstep.describe(tiny("llama", tie_word_embeddings=True)))
    assert "model.embed_tokens.weight" in names and "lm_head.weight" not in names
    assert names["model.layers.0.self_attn.k_proj.weight"]["shape"] == [8, 16]
    assert {own["dtype"] for own in names.values()} == {"BF16"}
    for name, own in names.items():
        shape, zeros = own["shape"], [0] * len(own["shape"])
        assert own["slices"] == [{"tensor": name, "from": zeros, "shape": shape, "at": zeros}]
        assert "strides" not in own and "padding" not in own


def test_parameters_lie_apart_and_in_the_memory():
    described = lockstep.describe(tiny("llama"))
    end = 0
    for own in sorted(described["parameters"], key=lambda own: own["offset"]):
        assert own["offset"] >= end and own["offset"] % 256 == 0
        end = own["offset"] + 2 * torch.Size(own["shape"]).numel()
    assert end <= described["memories"][0]


def test_experts_that_transformers_stacks_name_their_checkpoint_tensors():
    options = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "head_dim": 4}
    names = by_name(lockstep.describe(tiny("qwen3_moe", **options)))
    stack = names["model.layers.1.mlp.experts.gate_up_proj"]
    assert stack["shape"] == [4, 16, 16] and len(stack["slices"]) == 8
    assert {
        "tensor": "model.layers.1.mlp.experts.3.up_proj.weight",
        "from": [0, 0],
        "shape": [8, 16],
        "at": [3, 8, 0],
    } in stack["slices"]
    norm = names["model.norm.weight"]
    assert norm["slices"] == [{"tensor": "model.norm.weight", "from": [0], "shape": [16], "at": [0]}]


def test_buffers_that_checkpoints_have_are_described_and_others_are_not():
    module = torch.nn.Linear(2, 2)
    module.register_buffer("e_score_correction_bias", torch.zeros(4))
    module.register_buffer("inv_freq", torch.zeros(4), persistent=False)
    assert set(by_name(lockstep.describe(module))) == {"weight", "bias", "e_score_correction_bias"}


def test_strides_are_described_where_elements_do_not_lie_in_order():
    module = torch.nn.Module()
    module.turned = torch.nn.Parameter(torch.zeros(4, 3).t())
    assert by_name(lockstep.describe(module))["turned"]["strides"] == [1, 3]


def test_other_modules_give_slices_and_padding_of_each_parameter():
    module = torch.nn.Linear(2, 4, bias=False)
    slices = {"weight": [{"tensor": "w", "from": [1, 0], "shape": [3, 2], "at": [0, 0]}]}
    padding = {"weight": [{"at": [3, 0], "shape": [1, 2]}]}
    own = by_name(lockstep.describe(module, slices=slices, padding=padding))["weight"]
    assert (own["slices"], own["padding"]) == (slices["weight"], padding["weight"])
    with pytest.raises(lockstep.BadDataError, match='parameter "bias": give its slices'):
        lockstep.describe(torch.nn.Linear(2, 4), slices=slices, padding=padding)


@pytest.mark.parametrize(
    "tensor, problem",
    [
        (torch.zeros(1).expand(4), "share memory"),
        (torch.zeros(4, 4).to_sparse(), "sparse"),
        (torch.zeros(4, dtype=torch.complex128), "no dtype"),
    ],
)
def test_a_tensor_that_cannot_be_written_is_refused_by_name(tensor, problem):
    module = torch.nn.Module()
    module.odd = torch.nn.Parameter(tensor, requires_grad=False)
    with pytest.raises(lockstep.BadDataError, match=f'"odd".*{problem}'):
        lockstep.describe(module)


def test_parameters_that_lie_nowhere_are_refused():
    model = tiny("llama")
    parameters = parameters_of(model, DescribeOptions())
    with pytest.raises(lockstep.BadDataError, match="meta"):
        _memory.Memory(model, parameters)


def test_keywords_are_the_options():
    assert set(DescribeKeywords.__annotations__) == {field.name for field in dataclasses.fields(DescribeOptions)}
