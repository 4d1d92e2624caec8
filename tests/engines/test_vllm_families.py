"""Models of vLLM's registry follow a training in place: each version is, bit for bit, what vLLM's own loader makes of its checkpoint."""

import contextlib

import pytest
import torch
from conformance_server import ConformanceServer
from harness import MODEL
from held_weights import check, train
from safetensors.torch import load_file, save_file
from vllm_process import attach

import lockstep

_ARCHITECTURES = (
    "Gemma3ForCausalLM",
    "Phi3ForCausalLM",
    "GptOssForCausalLM",
    "Qwen3NextForCausalLM",
    "DeepseekV2ForCausalLM",
    "Llama4ForCausalLM",
    "MiMoForCausalLM",
    "JambaForCausalLM",
)
_EXPERT_PARALLEL = ("Qwen3MoeForCausalLM", "Glm4MoeForCausalLM")  # the router of the second is kept in float32
# With images: whether each rank has the whole tower.
_TOWERS = {"Qwen2_5_VLForConditionalGeneration": False, "Qwen3VLForConditionalGeneration": True}


def _elements_of_tower(tensors: "dict[str, torch.Tensor]") -> int:
    return sum(tensor.numel() for name, tensor in tensors.items() if "visual." in name)


@pytest.mark.parametrize("architecture", (*_ARCHITECTURES, *_EXPERT_PARALLEL, *_TOWERS))
def test_a_family_without_a_line_of_ours_follows_in_place(
    architecture, cluster, vllm_ranks, vllm_loader, vllm_recordings, tmp_path
):
    start, checkpoint, saved = tmp_path / "start", tmp_path / "checkpoint", tmp_path / "held.safetensors"
    for directory in (start, checkpoint):
        vllm_recordings.ask("write_checkpoint", architecture=architecture, output=directory)
    tensors = load_file(checkpoint / "model.safetensors")
    agent, socket = cluster.agent(), cluster.directory / "engine.sock"
    whole, experts = _TOWERS.get(architecture, False), architecture in _EXPERT_PARALLEL
    ranks = [
        (rank, {"tensor": (2, number), "data": (1, 0), "expert_parallel": experts, "whole_tower": whole})
        for number, rank in enumerate(vllm_ranks)
    ]
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(lockstep.Publisher.from_tensors(tensors, model=MODEL, socket=agent.socket))
        server = stack.enter_context(ConformanceServer("vllm", start))
        cluster.receiver(agent, engine=f"vllm:{server.url}", engine_load="in-place", engine_socket=socket)
        for rank, place in ranks:
            attach(stack, rank, start, socket, MODEL, place)
        for version in range(1, 4):
            train(tensors, version)
            save_file(tensors, checkpoint / "model.safetensors")
            publisher.publish()
            for rank, _ in ranks:
                rank.start("update", update_info={"version": version, "timeout_s": 30})
            for rank, place in ranks:
                assert rank.answer() is None
                rank.ask("save", output=saved)
                held = check(saved, checkpoint, vllm_loader, **place)
                if architecture in _TOWERS:
                    share = _elements_of_tower(held) / _elements_of_tower(tensors)
                    assert share == 1 if whole else 0.5 < share < 1
