"""deploy/demo.sh as a newcomer runs it, on few steps: the conditions it promises, from its own --json."""

import json
import subprocess

import pytest
import torch
import transformers
from harness import ROOT

STEPS = 5


def run_demo(directory, *arguments: object, steps: int = STEPS, timeout_s: float = 180) -> dict:
    report = directory / "demo.json"
    command = [ROOT / "deploy/demo.sh", "--no-build", "--json", report, "--steps", steps, *arguments]
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=timeout_s)
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


@pytest.mark.nightly
def test_grpo_learns_from_samples_of_a_real_vllm_that_are_all_by_the_newest_version(tmp_path):
    report = run_demo(tmp_path, "--vllm", steps=6, timeout_s=400)
    steps = report["steps"]
    assert [step["samples_by_version"] for step in steps] == [{str(version): 64} for version in range(1, 7)]
    assert steps[-1]["reward"] > steps[0]["reward"] + 0.1
    assert report["versions"] == 7 and report["memory_equal"] is True and report["greedy_answers_equal"] == 8
    assert all(0 < step["pause_ms"] < step["publish_to_served_ms"] for step in steps)


@pytest.mark.parametrize("flags", [["--shape", "tiny"], ["--checkpoint", "."], ["--kill-agent"]])
def test_what_the_demo_with_vllm_does_not_take_is_refused_by_name(flags):
    command = [ROOT / "deploy/demo.sh", "--no-build", "--vllm", *flags]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 64
    assert flags[0] in result.stderr and "not allowed with" in result.stderr and "--vllm" in result.stderr
