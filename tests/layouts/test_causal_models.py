"""from_fsdp over causal models of the installed transformers: a receiver holds, bit for bit, what save_pretrained writes.

A few of them, drawn by a seed; `tests/sweep.sh --all` takes all.
"""

import os
import random

import pytest
import torch
from causal_models import MODEL_TYPES, small_model
from harness import MODEL
from safetensors.torch import load_file
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import lockstep

# What is not exported, with transformers' own reason.
REASONS = {
    "gemma3n": "TimmWrapperModel requires the timm library",
    "gemma4_assistant": "hidden_size_per_layer_input must be 0",  # its default configuration breaks its own rule
    "hrm_text": r"mlp.gate_up_proj.weight\" is no part of one parameter: transformers computes it",  # joins two
    "musicgen": "'MusicgenConfig' object has no attribute 'dropout'",  # the model wants another configuration than is mapped
    "musicgen_melody": "'MusicgenMelodyConfig' object has no attribute 'dropout'",
}

_EXPORTED = [name for name in MODEL_TYPES if name not in REASONS]
_COUNT = os.environ.get("LOCKSTEP_SWEEP", "20")
_SEED = os.environ.get("LOCKSTEP_SWEEP_SEED", "15")
CHOSEN = _EXPORTED if _COUNT == "all" else sorted(random.Random(_SEED).sample(_EXPORTED, int(_COUNT)))


@pytest.fixture(scope="module")
def daemons(module_cluster):
    agent = module_cluster.agent()
    return agent, module_cluster.receiver(agent)


def wrapped(model):
    """As trainers have it: each layer is wrapped for activation checkpointing, the model by torch.compile."""
    for layers in [module for module in model.modules() if isinstance(module, torch.nn.ModuleList)]:
        layers._modules.update({name: checkpoint_wrapper(layer) for name, layer in layers._modules.items()})
    return torch.compile(model)


def publish_and_compare(model_type, daemons, directory):
    agent, receiver = daemons
    model = small_model(model_type)
    model.save_pretrained(directory)
    with lockstep.Publisher.from_fsdp(wrapped(model), socket=agent.socket, model=MODEL) as exporter:
        exporter.publish(version=1)
        receiver.wait_for(load_file(directory / "model.safetensors"))


@pytest.mark.parametrize("model_type", CHOSEN)
def test_a_receiver_holds_what_transformers_saves(daemons, tmp_path, model_type):
    publish_and_compare(model_type, daemons, tmp_path)


@pytest.mark.parametrize("model_type", REASONS)
def test_what_is_not_exported_has_transformers_own_reason(daemons, tmp_path, model_type):
    with pytest.raises(Exception, match=REASONS[model_type]):
        publish_and_compare(model_type, daemons, tmp_path)


def test_few_models_are_not_exported():
    assert len(MODEL_TYPES) > 150 and len(REASONS) <= 0.03 * len(MODEL_TYPES)
