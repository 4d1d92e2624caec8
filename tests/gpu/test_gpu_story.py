"""A training on a GPU that an engine on the same GPU follows, against two other ways to hand weights over.

A transformers model of Qwen3-4B's shape is trained by AdamW, published after each step, and served by transformers in another
process, which follows in place. Then the same trainer hands all its weights to the same engine by CUDA IPC, and by a file in
shared memory.

The model has Qwen3-1.7B's shape where memory is too short for the other, and a tiny one in a rehearsal on the CPU.
$LOCKSTEP_STORY_SHAPE overrides the choice.
"""

import os
import shutil
import statistics
import tempfile
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Callable, NamedTuple

import pytest
import torch
from gpu_models import DEVICE, ON_GPU, synchronize
from gpu_story_engine import (
    TIMEOUT_S,
    attach,
    build,
    detach,
    digests,
    digests_of,
    greedy,
    parameters_of,
    serve,
    take_file,
    take_handles,
)
from harness import MODEL, Cluster, roomy_directory
from ranks import Ranks

import lockstep

STEPS = 10
HANDLES, FILES = 5, 3  # times that all weights are handed over
LEARNING_RATE = 1e-6
BATCH = (2, 33)  # sequences, tokens
THREADS = 8  # of each daemon

# A parameter takes 16 bytes on the GPU: bfloat16 weights 2, float32 masters 4, AdamW's moments 8, the served copy 2. The
# trainer never holds all gradients, which were 2 more. Qwen3-4B has 4.02e9 parameters: 64.4 GB.
DEVICE_BYTES_EACH = 16
# The embedding's gradient takes 3.1 GB in bfloat16, twice, and in float32. The follower's writes take 14 bytes for each changed
# element: 2.3 GB at 4 %. Two contexts and the activations take 2 GB.
DEVICE_BYTES_BESIDES = 8_000_000_000
# Shared memory holds two slots, two replicas and a version's write batches: 40.2 GB of Qwen3-4B. The daemons give it back before
# a file is saved, which takes two copies.
SHARED_BYTES_EACH = 2 * 5
# Two processes with PyTorch and CUDA take this much of the host's memory.
HOST_BYTES_BESIDES = 8_000_000_000


class HandOver(NamedTuple):
    """What it took to hand weights over, in seconds. `density`: the share of elements that had changed; 1 where all go."""

    blocked: float
    to_served: float
    pause: float
    density: float = 1.0


class Trainer:
    """AdamW on float32 masters, of random weights and random tokens."""

    def __init__(self, shape: str) -> None:
        self.model = build(shape)
        self._tokens = torch.Generator().manual_seed(6)
        generator = torch.Generator(DEVICE).manual_seed(5)
        for parameter in self.model.parameters():
            master = torch.randn(parameter.shape, generator=generator, device=DEVICE).mul_(0.02)
            master += float(parameter.dim() == 1)  # a norm
            parameter.data.copy_(master)
            optimizer = torch.optim.AdamW([master.requires_grad_()], lr=LEARNING_RATE, fused=True)
            parameter.register_post_accumulate_grad_hook(_update(master, optimizer))

    def step(self) -> None:
        """One optimizer step. A parameter is updated in the backward pass, as soon as its gradient is there."""
        tokens = torch.randint(0, self.model.config.vocab_size, BATCH, generator=self._tokens).to(DEVICE)
        loss = self.model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        assert bool(loss.isfinite()), f"the loss is {float(loss)}"
        synchronize()

    def tensors(self) -> "dict[str, torch.Tensor]":
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}


def _update(master: torch.Tensor, optimizer: torch.optim.Optimizer) -> "Callable[[torch.Tensor], None]":
    def update(parameter: torch.Tensor) -> None:
        master.grad = parameter.grad.float()
        parameter.grad = None
        optimizer.step()
        master.grad = None
        parameter.data.copy_(master)

    return update


