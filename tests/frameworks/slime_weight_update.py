"""slime with Lockstep in place of NCCL, on real daemons: slime's own gathering and conversion of real Megatron models, and
stand-ins for SGLang's servers. Run by tests/frameworks.sh; slime's package on PyPI is a placeholder, so SLIME_SOURCE names
a checkout."""

import os
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import trainer
from hf_models import published_tensors
from ranks import Rank, Ranks
from safetensors.torch import load_file
from topologies import topology_of

SOURCE = os.environ.get("SLIME_SOURCE", "")
pytestmark = pytest.mark.skipif(not SOURCE, reason="SLIME_SOURCE names no checkout of slime")


class Engine:
    """A server, as a Ray actor's handle looks: it writes down what it is asked for, and loads what it is told to."""

    def __init__(self) -> None:
        self.calls: "list[str]" = []
        self.weights: "dict[str, torch.Tensor]" = {}
        self.weight_version = ""

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda **arguments: self._called(method, **arguments))

    def _called(self, method: str, model_path: str = "", weight_version: str = "") -> "str | None":
        if method == "get_url":
            return "http://127.0.0.1:30000"
        self.calls.append(method)
        if model_path:
            self.weights = load_file(Path(model_path) / "model.safetensors")
            self.weight_version = weight_version
        return None


class Wrapped(torch.nn.Module):
    """As Megatron's wrappers of precision and data parallelism do it; slime's names begin with both."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module, self.config = module, module.config


class Unpinned:
    """PyTorch for slime's backups, which pins their memory for a GPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def empty_like(tensor: torch.Tensor, device: torch.device, pin_memory: bool) -> torch.Tensor:
        assert pin_memory
        return torch.empty_like(tensor, device=device)


