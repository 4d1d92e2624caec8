"""Models that SGLang built follow a training in place: each version is, bit for bit, what SGLang's own loader makes of its checkpoint,
with the tensors that latent attention has beside its parameters."""

import contextlib
from pathlib import Path

import pytest
from conformance_server import ConformanceServer
from harness import MODEL
from held_weights import train
from safetensors.torch import load_file, save_file
from sglang_process import SglangProgram

import lockstep

_LAYOUTS = Path(__file__).resolve().parents[1] / "layouts"


@pytest.fixture(scope="module")
def ranks():
    ranks = [SglangProgram("sglang_rank.py", _LAYOUTS, models="placed_models") for _ in range(2)]
    yield ranks
    for rank in ranks:
        rank.close()


# LongCat's loader computes norms, and Kimi's makes w_kc and w_vc anew each time.
@pytest.mark.parametrize("architecture", ["DeepseekV3ForCausalLM", "LongcatFlashForCausalLM", "KimiLinearForCausalLM"])
def test_latent_attention_follows_in_place(architecture, cluster, ranks, sglang_recordings, tmp_path):
    start, checkpoint = tmp_path / "start", tmp_path / "checkpoint"
    for directory in (start, checkpoint):
        directory.mkdir()
        sglang_recordings.ask("write_checkpoint", architecture=architecture, output=directory)
    tensors = load_file(checkpoint / "model.safetensors")
    agent, socket = cluster.agent(), cluster.directory / "engine.sock"
    environment = {"LOCKSTEP_ENGINE_SOCKET": str(socket), "LOCKSTEP_MODEL": MODEL}
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(lockstep.Publisher.from_tensors(tensors, model=MODEL, socket=agent.socket))
        incarnations = []
        for number, rank in enumerate(ranks):
            incarnations.append(rank.ask("follow", checkpoint=start, tensor=(2, number), environment=environment))
            stack.callback(rank.ask, "leave")
        server = stack.enter_context(ConformanceServer("sglang", start, incarnations=tuple(incarnations)))
        cluster.receiver(agent, engine=f"sglang:{server.url}", engine_load="in-place", engine_socket=socket)
        for version in range(1, 4):
            train(tensors, version)
            save_file(tensors, checkpoint / "model.safetensors")
            publisher.publish()
            for number, rank in enumerate(ranks):
                rank.start("differences", version=version, checkpoint=checkpoint, tensor=(2, number))
            assert [rank.answer() for rank in ranks] == [[], []]
    assert {"w_kc", "w_vc"} <= {name.rpartition(".")[2] for name in ranks[0].ask("names")}