def shape_for(device: float, shared: float, host: float) -> "tuple[str, str]":
    """The largest shape for which so many bytes of the GPU, of shared memory and of host memory are enough; or "", and why."""
    why = ""
    for shape in ("qwen3-4b", "qwen3-1.7b"):
        parameters = parameters_of(shape)
        copies = SHARED_BYTES_EACH * parameters
        needs = {
            "the GPU": (parameters * DEVICE_BYTES_EACH + DEVICE_BYTES_BESIDES, device),
            roomy_directory(): (copies, shared),
            "the host's memory": (copies + HOST_BYTES_BESIDES, host),
        }
        short = {what: numbers for what, numbers in needs.items() if numbers[0] > numbers[1]}
        if not short:
            return shape, ""
        why = "; ".join(
            f"{shape} needs {need / 1e9:.3g} GB of {what}, and {free / 1e9:.3g} GB are free"
            for what, (need, free) in short.items()
        )
    return "", why


def shape_of_this_machine() -> str:
    lines = Path("/proc/meminfo").read_text().splitlines()
    host = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    shape, why = shape_for(torch.cuda.mem_get_info()[0], shutil.disk_usage(roomy_directory()).free, host)
    if not shape:
        pytest.skip(why)
    return shape


def require_equal(what: str, trainer: Trainer, engine: Ranks) -> None:
    """AssertionError names a tensor in which the engine differs from the trainer."""
    engine.start(digests)
    ours = digests_of(trainer.model)
    [theirs] = engine.answers()
    unlike = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    assert not unlike, f"{what}: {len(unlike)} of {len(ours)} tensors differ, {unlike[0]} among them"
    print(f"{what}: {len(ours)} tensors are equal, bit for bit", flush=True)


def publish(publisher: lockstep.Publisher, trainer: Trainer, engine: Ranks, version: int) -> HandOver:
    """Publishes a version that the engine waits for. Both then generate by it. The first version comes whole."""
    engine.start(serve, version)
    began = time.monotonic()
    publisher.publish(version=version)
    blocked = time.monotonic() - began
    [serving] = engine.answers()
    publisher.wait_served(version=version, engines=1, timeout=TIMEOUT_S)
    density = publisher.stats["lockstep/density"] if version > 1 else 1.0
    tokens = greedy(trainer.model, seed=version)
    if serving.tokens != tokens:
        require_equal(f"version {version}", trainer, engine)
        raise AssertionError(f"version {version}: equal weights say {tokens} here and {serving.tokens} in the engine")
    return HandOver(blocked, serving.at - began, serving.pause, density)


def follow(shape: str, engine: Ranks, cluster: Cluster) -> "tuple[Trainer, list[HandOver]]":
    """Versions of the story, the first one left out: it comes whole. The engine follows no more at the end, and the daemons
    are gone with their memory."""
    agent, socket = cluster.agent(threads=THREADS, local_socket="auto"), cluster.directory / "engine.sock"
    cluster.receiver(agent, engine_load="in-place", engine_socket=socket, threads=THREADS)
    engine.start(attach, shape, socket)
    trainer = Trainer(shape)
    engine.answers()
    print("   step   density   blocked  to served     pause")
    rows = []
    with lockstep.Publisher.from_module(trainer.model, model=MODEL, socket=agent.socket) as publisher:
        for step in range(STEPS + 1):
            if step:
                trainer.step()
            row = publish(publisher, trainer, engine, step + 1)
            print(
                f"{step or 'whole':>7} {row.density:>9.3%} {row.blocked:>7.4f} s {row.to_served:>8.4f} s "
                f"{1000 * row.pause:>6.2f} ms",
                flush=True,
            )
            rows.append(row)
        require_equal("followed", trainer, engine)
    engine.call(detach)
    cluster.close()
    return trainer, rows[1:]


def hand_handles(trainer: Trainer, engine: Ranks) -> HandOver:
    """The trainer may not write until the engine has copied."""
    trainer.step()
    began = time.monotonic()
    [taken] = engine.call(take_handles, bytes(ForkingPickler.dumps(trainer.tensors())))
    if ON_GPU:
        torch.cuda.ipc_collect()  # PyTorch counts handles in a file of /dev/shm; this removes it
    return HandOver(taken.ended - began, taken.ended - began, taken.ended - taken.began)


