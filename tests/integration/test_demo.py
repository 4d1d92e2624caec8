"""deploy/demo.sh as a newcomer runs it, on few steps: the conditions it promises, from its own --json."""

import json
import subprocess

import pytest
import torch
import transformers
from harness import ROOT

STEPS = 5


def run_demo(directory, *arguments: object) -> dict:
    report = directory / "demo.json"
    command = [ROOT / "deploy/demo.sh", "--no-build", "--json", report, "--steps", STEPS, *arguments]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=180)
    assert result.returncode == 0, f"{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
    return json.loads(report.read_text())


def assert_followed_by_deltas(report: dict) -> None:
    assert report["final_digest_equal"] is True
    assert report["model_bytes"] > 0
    steps = report["steps"]
    assert len({step["receiver"] for step in steps}) == 3
    assert all(step["verified"] for step in steps)
    modes_by_receiver: "dict[str, list[str]]" = {}
    for step in steps:
        modes_by_receiver.setdefault(step["receiver"], []).append(step["mode"])
    for receiver, modes in modes_by_receiver.items():
        assert modes[0] == "full" and "full" not in modes[1:], f"{receiver}: {modes}"
    deltas = [step for step in steps if step["mode"] == "delta"]
    for step in deltas:
        assert step["payload_bytes"] * 3.5 <= step["changed_elements"] * 6, step
        assert 0 < step["density"] < 0.1 and step["publish_to_commit_ms"] > 0


@pytest.mark.parametrize("extra", [[], ["--kill-agent"]], ids=["plain", "agent-killed"])
def test_the_demo_ends_with_equal_digests_and_only_deltas_after_the_first_version(tmp_path, extra):
    assert_followed_by_deltas(run_demo(tmp_path, "--shape", "tiny", *extra))


def test_the_demo_runs_from_a_sharded_huggingface_checkpoint(tmp_path):
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=2000,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    )
    model = transformers.Qwen3ForCausalLM(config).to(torch.bfloat16)
    checkpoint = tmp_path / "checkpoint"
    model.save_pretrained(checkpoint, max_shard_size="2MB")
    assert len(list(checkpoint.glob("*.safetensors"))) > 1
    report = run_demo(tmp_path, "--checkpoint", checkpoint)
    assert report["final_digest_equal"] is True
    assert report["model_bytes"] == sum(2 * parameter.numel() for parameter in model.parameters())
