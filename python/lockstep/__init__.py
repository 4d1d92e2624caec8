"""Publish a trainer's weights to Lockstep's trainer_agent, and follow them in an inference engine.

A trainer, on every rank (``from_megatron``, ``from_tensors``, ``from_stream`` and others for what is no FSDP2):

    publisher = lockstep.Publisher.from_fsdp(model, model="actor")
    for step in range(1, steps + 1):
        train_one_step(model)
        publisher.publish(step)

An inference engine has ``lockstep.Replica``, ``Follower``, ``describe``, ``published`` and ``wait_for``
(``lockstep.engine``).

A trainer and an engine on one GPU, or one host, without anything between them: ``lockstep.BucketRing`` in the trainer,
``lockstep.RingReader`` in the engine.

``lockstep.ensure_agent`` and ``lockstep.ensure_receiver`` start this host's daemons, or find them.

``lockstep.export`` is the trainer's side, ``lockstep.engine`` the engine's, ``lockstep.core`` what both are built on,
``lockstep.daemons`` what starts daemons, ``lockstep.control`` what sees and steers them.

Everything raised because of Lockstep is a ``lockstep.Error``; its ``code`` is the library's number and its text the
library's sentence.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lockstep import control, receipts
from lockstep.core.abi import library_version
from lockstep.core.errors import (
    AbortedError,
    BadDataError,
    DeadlineError,
    Error,
    InternalError,
    IoError,
    NotFoundError,
    PermissionDeniedError,
    ProtocolError,
    ResourceExhaustedError,
    StateError,
    UnavailableError,
)
from lockstep.core.guard import Guard
from lockstep.core.peer import RELEASE as __version__
from lockstep.core.publication import Publication
from lockstep.core.tensors import TensorMeta
from lockstep.daemons import ensure_agent, ensure_receiver
from lockstep.export import (
    BucketRing,
    ExportConfig,
    Fp8Block,
    Fp8BlockUe8m0,
    Fp8Channel,
    Fp8Tensor,
    Importer,
    Mxfp8,
    Nvfp4,
    Part,
    Piece,
    Publisher,
    Quantised,
    adapter,
    fsdp,
    megatron,
    named_tensors,
    saved_tensors,
    tensors_meta,
    without_ties,
)

__all__ = [
    "__version__",
    "AbortedError",
    "BadDataError",
    "BucketRing",
    "DeadlineError",
    "Error",
    "ExportConfig",
    "Fp8Block",
    "Fp8BlockUe8m0",
    "Fp8Channel",
    "Fp8Tensor",
    "Guard",
    "Importer",
    "InternalError",
    "IoError",
    "Mxfp8",
    "NotFoundError",
    "Nvfp4",
    "Part",
    "PermissionDeniedError",
    "Piece",
    "ProtocolError",
    "Publication",
    "Publisher",
    "Quantised",
    "ResourceExhaustedError",
    "StateError",
    "TensorMeta",
    "UnavailableError",
    "adapter",
    "control",
    "ensure_agent",
    "ensure_receiver",
    "fsdp",
    "library_version",
    "megatron",
    "named_tensors",
    "receipts",
    "saved_tensors",
    "tensors_meta",
    "without_ties",
]

if TYPE_CHECKING:
    from lockstep.engine import Follower as Follower
    from lockstep.engine import IntoLoader as IntoLoader
    from lockstep.engine import IntoModule as IntoModule
    from lockstep.engine import Replica as Replica
    from lockstep.engine import RingReader as RingReader
    from lockstep.engine import describe as describe
    from lockstep.engine import published as published
    from lockstep.engine import wait_for as wait_for

# Of lockstep.engine, which imports PyTorch. ``import lockstep`` does not: a trainer may have none.
_ENGINE = frozenset(
    {"Follower", "IntoLoader", "IntoModule", "Replica", "RingReader", "describe", "published", "wait_for"}
)


def __getattr__(name: str) -> Any:
    if name in _ENGINE:
        return getattr(importlib.import_module("lockstep.engine"), name)
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")


def __dir__() -> "list[str]":
    return sorted({*globals(), *_ENGINE})
