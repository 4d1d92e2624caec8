"""Wrappers change neither names nor dtypes: a wrapped transformers model is exported as it is without them."""

import copy

import peft
import pytest
import torch
import torch.distributed as dist
from causal_models import small_model
from safetensors.torch import load_file
from test_fsdp_names import exported
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.fsdp._flat_param import FlatParamHandle
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LevitConfig, LevitForImageClassification

import lockstep


@pytest.fixture(scope="module", autouse=True)
def process_group():
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)  # has no threads, which forks would lack
    yield
    dist.destroy_process_group()


def flattened(model, **options):
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), **options)


def unsharded(model):
    return flattened(model, sharding_strategy=ShardingStrategy.NO_SHARD, use_orig_params=True)


def with_layers(wrap):
    """Wraps each layer of the model's decoder."""

    def wrapped(model):
        model.model.layers = torch.nn.ModuleList(wrap(layer) for layer in model.model.layers)
        return model

    return wrapped


def sharded(model):
    for layer in model.model.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    return fully_shard(model, mesh=init_device_mesh("cpu", (1,)))


def with_compiled_decoder(model):
    model.model = torch.compile(model.model)
    return model


class Engine(torch.nn.Module):
    """What DeepSpeed's and other libraries' wrappers look like."""

    def __init__(self, model):
        super().__init__()
        self.module = model


Engine.__module__ = "deepspeed.runtime.engine"

