"""Weights in GPU memory, a trainer that publishes them, and a module that follows: all that the tests here ask of Lockstep.

Weights of a version are the same in every process and on every device: what was published is held against a twin on the CPU
that was stepped as often. LOCKSTEP_GPU_DEVICE says where the tests' own are: "cuda", or "cpu" to rehearse without a GPU.
"""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import MODEL, Agent

import lockstep

DEVICE = os.environ.get("LOCKSTEP_GPU_DEVICE", "cuda")
ON_GPU = DEVICE != "cpu"
DTYPES = (torch.bfloat16, torch.float32)
SHARES = (0.01, 0.0001, 0.3, 0.0, 0.9)  # of elements that change, version by version
# Of float32 in raw bits: ties, what overflows when it is rounded, denormals, both zeros, infinities, NaNs.
SPECIAL = (0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x00000001, 0x80000000, 0x7F800000, 0x7F800001, 0x7FC12345, 0xFFFFFFFF)

gpu_only = pytest.mark.skipif(not ON_GPU, reason="a rehearsal without a GPU")


class Weights:
    """The tensors of a torch.nn.Sequential of linear layers, by name.

    Args:
        dtype: bfloat16, or float32 for masters that are rounded when they are published.
        layers, narrow, wide: layers lead from `narrow` features to `wide` ones and back.
    """

    def __init__(
        self, dtype: torch.dtype, device: str = DEVICE, layers: int = 4, narrow: int = 192, wide: int = 2001
    ) -> None:
        self.dtype, self.device = dtype, device
        self.sizes = [(narrow, wide) if layer % 2 == 0 else (wide, narrow) for layer in range(layers)]
        self.steps = 0
        self.tensors: "dict[str, torch.Tensor]" = {}
        generator = torch.Generator().manual_seed(5)
        noise = torch.randn(1 << 20, generator=generator).mul_(0.02)
        noise[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=torch.int64).to(torch.int32).view(torch.float32)
        for layer, (inputs, outputs) in enumerate(self.sizes):
            for name, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
                self.tensors[f"{layer}.{name}"] = _repeated(noise.to(dtype), shape, device)

    @property
    def bf16_bytes(self) -> int:
        return 2 * sum(tensor.numel() for tensor in self.tensors.values())

    def next_step(self, share: "float | None" = None) -> "list[tuple[torch.Tensor, torch.Tensor, int]]":
        """What the next step changes, ready on the device: for each tensor its bits, places, and what they rise by."""
        self.steps += 1
        generator = torch.Generator().manual_seed(self.steps)
        share = SHARES[self.steps % len(SHARES)] if share is None else share
        ulp = 1 if self.dtype == torch.bfloat16 else 1 << 16
        changes = []
        for tensor in self.tensors.values():
            bits = tensor.view(torch.int16 if self.dtype == torch.bfloat16 else torch.int32).view(-1)
            places = torch.randint(0, bits.numel(), (int(bits.numel() * share),), generator=generator)
            changes.append((bits, places.to(self.device), ulp if self.steps % 2 else -ulp))
        return changes

    def step(self, share: "float | None" = None) -> "Weights":
        """One step of a training: `share` of the elements changes, or as much as is this step's turn."""
        apply(self.next_step(share))
        return self

    def published(self) -> "dict[str, torch.Tensor]":
        """Copies on the CPU as they have to arrive: bfloat16, float32 rounded by integers."""
        return {name: rounded(tensor.detach().cpu()) for name, tensor in self.tensors.items()}


def apply(changes: "list[tuple[torch.Tensor, torch.Tensor, int]]") -> None:
    """On the current stream, without waiting. A place that is drawn twice rises once."""
    for bits, places, rise in changes:
        bits[places] = bits[places] + rise


def twin_of(weights: Weights, steps: int) -> Weights:
    """What small `weights` are after so many steps, computed by the CPU from the beginning."""
    twin = Weights(weights.dtype, "cpu")
    for _ in range(steps):
        twin.step()
    return twin


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """bfloat16 of a CPU tensor: to nearest, ties to even, every NaN 0x7FC0. bfloat16 stays as it is."""
    if tensor.dtype == torch.bfloat16:
        return tensor.clone()
    bits = tensor.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    nearest = torch.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, nearest)
    return nearest.to(torch.int32).to(torch.int16).view(torch.bfloat16)


def exporter(socket: Path, weights: Weights, **options: Any) -> lockstep.Publisher:
    """A trainer of the whole model."""
    return lockstep.Publisher.from_tensors(
        weights.tensors,
        dtype=torch.bfloat16,
        socket=socket,
        model=MODEL,
        call_timeout=60,
        reconnect_timeout=20,
        **options,
    )


def stream_publisher(socket: Path, weights: Weights, **options: Any) -> lockstep.Publisher:
    """A trainer that gives its tensors one after the other."""
    layout = weights.tensors.items()
    return lockstep.Publisher.from_stream(
        layout, model=MODEL, socket=socket, dtype=torch.bfloat16, call_timeout=60, **options
    )


def importer(weights: Weights) -> lockstep.Importer:
    return lockstep.Importer.from_named_tensors(weights.tensors, dtype=torch.bfloat16)


def module(weights: Weights, device: str = DEVICE) -> torch.nn.Module:
    """An engine's module of these sizes, with other weights."""
    with torch.device(device):
        made = torch.nn.Sequential(
            *[torch.nn.Linear(inputs, outputs, dtype=torch.bfloat16) for inputs, outputs in weights.sizes]
        )
    return made.requires_grad_(False).eval()


def follower(engine: torch.nn.Module, socket: Path, **options: Any) -> lockstep.Follower:
    """Of the receiver that has this engine socket."""
    return lockstep.Follower(engine, model=MODEL, socket=socket, **options)


def unlike(held: "dict[str, torch.Tensor]", expected: "dict[str, torch.Tensor]") -> "list[str]":
    """The tensors in which two models differ, bit for bit; `held` may be on any device."""
    if held.keys() != expected.keys():
        return sorted(held.keys() ^ expected.keys())
    bits = {name: tensor.detach().cpu().contiguous().view(torch.int16) for name, tensor in held.items()}
    return [name for name in expected if not torch.equal(bits[name], expected[name].view(torch.int16))]


def synchronize() -> None:
    """Waits for the device."""
    if ON_GPU:
        torch.cuda.synchronize()


def busy(milliseconds: int = 300) -> None:
    """Keeps the current stream from going on for about so long; what is queued behind it waits."""
    if ON_GPU:
        torch.cuda._sleep(milliseconds * 1_500_000)


def agent_with_receiver(cluster: Any, **options: Any) -> "tuple[Agent, Any, Path]":
    """Agent, receiver, and where engines attach to it."""
    agent, socket = cluster.agent(), cluster.directory / "engine.sock"
    return agent, cluster.receiver(agent, engine_load="in-place", engine_socket=socket, **options), socket


def _repeated(noise: torch.Tensor, shape: "tuple[int, ...]", device: str) -> torch.Tensor:
    flat = noise.to(device)
    count = torch.Size(shape).numel()
    return flat.repeat(-(-count // flat.numel()))[:count].reshape(shape).clone()
