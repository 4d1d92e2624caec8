"""Publish a trainer's weights to Lockstep's trainer_agent.

A trainer that has its weights whole, in one process or several:

    with lockstep.Publisher("/run/trainer-agent/export.sock", "actor", model.state_dict()) as publisher:
        for step in range(1, steps + 1):
            train_one_step(model)
            publisher.publish(step, model.state_dict())

A trainer that is sharded, on every rank (Megatron-core, FSDP2, tensors of both kinds, an adapter):

    exporter = lockstep.Exporter.from_megatron(model_chunks, hf_config, socket=socket, model="actor")
    exporter.publish(step)

An inference engine has ``lockstep.Replica``, ``Follower``, ``describe`` and ``wait_for`` (``lockstep.engine``).

A trainer and an engine on one GPU, or one host, without anything between them: ``lockstep.BucketRing`` in the trainer,
``lockstep.RingReader`` in the engine.

Everything raised because of Lockstep is a ``lockstep.Error``; its ``code`` is the library's number and its text the
library's sentence.
"""

import importlib
import pkgutil
from typing import Any

# The engine's side has a source tree of its own, raas_receiver/engine_plugin/python.
__path__ = pkgutil.extend_path(__path__, __name__)

from lockstep._adapter import adapter
from lockstep._config import ExportConfig
from lockstep._errors import (
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
from lockstep._exporter import Exporter, PublishStats
from lockstep._fsdp import fsdp
from lockstep._importer import Importer
from lockstep._library import library_version
from lockstep._megatron import megatron, tensors_meta
from lockstep._parts import Part, named_tensors
from lockstep._publisher import Publisher
from lockstep._ring import BucketRing
from lockstep._tensors import TensorMeta

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "BadDataError",
    "BucketRing",
    "DeadlineError",
    "Error",
    "ExportConfig",
    "Exporter",
    "Importer",
    "InternalError",
    "IoError",
    "NotFoundError",
    "Part",
    "PermissionDeniedError",
    "ProtocolError",
    "PublishStats",
    "Publisher",
    "ResourceExhaustedError",
    "StateError",
    "TensorMeta",
    "UnavailableError",
    "adapter",
    "fsdp",
    "library_version",
    "megatron",
    "named_tensors",
    "tensors_meta",
]

# Of lockstep.engine, which imports PyTorch: a trainer without it must not.
_ENGINE = frozenset({"Follower", "IntoLoader", "IntoModule", "Replica", "RingReader", "describe", "wait_for"})


def __getattr__(name: str) -> Any:
    if name in _ENGINE:
        return getattr(importlib.import_module("lockstep.engine"), name)
    raise AttributeError(f"module 'lockstep' has no attribute {name!r}")
