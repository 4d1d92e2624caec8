"""Publish a trainer's weights to Lockstep's trainer_agent on the same host.

    with lockstep.Publisher("/run/trainer-agent/export.sock", "actor", model.state_dict()) as publisher:
        for step in range(1, steps + 1):
            train_one_step(model)
            publisher.publish(step, model.state_dict())

Everything raised because of Lockstep is a ``lockstep.Error``; its ``code`` is the library's number and its text the
library's sentence.
"""

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
from lockstep._library import library_version
from lockstep._publisher import Publisher
from lockstep._tensors import TensorMeta

__version__ = "0.1.0"

__all__ = [
    "AbortedError",
    "BadDataError",
    "DeadlineError",
    "Error",
    "InternalError",
    "IoError",
    "NotFoundError",
    "PermissionDeniedError",
    "ProtocolError",
    "Publisher",
    "ResourceExhaustedError",
    "StateError",
    "TensorMeta",
    "UnavailableError",
    "library_version",
]
