"""Which tensors of an adapter are exported: those that PEFT saves, whatever kind it is and whatever wraps the model."""

import copy

import peft
import pytest
import torch
from causal_models import small_config, small_model
from safetensors.torch import load_file
from test_wrappers import process_group, with_layers  # noqa: F401
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

import lockstep

TARGETS = {"target_modules": ["q_proj", "v_proj"]}
ADAPTERS = {
    "lora": peft.LoraConfig(**TARGETS),
    "saved-modules": peft.LoraConfig(**TARGETS, modules_to_save=["lm_head"]),
    "biases": peft.LoraConfig(**TARGETS, bias="lora_only"),
    "dora": peft.LoraConfig(**TARGETS, use_dora=True),
    "vera": peft.VeraConfig(**TARGETS, r=4),  # its projections are buffers that all layers share
    "vera-without-projections": peft.VeraConfig(**TARGETS, r=4, save_projection=False),
    "randlora": peft.RandLoraConfig(**TARGETS, r=4),  # saves what layers share once for each
    "vblora": peft.VBLoRAConfig(**TARGETS, num_vectors=16, vector_length=8, r=2),
    "ia3": peft.IA3Config(**TARGETS, feedforward_modules=[]),
    "tokens": peft.TrainableTokensConfig(token_indices=[1, 2]),
}


def with_wrapped_layers(wrap):
    def wrapped(model):
        with_layers(wrap)(model.get_base_model())
        return model

    return wrapped


WRAPPERS = {
    "none": lambda model: model,
    "compile": torch.compile,
    "ddp": DistributedDataParallel,
    "compiled layers": with_wrapped_layers(torch.compile),
    "ddp of checkpoints": lambda model: DistributedDataParallel(with_wrapped_layers(checkpoint_wrapper)(model)),
}


@pytest.mark.parametrize("kind", ADAPTERS)
def test_what_peft_saves_is_exported_whatever_wraps_the_model(tmp_path, kind):
    torch.manual_seed(3)
    model = peft.get_peft_model(small_model("llama").float(), ADAPTERS[kind])
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    for wrap in WRAPPERS.values():
        part = lockstep.adapter(wrap(copy.deepcopy(model)))
        found = {local.name: local.owner for local in part.locals()}
        assert found.keys() == saved.keys()
        assert [name for name, tensor in saved.items() if not torch.equal(found[name], tensor)] == []
        assert {tensor["name"] for tensor in part.describe()["tensors"]} == saved.keys()


def test_an_adapter_that_peft_computes_is_refused_by_its_name():
    config = peft.PromptTuningConfig(num_virtual_tokens=3, task_type="CAUSAL_LM")
    model = peft.get_peft_model(small_model("llama"), config)
    with pytest.raises(
        lockstep.BadDataError, match='"default" .PromptTuning.* PEFT saves prompt_embeddings .*Publisher'
    ):
        lockstep.adapter(model)


class LoRALinear(torch.nn.Module):
    """What Megatron-Bridge puts in a linear layer's place."""

    def __init__(self, linear):
        super().__init__()
        self.to_wrap = linear
        self.adapter = torch.nn.Linear(2, 2)


LoRALinear.__module__ = "megatron.bridge.peft.lora_layers"


def test_adapters_of_megatron_bridge_are_refused_by_the_modules_name():
    chunk = torch.nn.Sequential(LoRALinear(torch.nn.Linear(2, 2)))
    refusal = 'module "0" belongs to an adapter .megatron.bridge.*LoRALinear.*export_adapter_weights.*LoRAMerge'
    with pytest.raises(lockstep.BadDataError, match=refusal):
        lockstep.megatron(chunk, small_config("llama"))
    with pytest.raises(lockstep.BadDataError, match=refusal):
        lockstep.adapter([chunk])
