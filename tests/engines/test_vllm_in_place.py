"""Modules that vLLM built follow a training in place: a version is what vLLM's own loader makes of its checkpoint."""

import contextlib

import pytest
import torch
from conformance_server import ConformanceServer
from harness import MODEL
from safetensors.torch import load_file
from tiny_trainer import Trainer
from vllm_checkpoints import OVERRIDES

_VERSIONS = 4


@pytest.fixture
def training(cluster):
    """Begins a training that a receiver follows for engines, with a server to pause; the trainer, the first checkpoint,
    and the engines' socket."""
    with contextlib.ExitStack() as stack:

        def begin(model: str):
            agent = cluster.agent()
            socket = cluster.directory / "engine.sock"
            trainer = Trainer(model, cluster.directory / "checkpoints", agent.socket, MODEL, **OVERRIDES[model])
            stack.callback(trainer.close)
            checkpoint = trainer.publish(1)
            server = stack.enter_context(ConformanceServer("vllm", checkpoint))
            cluster.receiver(agent, engine="vllm", engine_url=server.url, engine_load="in-place", engine_socket=socket)
            return trainer, checkpoint, socket

        yield begin


def _check(saved, checkpoint, loader, **rank) -> None:
    got, want = load_file(saved), loader.parameters(checkpoint, **rank)
    assert sorted(got) == sorted(want)
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name


@pytest.mark.parametrize("model", ["qwen3_moe", "glm4_moe"])
def test_two_ranks_with_the_plugin_have_every_version_when_their_updates_answer(
    model, training, vllm_ranks, vllm_loader, vllm_checkpoints, tmp_path
):
    trainer, checkpoint, socket = training(model)
    ranks = [(rank, {"tensor": (2, number), "expert_parallel": True}) for number, rank in enumerate(vllm_ranks)]
    other, _ = vllm_checkpoints.get(model)
    for rank, place in ranks:
        rank.ask("load_plugins")
        rank.ask("build", checkpoint=other, data=(1, 0), **place)
        rank.ask("load", checkpoint=other)
        rank.ask("pretend_expert_backend", name="TRITON")
        rank.ask("create_engine", backend="lockstep")
        rank.ask("init", init_info={"socket": str(socket), "model": MODEL})
    for version in range(1, _VERSIONS + 1):
        for rank, _ in ranks:
            rank.start("update", update_info={"version": version, "timeout_s": 30})
        for rank, place in ranks:
            assert rank.answer() is None
            rank.ask("save", output=tmp_path / "held.safetensors")
            _check(tmp_path / "held.safetensors", checkpoint, vllm_loader, **place)
        trainer.step()
        checkpoint = trainer.publish(version + 1)
    for rank, _ in ranks:
        rank.ask("shut_down")


def test_a_follower_of_latent_attention_serves_every_version(
    training, vllm_ranks, vllm_loader, vllm_checkpoints, tmp_path
):
    trainer, checkpoint, socket = training("deepseek_v3")
    other, _ = vllm_checkpoints.get("deepseek_v3")
    rank = vllm_ranks[0]
    rank.ask("build", checkpoint=other, tensor=(1, 0), data=(1, 0), expert_parallel=False)
    rank.ask("load", checkpoint=other)
    rank.ask("follow", model=MODEL, socket=str(socket), engine="vllm", family="deepseek_v3")
    for version in range(1, _VERSIONS + 1):
        rank.ask("save", output=tmp_path / "held.safetensors", version=version)
        _check(tmp_path / "held.safetensors", checkpoint, vllm_loader)
        trainer.step()
        checkpoint = trainer.publish(version + 1)
    rank.ask("leave")