def hand_file(trainer: Trainer, engine: Ranks) -> HandOver:
    """The trainer goes on once the file is there."""
    from safetensors.torch import save_file

    trainer.step()
    with tempfile.TemporaryDirectory(dir=roomy_directory()) as directory:
        path = Path(directory) / "model.safetensors"
        began = time.monotonic()
        save_file(trainer.tensors(), path)
        blocked = time.monotonic() - began
        [taken] = engine.call(take_file, path)
    return HandOver(blocked, taken.ended - began, taken.ended - taken.began)


def repeated(
    what: str, hand_over: "Callable[[Trainer, Ranks], HandOver]", times: int, trainer: Trainer, engine: Ranks
) -> HandOver:
    """Medians. AssertionError: the engine does not have the trainer's weights at the end."""
    taken = [hand_over(trainer, engine) for _ in range(times)]
    require_equal(what, trainer, engine)
    medians = HandOver(*map(statistics.median, zip(*taken)))
    print(f"{what}: blocked {medians.blocked:.4f} s, to served {medians.to_served:.4f} s, pause {medians.pause:.4f} s")
    return medians


def keep_figures(
    figure: "Callable[..., None]", shape: str, rows: "list[HandOver]", handles: HandOver, file: HandOver
) -> None:
    """Figures of the story are medians of its steps. story_blocked and story_pause stand against CUDA IPC.
    story_publish_to_served stands against a file, which lets the trainer go on, too."""
    medians = HandOver(*map(statistics.median, zip(*rows)))
    for name, value, baseline, way in (
        ("story_blocked", medians.blocked, handles.blocked, "by CUDA IPC"),
        ("story_publish_to_served", medians.to_served, file.to_served, "to save and load"),
        ("story_pause", medians.pause, handles.pause, "by CUDA IPC"),
    ):
        figure(name, value, "s", f"{baseline:.3g} s {way}, {shape}", value / baseline)
    figure("story_density_first", 100 * rows[0].density, "%")
    figure("story_density_last", 100 * rows[-1].density, "%")
    figure("story_ipc_pause", handles.pause, "s")
    figure("story_save_load_pause", file.pause, "s")


def test_an_engine_follows_a_training_and_has_its_weights_bit_for_bit(cluster, figure):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("safetensors")
    shape = os.environ.get("LOCKSTEP_STORY_SHAPE") or (shape_of_this_machine() if ON_GPU else "tiny")
    print(f"{shape}: {parameters_of(shape) / 1e9:.3g} B parameters, transformers {transformers.__version__}")
    with Ranks(1, start="spawn", timeout_s=120) as engine:
        trainer, rows = follow(shape, engine, cluster)
        handles = repeated("CUDA IPC", hand_handles, HANDLES, trainer, engine)
        file = repeated("save and load", hand_file, FILES, trainer, engine)
    assert all(0 < row.density < 0.5 for row in rows)
    keep_figures(figure, shape, rows, handles, file)
    assert os.listdir(os.environ["LOCKSTEP_TEST_SHARED"]) == []


def test_a_machine_gets_the_largest_shape_that_its_memories_have_room_for():
    gb = 1e9
    h100, shared, host = 84 * gb, 128 * gb, 120 * gb
    assert shape_for(h100, shared, host) == ("qwen3-4b", "")
    assert shape_for(40 * gb, shared, host) == ("qwen3-1.7b", "")
    assert shape_for(h100, 40 * gb, host) == ("qwen3-1.7b", "")
    assert shape_for(h100, shared, 45 * gb) == ("qwen3-1.7b", "")
    shape, why = shape_for(h100, 8 * gb, 16 * gb)
    assert shape == ""
    assert "qwen3-1.7b needs 17.2 GB of /" in why and "25.2 GB of the host's memory, and 16 GB are free" in why
