"""A whole vLLM server whose MTP layer drafts: it is written in place with the model, in the same pause."""

import json
import re
import urllib.request

import pytest
import torch
from harness import MODEL, Cluster
from hf_models import tiny_config, write_checkpoint
from real_server import Judge
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm
from vllm_server import VllmServer

import lockstep

PROMPT, TOKENS = [5, 7, 11], 16


@pytest.fixture
def checkpoint(tmp_path):
    """Of a MiMo, which is a Qwen2 with layers that draft."""
    config = tiny_config("qwen2", hidden_size=128, vocab_size=128, max_position_embeddings=256)
    write_checkpoint(tmp_path / "qwen2", config, seed=1)
    model = _with_draft(tmp_path / "qwen2")
    model.save_pretrained(tmp_path / "mimo")
    file = tmp_path / "mimo/config.json"
    told = {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": 1}
    file.write_text(json.dumps({**json.loads(file.read_text()), **told}))
    return tmp_path / "mimo", model


def _with_draft(directory) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    layer = Qwen2DecoderLayer(model.config, 0)
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        setattr(layer, name, Qwen2RMSNorm(model.config.hidden_size))
    layer.input_proj = torch.nn.Linear(2 * model.config.hidden_size, model.config.hidden_size, bias=False)
    model.model.mtp_layers = torch.nn.ModuleList([layer])
    return model


@torch.no_grad()
def _train(model) -> None:
    for parameter in model.parameters():
        parameter += 1e-2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def _repeat(model) -> None:
    """The draft says once more what the model said last."""
    [layer] = model.model.mtp_layers
    layer.self_attn.o_proj.weight.zero_()
    layer.mlp.down_proj.weight.zero_()
    layer.input_proj.weight.copy_(torch.eye(*layer.input_proj.weight.shape))
    layer.hidden_layernorm.weight.fill_(1)
    layer.final_layernorm.weight.fill_(1)


def _accepted(server) -> float:
    """Drafted tokens that the model took."""
    with urllib.request.urlopen(f"{server.url}/metrics") as page:
        [count] = re.findall(r"^vllm:spec_decode_num_accepted_tokens_total\{.*\} (.*)$", page.read().decode(), re.M)
    return float(count)


def test_a_model_and_its_draft_are_one_version(checkpoint, tmp_path):
    start, model = checkpoint
    with Cluster() as cluster:
        agent, socket = cluster.agent(), cluster.directory / "engine.sock"
        follows = {"LOCKSTEP_ENGINE_SOCKET": socket, "LOCKSTEP_MODEL": MODEL}
        speculate = json.dumps({"method": "mtp", "num_speculative_tokens": 1})
        server = VllmServer(start, tmp_path / "vllm", "--speculative-config", speculate, follows=follows)
        cluster.daemons.append(server)
        server.start()
        publisher = lockstep.Publisher.from_fsdp(model, dtype=torch.float32, socket=agent.socket, model=MODEL)
        receiver = cluster.receiver(agent, engine=f"vllm:{server.url}", engine_load="in-place", engine_socket=socket)
        accepted = []
        for version, change in enumerate((_train, _train, _repeat), start=1):
            change(model)
            model.save_pretrained(tmp_path / f"v{version}")
            publisher.publish()
            publisher.wait_served(version=version, engines=1, timeout=60)
            answer = server.ask(PROMPT, TOKENS)
            assert [span.version for span in answer.spans] == [version]
            assert answer.tokens == Judge({version: tmp_path / f"v{version}"}).greedy(version, PROMPT, TOKENS)
            assert receiver.ctl("verify", "--engines").returncode == 0
            accepted.append(_accepted(server))
        assert accepted[2] - accepted[1] > TOKENS / 4, f"the draft is not the version's: {accepted}"
        publisher.close()
