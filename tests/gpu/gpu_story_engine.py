"""The model of the story, and what its engine does, as functions that Ranks (tests/layouts) calls in the engine's process.
test_gpu_story.py is the trainer, and calls them."""

import hashlib
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from gpu_models import DEVICE, synchronize
from harness import MODEL
from ranks import Rank

import lockstep

# hidden, intermediate, layers, heads, key-value heads, head_dim, vocabulary; the embedding is tied.
SHAPES = {
    "qwen3-4b": (2560, 9728, 36, 32, 8, 128, 151936),
    "qwen3-1.7b": (2048, 6144, 28, 16, 8, 128, 151936),
    "tiny": (128, 384, 4, 4, 2, 32, 4096),
}
PROMPT_TOKENS = 16
NEW_TOKENS = 8
TIMEOUT_S = 60


class Serving(NamedTuple):
    """What an engine says of a version: when it was served, on the monotonic clock; how long the engine was paused."""

    at: float
    pause: float
    tokens: "list[int]"


class Taken(NamedTuple):
    """From when until when an engine took weights, on the monotonic clock."""

    began: float
    ended: float


def parameters_of(shape: str) -> int:
    hidden, intermediate, layers, heads, key_value_heads, head_dim, vocabulary = SHAPES[shape]
    attention = 2 * hidden * head_dim * (heads + key_value_heads) + 2 * head_dim
    return vocabulary * hidden + layers * (attention + 3 * hidden * intermediate + 2 * hidden) + hidden


def build(shape: str) -> torch.nn.Module:
    """A transformers model in bfloat16 with random weights."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    hidden, intermediate, layers, heads, key_value_heads, head_dim, vocabulary = SHAPES[shape]
    config = Qwen3Config(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=head_dim,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
    )
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters_of(shape)
    return model


def greedy(model: torch.nn.Module, seed: int) -> "list[int]":
    """What the model goes on with after a prompt that is drawn with ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    prompt = torch.randint(0, model.config.vocab_size, (1, PROMPT_TOKENS), generator=generator).to(DEVICE)
    made = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        min_new_tokens=NEW_TOKENS,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
    )
    return made[0, PROMPT_TOKENS:].tolist()


def digests_of(model: torch.nn.Module) -> "dict[str, str]":
    """A SHA-256 of each parameter's bytes."""

    def digest(tensor: torch.Tensor) -> str:
        return hashlib.sha256(tensor.detach().view(torch.uint8).cpu().numpy()).hexdigest()

    tensors = dict(model.named_parameters())
    with ThreadPoolExecutor(8) as pool:
        return dict(zip(tensors, pool.map(digest, tensors.values())))


def attach(rank: Rank, shape: str, socket: Path) -> None:
    """Builds the model, and follows with it."""
    rank.model = build(shape).requires_grad_(False)
    rank.follower = lockstep.Follower(rank.model, model=MODEL, socket=socket)


def serve(rank: Rank, version: int) -> Serving:
    """Waits for the version, and generates by it."""
    rank.follower.wait_for(version, timeout=TIMEOUT_S)
    at = time.monotonic()
    with rank.follower.serving(timeout=TIMEOUT_S) as served:
        assert served.version == version, f"version {served.version} is served, not {version}"
        tokens = greedy(rank.model, seed=version)
    return Serving(at, rank.follower.pauses[-1], tokens)


def detach(rank: Rank) -> None:
    """Follows no more: others may write the parameters."""
    rank.follower.close()


def take_handles(rank: Rank, handles: bytes) -> Taken:
    """Copies the tensors that the handles name. CUDA IPC opens them in the trainer's GPU memory; on the CPU they lie in shared
    memory."""
    began = time.monotonic()
    tensors = pickle.loads(handles)
    for name, parameter in rank.model.named_parameters():
        parameter.copy_(tensors[name])
    synchronize()
    return Taken(began, time.monotonic())


def take_file(rank: Rank, path: Path) -> Taken:
    """Loads a file's tensors."""
    from safetensors import safe_open

    began = time.monotonic()
    with safe_open(path, framework="pt", device=DEVICE) as file:
        for name, parameter in rank.model.named_parameters():
            parameter.copy_(file.get_tensor(name))
    synchronize()
    return Taken(began, time.monotonic())


def digests(rank: Rank) -> "dict[str, str]":
    return digests_of(rank.model)
