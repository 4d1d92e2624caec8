"""vLLM's own FP8 layers get a derived model: from its directory, and in place. Weights and scales are, bit for bit, what vLLM's
loader makes of each version."""

import contextlib

import pytest
import torch
from conformance_server import ConformanceServer
from harness import MODEL, wait_until
from held_weights import check, train
from safetensors.torch import load_file
from vllm_process import attach

import lockstep

_DERIVED = f"{MODEL}-fp8"
_SIZES = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 32,
}
_MODELS = {"qwen3": _SIZES, "qwen3_moe": {**_SIZES, "moe_intermediate_size": 256}}


@pytest.mark.parametrize("model", _MODELS)
def test_fp8_layers_follow_a_derived_model_in_place(
    model, cluster, vllm_ranks, vllm_loader, vllm_checkpoints, tmp_path
):
    plain, config = vllm_checkpoints.get(model, **_MODELS[model])
    saved = tmp_path / "held.safetensors"
    tensors = load_file(plain / "model.safetensors")
    agent, socket = cluster.agent(), cluster.directory / "engine.sock"
    ranks = [
        (rank, {"tensor": (2, number), "data": (1, 0), "expert_parallel": False})
        for number, rank in enumerate(vllm_ranks)
    ]
    with contextlib.ExitStack() as stack:
        derive = {_DERIVED: lockstep.Fp8Block(config)}
        publisher = stack.enter_context(
            lockstep.Publisher.from_tensors(tensors, model=MODEL, socket=agent.socket, derive=derive)
        )
        publisher.publish()
        directories = cluster.receiver(agent, models=(MODEL, _DERIVED))  # of bf16 and FP8, of one publish
        wait_until(lambda: directories.file(_DERIVED).exists(), "version 1 of the derived model is there")
        start = directories.published(_DERIVED)
        server = stack.enter_context(ConformanceServer("vllm", start))
        cluster.receiver(
            agent, models=(_DERIVED,), engine=f"vllm:{server.url}", engine_load="in-place", engine_socket=socket
        )
        for rank, place in ranks:
            attach(stack, rank, start, socket, _DERIVED, place)
        for version in range(2, 5):
            train(tensors, version)
            publisher.publish()
            for rank, _ in ranks:
                rank.start("update", update_info={"version": version, "timeout_s": 30})
            directories.wait_for(tensors)
            wait_until(
                lambda: directories.model_status(_DERIVED)["held"]["version"] == version,
                "the derived directory is there",
            )
            for rank, place in ranks:
                assert rank.answer() is None
                rank.ask("save", output=saved)
                held = check(saved, directories.published(_DERIVED), vllm_loader, **place)
                assert {torch.float8_e4m3fn, torch.float32} <= {tensor.dtype for tensor in held.values()}
