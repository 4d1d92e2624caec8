"""Publisher and transformers models: what their checkpoints have, or a refusal that says how to give it."""

import pytest
import torch
from causal_models import small_model
from harness import MODEL
from safetensors.torch import load_file
from test_wrappers import Engine

import lockstep

# Stacked experts; stacked and renamed ones; two tensors joined; a tie saved by its other name; names in memory alike.
MODELS = ["qwen3_moe", "mixtral", "deepseek_v3", "hrm_text", "camembert", "gpt_oss", "llama"]


@pytest.fixture(scope="module")
def daemons(module_cluster):
    agent = module_cluster.agent()
    return agent, module_cluster.receiver(agent)


@pytest.mark.parametrize("model_type", MODELS)
def test_a_publisher_of_saved_tensors_publishes_what_transformers_saves(daemons, tmp_path, model_type):
    agent, receiver = daemons
    model = small_model(model_type)
    wrapped = Engine(torch.compile(model))
    with lockstep.Publisher.in_place(lockstep.saved_tensors(wrapped), model=MODEL, socket=agent.socket) as publisher:
        for version in (1, 2):
            with torch.no_grad():
                model.get_input_embeddings().weight.add_(version)
                list(model.parameters())[-1].add_(version)
            publisher.publish(version=version, tensors=lockstep.saved_tensors(wrapped))
            model.save_pretrained(tmp_path)
            receiver.wait_for(load_file(tmp_path / "model.safetensors"))


def from_saved(module, **options):
    return lockstep.Publisher.from_tensors(lambda: lockstep.saved_tensors(module), **options)


def from_module(module, **options):
    return lockstep.Publisher.from_module(Engine(torch.compile(module)), **options)


WAYS = [(name, from_module) for name in MODELS if name != "hrm_text"] + [
    ("hrm_text", from_saved),
    ("mixtral", from_saved),
]


@pytest.mark.parametrize("model_type, way", WAYS)
def test_a_module_is_published_as_transformers_saves_it(daemons, tmp_path, model_type, way):
    agent, receiver = daemons
    model = small_model(model_type)
    with way(model, model=MODEL, socket=agent.socket) as publisher:
        for step in (1, 2):
            with torch.no_grad():
                model.get_input_embeddings().weight.add_(step)
            assert publisher.publish(step).version == step
            model.save_pretrained(tmp_path)
            receiver.wait_for(load_file(tmp_path / "model.safetensors"))


def test_a_module_whose_tensors_are_computed_for_its_checkpoint_is_refused_with_what_to_give():
    with pytest.raises(lockstep.BadDataError, match="transformers computes it; publish .*saved_tensors"):
        from_module(small_model("hrm_text"), model=MODEL, socket="/nowhere")


GIVEN = {
    "state_dict": lambda model: model.state_dict(),
    "copies": lambda model: {
        name: tensor.clone() for name, tensor in lockstep.without_ties(model.state_dict()).items()
    },
    "named_parameters": lambda model: model.named_parameters(),
    "descriptions": lambda model: [lockstep.TensorMeta(n, "BF16", tuple(p.shape)) for n, p in model.named_parameters()],
}


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("model_type", ["mixtral", "deepseek_v3", "gpt_neox"])
def test_what_a_model_has_only_in_memory_is_refused_by_name(model_type, given):
    model = small_model(model_type)
    refusal = "(mlp.gate.weight|experts.gate_up_proj|lm_head.weight).*in memory.*lockstep.saved_tensors"
    with pytest.raises(lockstep.BadDataError, match=refusal):
        lockstep.Publisher.in_place(GIVEN[given](model), model=MODEL, socket="/nowhere")
    if given != "descriptions":
        with pytest.raises(lockstep.BadDataError, match=refusal):
            lockstep.Publisher.from_tensors(lambda: GIVEN[given](model), socket="/nowhere", model=MODEL)


def test_a_model_that_has_the_same_name_for_something_else_does_not_hinder():
    other = small_model("mixtral")  # its mlp.gate.weight is block_sparse_moe.gate.weight in checkpoints
    with pytest.raises(lockstep.UnavailableError, match="/nowhere"):
        tensors = lockstep.saved_tensors(small_model("qwen3_moe"))
        lockstep.Publisher.in_place(tensors, model=MODEL, socket="/nowhere", connect_timeout=0.001)
    name = "model.layers.0.mlp.gate.weight"
    assert tensors[name].shape == other.get_parameter(name).shape


@pytest.mark.parametrize("model_type", ["llama", "gpt_oss"])  # one stacks experts, as its checkpoints do
def test_a_state_dict_as_checkpoints_have_it_is_not_refused(model_type):
    with pytest.raises(lockstep.UnavailableError, match="/nowhere"):
        lockstep.Publisher.in_place(
            small_model(model_type).state_dict(), model=MODEL, socket="/nowhere", connect_timeout=0.001
        )