def stand_in(name: str, **members: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


def build(rank: Rank, checkpoint: Path, dtype: torch.dtype, settings: "dict[str, Any]") -> None:
    """slime's backup and updater as its actor makes them, on this rank's part of the model."""
    sys.path.insert(0, SOURCE)
    unused = dict.fromkeys(("MultiprocessingSerializer", "FlattenedTensorBucket"))
    stand_in("slime.backends.megatron_utils.sglang", monkey_patch_torch_reductions=lambda: None, **unused)
    from slime.backends.megatron_utils.update_weight.common import named_params_and_buffers
    from slime.utils import accelerator, distributed_utils, tensor_backper

    import lockstep.integrations.slime as adapter

    accelerator.current_device, accelerator.synchronize = lambda: torch.device("cpu"), lambda: None
    adapter.ray = SimpleNamespace(get=list)
    tensor_backper.torch = Unpinned()
    distributed_utils.init_gloo_group()
    trainer.build(rank, checkpoint, te_names=True)
    hf = rank.hf
    args = Namespace(
        hf_checkpoint=str(checkpoint),
        vocab_size=hf.vocab_size,
        hidden_size=hf.hidden_size,
        kv_channels=getattr(hf, "head_dim", None),
        num_attention_heads=hf.num_attention_heads,
        num_experts=getattr(hf, "num_experts", None),
        q_lora_rank=None,
        num_query_groups=hf.num_key_value_heads,
        update_weight_buffer_size=50_000,
        **settings,
    )
    model = [Wrapped(Wrapped(chunk.to(dtype))) for chunk in rank.chunks]
    rank.backuper = tensor_backper.TensorBackuper.create(lambda: named_params_and_buffers(args, model), single_tag=None)
    rank.backuper.backup("actor")
    rank.updater = adapter.UpdateWeightByLockstep(
        args,
        model,
        lambda: rank.backuper.get("actor"),
        model_name=type(hf).__name__.lower(),
        quantization_config=None,
    )
    rank.engines = [Engine(), Engine()]
    rank.updater.connect_rollout_engines(rank.engines, None, engine_gpu_counts=[1, 1])
    rank.updater.weight_version = 6  # as slime does where training resumes


def train(rank: Rank, checkpoint: Path) -> None:
    """The backup follows, as after each of slime's steps."""
    trainer.load_by_mbridge(rank, checkpoint)
    rank.backuper.backup("actor")


def update(rank: Rank) -> "list[Any]":
    """What each server was asked and has then."""
    rank.updater.update_weights()
    return [(engine.calls, engine.weight_version, engine.weights) for engine in rank.engines]


def update_without_the_iterator(rank: Rank) -> "list[Any]":
    rank.updater._iterator = None
    return update(rank)


def fail_to_update(rank: Rank) -> "tuple[str, str]":
    """One rank's backup has no memory."""
    if rank.number == 1:
        rank.backuper.get("actor").clear()
    return trainer.refusal(rank, update)


def open_daemons(cluster) -> "dict[str, Any]":
    """What lockstep.yaml says of them."""
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    return {"lockstep_socket": str(agent.socket), "lockstep_root": str(receiver.root), "lockstep_timeout_s": 60}


def check_servers_follow(ranks: Ranks, checkpoints: "list[Path]", update: Any) -> None:
    load = ["pause_generation", "flush_cache", "update_weights_from_disk", "continue_generation"]
    for count, checkpoint in enumerate(checkpoints, start=1):
        ranks.call(train, checkpoint)
        told, *others = ranks.call(update)
        expected = published_tensors(checkpoint)
        for calls, weight_version, weights in told:
            assert (calls, weight_version) == (load * count, str(6 + count))
            assert weights.keys() == expected.keys()
            assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
        assert all(calls == [] for engines in others for calls, _, _ in engines)


def test_servers_load_what_slime_gathers_of_a_model_under_tensor_and_pipeline_parallelism(cluster, checkpoints):
    settings = open_daemons(cluster)
    both = [checkpoints.get("qwen3", seed=seed) for seed in (1, 2)]
    with Ranks(topology_of("tp2pp2")) as ranks:
        ranks.call(build, both[0], torch.bfloat16, settings)
        check_servers_follow(ranks, both, update)


@pytest.mark.parametrize(
    ("model", "topology", "dtype"),
    [("qwen3", "tp2pp2", torch.float32), ("qwen2", "tp2pp2", torch.bfloat16), ("qwen3_moe", "ep2etp2", torch.bfloat16)],
)
def test_with_shards_servers_load_what_each_rank_copies_of_its_own_shards(cluster, checkpoints, model, topology, dtype):
    settings = open_daemons(cluster) | {"lockstep_shards": True}
    both = [checkpoints.get(model, seed=seed) for seed in (1, 2)]
    with Ranks(topology_of(topology)) as ranks:
        ranks.call(build, both[0], dtype, settings)
        check_servers_follow(ranks, both, update_without_the_iterator)
        failures = ranks.call(fail_to_update)
        assert [kind for kind, _ in failures].count("BadDataError") == 1
        assert all("has no memory" in why for kind, why in failures), failures


def test_its_initialisation_puts_the_updater_where_slimes_actor_looks(monkeypatch):
    from lockstep.integrations import slime as adapter

    source = (Path(SOURCE) / "slime/backends/megatron_utils/actor.py").read_text()
    assert (
        "update_weight_cls = UpdateWeightFromDistributed" in source
    )  # by its name in the module, and after init(args)
    assert source.index("        init(args)") < source.index("update_weight_cls = UpdateWeightFromDistributed")
    actor = ModuleType("slime.backends.megatron_utils.actor")
    package = ModuleType("slime.backends.megatron_utils")
    package.actor = actor
    for name, module in {
        "slime": package,
        "slime.backends": package,
        package.__name__: package,
        actor.__name__: actor,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    args = Namespace(
        colocate=False,
        update_weight_mode="full",
        update_weight_transport="nccl",
        offload_train=False,
        lockstep_shards=True,
    )
    adapter.install(args)
    assert actor.UpdateWeightFromDistributed is adapter.UpdateWeightByLockstep
    args.offload_train = True
    with pytest.raises(Exception, match="which --offload-train destroys"):
        adapter.install(args)
    args.update_weight_transport = "disk"
    with pytest.raises(Exception, match="takes the place of slime's NCCL"):
        adapter.install(args)