WRAPPERS = {
    "ddp": DistributedDataParallel,
    "compile": torch.compile,
    "fsdp1": unsharded,
    "average": AveragedModel,
    "deepspeed": Engine,
    "checkpoints": with_layers(checkpoint_wrapper),
    "compiled layers": with_layers(torch.compile),
    "compiled decoder": with_compiled_decoder,
    "fsdp2": sharded,
    "ddp of compile": lambda model: DistributedDataParallel(torch.compile(model)),
    "compile of ddp of checkpoints": lambda model: torch.compile(
        DistributedDataParallel(with_layers(checkpoint_wrapper)(model))
    ),
    "compile of fsdp2 of checkpoints": lambda model: torch.compile(sharded(with_layers(checkpoint_wrapper)(model))),
    "layers of several": with_layers(lambda layer: checkpoint_wrapper(torch.compile(unsharded(layer)))),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of FSDP1's strategy
@pytest.mark.parametrize("model_type", ["mixtral", "deepseek_v3", "ernie4_5_moe"])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapped_model_is_exported_as_it_is_without(model_type, wrapper):
    plain = small_model(model_type).float()
    expected = lockstep.fsdp(plain, dtype=torch.bfloat16).describe()
    part = lockstep.fsdp(WRAPPERS[wrapper](copy.deepcopy(plain)), dtype=torch.bfloat16)
    assert part.describe() == expected
    same = dict(plain.named_parameters())
    for local in part.locals():
        assert local.name not in same or torch.equal(local.owner, same[local.name]), local.name


def test_a_tied_head_of_shards_that_came_apart_from_its_embedding_is_refused():
    with torch.device("meta"):
        model = small_model("ernie4_5_moe")
    model = sharded(model.to_empty(device="cpu"))
    with pytest.raises(lockstep.BadDataError, match='"lm_head.weight": .* ties it to "model.embed_tokens.weight"'):
        lockstep.fsdp(model).describe()


def test_a_submodule_that_is_really_called_module_keeps_its_name(tmp_path):
    sizes = {"hidden_sizes": [16, 16, 16], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [4, 4, 4]}
    model = LevitForImageClassification(LevitConfig(image_size=32, **sizes))
    model.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert sum(".module." in name for name in saved) > 20
    for found in (exported(model), exported(DistributedDataParallel(model))):
        assert found.keys() == saved.keys() and all(torch.equal(found[name], tensor) for name, tensor in saved.items())


@pytest.mark.parametrize("use_orig_params", [False, True])
def test_parameters_that_fsdp1_flattens_are_refused_by_the_modules_name(monkeypatch, use_orig_params):
    model = torch.nn.Sequential(flattened(torch.nn.Linear(2, 2), use_orig_params=use_orig_params))
    monkeypatch.setattr(FlatParamHandle, "uses_sharded_strategy", True)  # as it is with more ranks than one
    with pytest.raises(lockstep.BadDataError, match='"0._flat_param" is flattened by FSDP1; use fully_shard'):
        lockstep.fsdp(model).describe()


def test_a_model_under_fsdp1_does_not_hinder_a_publisher_of_gathered_tensors(monkeypatch):
    whole = small_model("llama").state_dict()
    model = with_layers(flattened)(small_model("llama"))
    monkeypatch.setattr(FlatParamHandle, "uses_sharded_strategy", True)
    with pytest.raises(lockstep.BadDataError, match="is flattened by FSDP1"):
        lockstep.fsdp(model).describe()
    with pytest.raises(lockstep.UnavailableError, match="/nowhere"):
        lockstep.Publisher.in_place(whole, model="actor", socket="/nowhere", connect_timeout=0.001)


def test_what_is_no_module_is_refused_with_what_to_give():
    twice = torch.compile(torch.compile(small_model("llama")))
    for take in (lockstep.fsdp, lockstep.adapter, lambda model: lockstep.megatron([model], {})):
        for given in (twice, small_model("llama").state_dict(), None):
            if not isinstance(given, torch.nn.Module):
                with pytest.raises(lockstep.BadDataError, match="is no torch.nn.Module; give the model itself"):
                    take(given)


class Classifier(torch.nn.Module):
    """No wrapper: it has parameters of its own beside a transformers model."""

    def __init__(self, model):
        super().__init__()
        self.backbone = model
        self.score = torch.nn.Linear(4, 1)


def test_a_module_around_a_model_that_has_other_names_in_checkpoints_is_refused():
    with pytest.raises(lockstep.BadDataError, match='"backbone" of the Classifier is a MixtralForCausalLM.*itself'):
        lockstep.fsdp(Classifier(small_model("mixtral"))).describe()
    description = lockstep.fsdp(Classifier(small_model("llama"))).describe()
    assert {"backbone.model.norm.weight", "score.bias"} <= {tensor["name"] for tensor in description["tensors"]}


@pytest.mark.parametrize("wrap", [lambda model: model, DistributedDataParallel, torch.compile])
def test_a_peft_model_is_refused_and_told_what_takes_it(wrap):
    model = peft.get_peft_model(small_model("llama"), peft.LoraConfig(target_modules=["q_proj"]))
    with pytest.raises(
        lockstep.BadDataError, match="belongs to an adapter .peft.*: export the adapter.*from_adapter.*merge_and_unload"
    ):
        lockstep.Publisher.from_fsdp(wrap(model), socket="/nowhere", model="actor")
    description = lockstep.fsdp(model.merge_and_unload()).describe()
    assert len(description["tensors"]) == len(list(small_model("llama").parameters()))


def test_parameters_that_zero_3_emptied_are_refused_by_name():
    model = torch.nn.Linear(3, 2)
    weight, model.weight.data = model.weight, torch.empty(0)
    weight.ds_id, weight.ds_shape = 0, torch.Size([2, 3])  # as deepspeed.zero marks them
    refusal = 'tensor "weight": DeepSpeed ZeRO-3 has partitioned it, and nothing of its .2, 3. is left in it; gather it'
    with pytest.raises(lockstep.BadDataError, match=refusal):
        lockstep.fsdp(model).describe()
    with pytest.raises(lockstep.BadDataError, match=refusal):
        lockstep.Publisher.in_place(model.named_parameters(), model="actor", socket="/nowhere")
    with pytest.raises(lockstep.BadDataError, match=refusal):
        lockstep.Publisher.from_tensors(model.named_parameters(), socket="/nowhere", model="actor")
    weight.data = torch.ones(2, 3)
    assert lockstep.fsdp(model).describe()["tensors"][0]["shape"] == [2, 3]
