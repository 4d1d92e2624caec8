"""What the ranks of engines do in tests (see ranks.py): hold an engine's parameters, follow a receiver with them, and
compare them with what PyTorch makes of a checkpoint.

A rank keeps `job`, `module` and `follower`.
"""

import json
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ranks import Rank, Ranks
from slicing import Place, engine_tensors, made_of
from tiny_trainer import checkpoint_tensors

import lockstep


@dataclass(frozen=True)
class Job:
    """One rank of one engine.

    Args:
        name: of the engine.
        rank, world: of the engine's group.
        config: the model's HuggingFace configuration.
        server: the URL of the conformance server that this rank belongs to, which the receiver pauses; else the rank
            stops readers by itself.
        incarnation: of the engine, as the conformance server has it.
        comes_by_itself: the receiver is told of the server by its ranks.
        group: of the engine, which may have several.
    """

    name: str
    rank: int
    world: int
    place: Place
    config: Any
    socket: Path
    model: str
    server: str = ""
    incarnation: str = "one"
    comes_by_itself: bool = False
    group: int = 0


def build(rank: Rank, jobs: "list[Job] | Job", checkpoint: Path) -> None:
    """Makes the parameters of this rank's engine, with nothing of the model in them yet."""
    hold(rank, jobs if isinstance(jobs, Job) else jobs[rank.number], checkpoint_tensors(checkpoint))


def hold(rank: Rank, job: Job, hf: "dict[str, torch.Tensor]") -> None:
    """As ``build``, of a checkpoint's tensors, which may be on the "meta" device."""
    of = job.config, hf, job.place
    rank.job, rank.module = job, parameters_of(engine_tensors(*of))
    rank.made_of = made_of(rank.module, *of)


def parameters_of(shapes: "dict[str, torch.Tensor]") -> torch.nn.Module:
    """A module with parameters of these names, shapes and types. Their values are dummies."""
    module = torch.nn.Module()
    for name, tensor in shapes.items():
        dummy = torch.full(tensor.shape, 0.1, dtype=tensor.dtype)
        _add(module, name, torch.nn.Parameter(dummy, requires_grad=False))
    return module


def join(rank: Rank, world: int, port: int) -> None:
    """torch.distributed, by TCP: for an engine on several hosts."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank.number, world_size=world
    )


def attach(rank: Rank) -> None:
    """Attaches to the receiver; returns when all ranks of the engine may continue."""
    job = rank.job
    rank.follower = lockstep.Follower(
        rank.module,
        model=job.model,
        socket=job.socket,
        engine_name=job.name,
        group=job.group,
        incarnation=job.incarnation,
        rank=job.rank,
        world=job.world,
        process_group=torch.distributed.group.WORLD if torch.distributed.is_initialized() else None,
        gate=not job.server,
        after_write=(lambda served: _note_pause(rank)) if job.server else None,
        server=job.server if job.comes_by_itself else "",
        **rank.made_of,
    )


def start(ranks: Ranks, job: Job, checkpoint: Path, process: int) -> None:
    """A rank of this job in that process."""
    ranks.call(build, job, checkpoint, only=[process])
    ranks.call(attach, only=[process])


def _note_pause(rank: Rank) -> None:
    """After each write: whether the server was paused, so that nothing had read meanwhile."""
    if getattr(rank, "spoiled", False):
        raise RuntimeError("what is derived from the parameters could not be derived")
    with urllib.request.urlopen(rank.job.server + "/conformance", timeout=10) as answer:
        rank.paused_at_writes = [*getattr(rank, "paused_at_writes", []), json.load(answer)["paused"]]


def paused_at_writes(rank: Rank) -> "list[bool]":
    """Of each write so far, whether the server was paused."""
    return getattr(rank, "paused_at_writes", [])


def spoil_deriving(rank: Rank, spoiled: bool) -> None:
    """Whether what an engine derives from its parameters fails from here on."""
    rank.spoiled = spoiled


def differences(rank: Rank, version: int, checkpoint: Path, timeout_s: float = 30) -> "list[str]":
    """Waits for a version; the parameters that are not, bit for bit, what PyTorch makes of its checkpoint."""
    rank.follower.wait_for(version, timeout=timeout_s)
    if rank.job.server:
        return _unlike(rank, checkpoint)
    with rank.follower.serving() as served:
        if served.version != version:
            return [f"serves version {served.version}, not {version}"]
        return _unlike(rank, checkpoint)


def version_served(rank: Rank, checkpoints: "dict[int, Path]") -> int:
    """The version that this rank serves now, 0 when it is held. Fails when its memory is not that version's."""
    try:
        with rank.follower.serving(timeout=0) as served:
            wrong = _unlike(rank, checkpoints[served.version])
            assert not wrong, f"not the bytes of version {served.version}: {wrong}"
            return served.version
    except lockstep.DeadlineError:
        return 0


def refusal(rank: Rank, timeout_s: float = 30) -> str:
    """Why the receiver does not take this rank."""
    deadline = time.monotonic() + timeout_s
    while rank.follower.error is None:
        assert time.monotonic() < deadline, "the rank was not refused"
        time.sleep(0.02)
    assert rank.follower.served is None
    return rank.follower.error


def fall_asleep(rank: Rank) -> None:
    """The parameters' memory is not to be written from here on, and what is in it is lost."""
    rank.follower.sleep()
    for parameter in rank.module.parameters():
        parameter.zero_()


def wake(rank: Rank) -> None:
    """It is there again."""
    rank.follower.wake()


def leave(rank: Rank) -> None:
    """Follows no more."""
    rank.follower.close()


def _unlike(rank: Rank, checkpoint: Path) -> "list[str]":
    expected = engine_tensors(rank.job.config, checkpoint_tensors(checkpoint), rank.job.place)
    held = dict(rank.module.named_parameters())
    missing = [f"{name}: not there" for name in expected.keys() ^ held.keys()]
    return missing + [name for name in expected if name in held and not _same(held[name], expected[name])]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit: NaN is NaN, and -0 is not 0."""
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _add(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
    """Puts a parameter at its dotted name, making the modules on the way."""
    first, _, rest = name.partition(".")
    if not rest:
        module.register_parameter(first, parameter)
        return
    if first not in module._modules:
        module.add_module(first, torch.nn.Module())
    _add(module._modules[first], rest, parameter)
