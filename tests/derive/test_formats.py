"""Derived models hold what other people's quantisers make of the same weights, bit for bit, over all families' shapes and odd edges.

An agent derives all formats at once, and a receiver writes their directories. quantisers.py has the others.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import hf_models
import pytest
import torch
from harness import Cluster, wait_until
from safetensors import safe_open

import lockstep

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [ROOT / ".cache/vllm", ROOT / ".cache/torchao"]
CONFIG = {"model_type": "qwen3", "num_hidden_layers": 1000}


def family_weights(directory: Path) -> "dict[str, torch.Tensor]":
    """The tensors of a tiny model of each family, each in layers of its own."""
    tensors = {}
    for number, family in enumerate(hf_models.MODELS):
        hf_models.write_checkpoint(directory / family, hf_models.tiny_config(family), seed=number)
        for name, tensor in hf_models.published_tensors(directory / family).items():
            layer = name.removeprefix("model.layers.").partition(".")[0]
            if layer.isdigit():
                tensors[name.replace(f".{layer}.", f".{10 * number + int(layer)}.", 1)] = tensor
    return tensors


def odd_weights() -> "dict[str, torch.Tensor]":
    generator = torch.Generator().manual_seed(1)
    odd = {
        "small": torch.randn(1, 64, generator=generator),
        "ragged": torch.randn(130, 288, generator=generator) * 0.02,
        "zero": torch.zeros(128, 128),
        "whole": torch.randn(384, 512, generator=generator) * 0.02,
        "subnormal": torch.randn(64, 64, generator=generator) * 1e-39,
        "tiny": torch.randn(64, 64, generator=generator) * 1e-6,
        "large": torch.randn(64, 64, generator=generator) * 6e4,
    }
    odd["spread"] = torch.randn(200, 320, generator=generator) * 10 ** torch.linspace(-9, 4, 320)
    odd["nan"] = odd["whole"].clone()
    odd["nan"][200, 300] = torch.nan
    odd["infinite"] = odd["whole"].clone()
    odd["infinite"][5, 6] = torch.inf
    odd["infinite"][300, 6] = -torch.inf
    return {
        f"model.layers.{900 + layer}.{name}_{str(dtype)[6:]}.weight": tensor.to(dtype)
        for layer, (name, tensor) in enumerate(odd.items())
        for dtype in (torch.bfloat16, torch.float16, torch.float32)
    }


@pytest.fixture(scope="module")
def replicas(tmp_path_factory):
    """The directory of each format's replica, and that of the source."""
    tensors = {**family_weights(tmp_path_factory.mktemp("families")), **odd_weights()}
    tensors["model.embed_tokens.weight"] = torch.ones(8, 64, dtype=torch.bfloat16)
    wide = [name[: -len(".weight")] for name, t in tensors.items() if t.dim() == 2 and t.shape[1] % 32]
    fused = {module.rpartition(".")[0] for module in wide}
    narrow = [name[: -len(".weight")] for name in tensors if name.rpartition(".")[0].rpartition(".")[0] in fused]
    derive = {
        "fp8-block": lockstep.Fp8Block(CONFIG),
        "fp8-block-ue8m0": lockstep.Fp8BlockUe8m0(CONFIG),
        "fp8-channel": lockstep.Fp8Channel(CONFIG),
        "fp8-tensor": lockstep.Fp8Tensor(CONFIG),
        "mxfp8": lockstep.Mxfp8(CONFIG, leave_out=narrow),
        "nvfp4": lockstep.Nvfp4(CONFIG, leave_out=narrow),
    }
    with Cluster() as cluster:
        agent = cluster.agent()
        receiver = cluster.receiver(agent, models=("actor", *derive))
        with agent.publisher(tensors, derive=derive) as publisher:
            for version in (1, 2):  # the second one by deltas
                tensors["model.layers.900.small_bfloat16.weight"] += version
                publisher.publish(version, tensors=tensors)
                wait_until(
                    lambda: all(
                        receiver.model_status(m).get("held", {}).get("version") == version for m in ("actor", *derive)
                    ),
                    f"all hold version {version}",
                )
        yield {model: receiver.published(model).resolve() for model in ("actor", *derive)}


@pytest.mark.parametrize(
    "form, least",
    [
        ("fp8-block", 150),
        ("fp8-block-ue8m0", 150),
        ("fp8-channel", 150),
        ("fp8-tensor", 150),
        ("mxfp8", 100),
        ("nvfp4", 100),
    ],
)
def test_a_derived_model_is_what_others_make_of_its_source(replicas, form, least, tmp_path):
    assert all(package.is_dir() for package in PACKAGES), "tests/run.sh installs them"
    command = [sys.executable, str(Path(__file__).parent / "quantisers.py")]
    environment = {
        **os.environ,
        "PYTHONPATH": ":".join(map(str, PACKAGES)),
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CACHE_ROOT": str(tmp_path),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }
    files = [str(replicas[model] / "model.safetensors") for model in ("actor", form)]
    made = subprocess.run([*command, *files, form], env=environment, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr[-3000:]
    outcome = json.loads(made.stdout.splitlines()[-1])
    nearly = outcome.pop("transformers", None)
    for quantiser, found in outcome.items():
        assert not found["differing"], "; ".join([quantiser, *found["differing"][:20]])
        assert found["held"] >= (least if quantiser != "torchao" else 20)
    if nearly is not None:
        assert nearly.pop("held") >= 3
        assert nearly == {"ulps of a scale": 1, "steps of a value": 1}


def test_what_is_not_quantised_is_the_sources(replicas):
    with safe_open(replicas["actor"] / "model.safetensors", "pt") as source:
        with safe_open(replicas["fp8-block"] / "model.safetensors", "pt") as derived:
            same = set(source.keys()) & set(derived.keys())
            same = {name for name in same if derived.get_tensor(name).dtype == source.get_tensor(name).dtype}
            assert {"model.embed_tokens.weight"} < same
            for name in same:
                one, other = source.get_tensor(name), derived.get_tensor(name)
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name


def test_a_derived_models_directory_says_how_it_is_quantised(replicas):
    config = json.loads((replicas["fp8-block"] / "config.json").read_text())
    assert config["quantization_config"]["weight_block_size"] == [128, 128]
    left_out = config["quantization_config"]["modules_to_not_convert"]
    assert "model.embed_tokens" in left_out and "lm_head" in left_out
    assert not any("self_attn.q_proj" in name for name in left_out)
