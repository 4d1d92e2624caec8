"""AstraFlow's seams: its real rollout service, and trainers' ranks that call what its trainer calls. Run by
tests/frameworks.sh; AstraFlow is not on PyPI, so ASTRAFLOW_SOURCE names a checkout."""

import asyncio
import inspect
import os
import sys
from pathlib import Path
from typing import Any

import fsdp_trainer
import mbridge_loader
import pytest
import torch
import trainer
from harness import MODEL
from hf_models import published_tensors
from ranks import Rank, Ranks
from safetensors.torch import load_file
from topologies import Topology, topology_of

from lockstep.engine import wait_for
from lockstep.integrations.astraflow_trainer import WeightManager

SOURCE = os.environ.get("ASTRAFLOW_SOURCE", "")
pytestmark = pytest.mark.skipif(not SOURCE, reason="ASTRAFLOW_SOURCE names no checkout of AstraFlow")
sys.path += [SOURCE] if SOURCE else []


class Engine:
    """In place of AstraFlow's client of SGLang servers: what its service asks of it."""

    def __init__(self) -> None:
        self.asked: "list[str]" = []
        self.version = 0
        self.weights: "dict[str, torch.Tensor]" = {}
        self.before_load = lambda: None

    def pause_generation(self) -> None:
        self.asked.append("pause")

    def load_weights_from_path(self, path: str, use_lora: bool) -> None:
        assert not use_lora
        self.asked.append("load")
        self.before_load()
        self.weights = load_file(Path(path) / "model.safetensors")

    def continue_generation(self) -> None:
        self.asked.append("continue")

    def set_version(self, version: int) -> None:
        self.version = version

    def holds(self, tensors: "dict[str, torch.Tensor]") -> bool:
        return self.weights.keys() == tensors.keys() and all(
            torch.equal(self.weights[name], tensor) for name, tensor in tensors.items()
        )


@pytest.fixture
def service(cluster, monkeypatch):
    """AstraFlow's service with an engine, and an agent and a receiver."""
    from lockstep.integrations.astraflow_raas import RaaSManager

    agent = cluster.agent()
    monkeypatch.setenv("LOCKSTEP_EXPORT_SOCKET", str(agent.socket))
    monkeypatch.setenv("LOCKSTEP_MODEL", MODEL)
    monkeypatch.setenv("LOCKSTEP_ROOT", str(cluster.receiver(agent).root))
    manager = RaaSManager()
    manager._engines[MODEL] = Engine()
    return manager


def notify(service: Any, version: int, endpoint: str) -> Engine:
    result = asyncio.run(service.notify_version(MODEL, version, endpoint))
    assert result["ok"], result
    return service._engines[MODEL]


def open_fsdp(rank: Rank) -> str:
    rank.weights = WeightManager(None)
    rank.weights.initialize(rank.model.named_parameters(remove_duplicate=False), rank.number, rank.number)
    return rank.weights.get_sender_endpoint()


def offload_fsdp(rank: Rank, version: int) -> None:
    parameters = rank.model.named_parameters(remove_duplicate=False)
    assert rank.weights.offload(parameters, version=version, rank=rank.number, world_size=2) == {}
    rank.weights.wait_delta_ready()


@pytest.mark.parametrize("model", ("llama", "qwen2"))  # qwen2's head is tied
def test_an_engine_loads_what_transformers_saves_of_fsdps_ranks(service, checkpoints, model):
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(fsdp_trainer.build, checkpoints.get(model), fsdp_trainer.Layout((2,)))
        endpoint = ranks.call(open_fsdp)[0]
        for version in (1, 2):
            ranks.call(fsdp_trainer.train)
            ranks.call(offload_fsdp, version)
            engine = notify(service, version, endpoint)
            assert engine.holds(ranks.call(fsdp_trainer.saved)[0]) and engine.version == version
        assert engine.asked == ["pause", "load", "continue"] * 2


def open_megatron(rank: Rank) -> str:
    with mbridge_loader.exported(rank.chunks, rank.hf, rank.topology) as generator:
        layout = [(name, (list(tensor.shape), str(tensor.dtype).split(".")[-1])) for name, tensor in generator]
    rank.weights = WeightManager(None)
    rank.weights.initialize(iter(()), rank.number, rank.number, megatron_hf_meta=layout)
    return rank.weights.get_sender_endpoint()


def offload_megatron(rank: Rank, version: int) -> None:
    with mbridge_loader.exported(rank.chunks, rank.hf, rank.topology) as generator:
        rank.weights.offload(generator, version=version, rank=rank.number, world_size=4)


def test_an_engine_loads_what_megatrons_ranks_gather(service, checkpoints):
    with Ranks(topology_of("tp2pp2")) as ranks:
        ranks.call(trainer.build, checkpoints.get("llama"), te_names=True)
        endpoint = ranks.call(open_megatron)[0]
        for version, checkpoint in enumerate((checkpoints.get("llama", seed=1), checkpoints.get("llama", seed=2)), 1):
            ranks.call(trainer.load_by_mbridge, checkpoint)
            ranks.call(offload_megatron, version)
            assert notify(service, version, endpoint).holds(published_tensors(checkpoint))


def publish_one_more(manager: WeightManager, weights: torch.nn.Module, version: int) -> None:
    """And waits until the receiver has it."""
    with torch.no_grad():
        weights.weight.add_(1)
    manager.offload(weights.named_parameters(), version, 0, 1)
    wait_for(Path(os.environ["LOCKSTEP_ROOT"]) / MODEL, version, timeout=60)


def test_what_an_engine_loads_stays_however_many_versions_come_meanwhile(service):
    weights = torch.nn.Linear(8, 8)
    manager = WeightManager(None)
    manager.initialize(weights.named_parameters(), 0, 0)
    publish_one_more(manager, weights, 1)
    first = {name: tensor.detach().clone() for name, tensor in weights.named_parameters()}
    engine = service._engines[MODEL]
    engine.before_load = lambda: [publish_one_more(manager, weights, version) for version in (2, 3, 4)]
    notify(service, 1, manager.get_sender_endpoint())
    assert engine.holds(first) and engine.version == 1
    assert not list(Path(os.environ["LOCKSTEP_ROOT"]).glob(".loading-*"))
    manager.shutdown()


def test_an_engine_that_loads_a_later_version_than_it_was_told_of_answers_as_that_one(service):
    weights = torch.nn.Linear(8, 8)
    manager = WeightManager(None)
    manager.initialize(weights.named_parameters(), 0, 0)
    for version in (1, 2):
        with torch.no_grad():
            weights.weight.add_(1)
        manager.offload(weights.named_parameters(), version, 0, 1)
    notify(service, 2, manager.get_sender_endpoint())
    publish_one_more(manager, weights, 4)
    engine = notify(service, 3, manager.get_sender_endpoint())
    assert engine.holds(dict(weights.named_parameters())) and engine.version == 4
    assert service._weight_versions == {MODEL: 4}
    manager.shutdown()


def test_the_weight_manager_is_called_as_astraflows_is():
    from astraflow.core.weight_manager import WeightManager as AstraFlows

    for name, function in inspect.getmembers(WeightManager, inspect.isfunction):
        if not name.startswith("_"):
            theirs = inspect.signature(getattr(AstraFlows, name)).parameters
            assert list(inspect.signature(function).parameters) == list(theirs), name
