"""What ``lockstepctl --json`` answers, as dataclasses. ``lockstep.control`` decodes it, and re-exports the classes."""

import dataclasses
import json
from typing import Any, Tuple, Type, TypeVar, get_type_hints

from lockstep.core.errors import ProtocolError
from lockstep.core.fleet import Peer, VersionRef

_Kind = TypeVar("_Kind")


@dataclasses.dataclass(frozen=True)
class Delta:
    """A delta that an agent retains."""

    base: int = 0
    target: int = 0
    payload_bytes: int = 0
    changed_elements: int = 0


@dataclasses.dataclass(frozen=True)
class Change:
    """Of elements: how many there are, how many of them changed, and how many are NaN or Inf in the version; the Euclidean
    norm of the differences and the largest of them, absolute, of elements that are finite in both versions."""

    elements: int = 0
    changed: int = 0
    nonfinite: int = 0
    norm: float = 0.0
    largest: float = 0.0


@dataclasses.dataclass(frozen=True)
class TensorChange:
    """Of a tensor. ``kind``: its name with * for each number in it; ``indices``: these numbers, the layer and the expert."""

    name: str = ""
    kind: str = ""
    indices: Tuple[int, ...] = ()
    change: Change = Change()


@dataclasses.dataclass(frozen=True)
class VersionChanges:
    """Of a version against ``base``, the version before; 0: there was none, and only NaN and Inf are counted. ``tensors``:
    all of the model, in its order. ``unchanged_tensors``: of how many no element changed."""

    version: VersionRef = VersionRef()
    base: int = 0
    label: str = ""
    all: Change = Change()
    unchanged_tensors: int = 0
    tensors: Tuple[TensorChange, ...] = ()


@dataclasses.dataclass(frozen=True)
class AgentModel:
    """A model that an agent serves; ``newest_version`` 0: none yet."""

    name: str = ""
    run: str = ""
    model_bytes: int = 0
    newest_version: int = 0
    newest_label: str = ""
    newest_digest: str = ""
    newest_committed_unix_ns: int = 0
    writing_version: int = 0
    ranks_expected: int = 0
    ranks_connected: int = 0
    versions_committed: int = 0
    versions_aborted: int = 0
    deltas: Tuple[Delta, ...] = ()
    receivers: Tuple[Peer, ...] = ()
    last_error: str = ""
    newest_change: Change = Change()
    newest_unchanged_tensors: int = 0


@dataclasses.dataclass(frozen=True)
class AgentStatus:
    """What an agent knows, at its own time ``now_unix_ns``. ``draining``: it is ending."""

    models: Tuple[AgentModel, ...] = ()
    draining: bool = False
    now_unix_ns: int = 0


@dataclasses.dataclass(frozen=True)
class Engine:
    """An engine of a receiver. ``state``: "waiting", "serving", "preparing", "writing", "loading", "asleep", "failing"."""

    name: str = ""
    kind: str = ""
    url: str = ""
    in_place: bool = False
    state: str = ""
    late: bool = False
    served: VersionRef = VersionRef()
    served_since_unix_ns: int = 0
    last_pause_us: int = 0
    last_written_bytes: int = 0
    failures: int = 0
    last_error: str = ""


@dataclasses.dataclass(frozen=True)
class Archive:
    """A log that a receiver writes. ``state``: "waiting", "beginning", "following", "failing", "taken_over"."""

    url: str = ""
    state: str = ""
    newest: VersionRef = VersionRef()
    oldest_version: int = 0
    waiting_deltas: int = 0
    waiting_bytes: int = 0
    failures: int = 0
    last_error: str = ""


@dataclasses.dataclass(frozen=True)
class ReceiverModel:
    """A model that a receiver follows. ``served_version`` is the oldest that an engine serves, and what is held where no
    engine is notified; ``previous`` is what a rollback would make current. ``state``: "current" (it has the newest version),
    "waiting", "held" (a rollback's version stays), "backing_off" (after an error), or the step of a sync."""

    name: str = ""
    source: str = ""
    state: str = ""
    held: VersionRef = VersionRef()
    held_label: str = ""
    held_digest: str = ""
    held_committed_unix_ns: int = 0
    served_version: int = 0
    served_run: str = ""
    previous: VersionRef = VersionRef()
    newest_version: int = 0
    current_path: str = ""
    model_bytes: int = 0
    skipped_version: int = 0
    syncs: int = 0
    failures: int = 0
    last_sync_unix_ns: int = 0
    last_error: str = ""
    engines: Tuple[Engine, ...] = ()
    archive: Archive = Archive()


@dataclasses.dataclass(frozen=True)
class ReceiverStatus:
    """As ``AgentStatus``, of a receiver."""

    name: str = ""
    models: Tuple[ReceiverModel, ...] = ()
    draining: bool = False
    now_unix_ns: int = 0


@dataclasses.dataclass(frozen=True)
class Sync:
    """How one sync went. ``mode``: "full", "delta", "chain", "up_to_date", "repair". ``changed_elements``: 0 of a full one.
    ``publish_to_commit_us``: from the trainer's commit to the receiver's, by the clocks of both. ``error``: why it failed."""

    model: str = ""
    before: VersionRef = VersionRef()
    to: VersionRef = VersionRef()
    mode: str = ""
    changed_elements: int = 0
    payload_bytes: int = 0
    publish_to_commit_us: int = 0
    pull_us: int = 0
    apply_us: int = 0
    pause_us: int = 0
    verified: bool = False
    error: str = ""
    engine_error: str = ""


@dataclasses.dataclass(frozen=True)
class Receipt:
    """An engine served these weights, and nothing else, from one moment to another, by the receiver's clock. Digests are hex:
    of the version's bytes (as in logs and in ``lockstepctl verify``), of its layout, and of where these bytes are in the
    memory of the engine's ranks, "" where it loads the directory. ``ended``: it was paused or lost at ``to_unix_ns``; else it
    still served them when it was asked for."""

    model: str = ""
    receiver: str = ""
    engine: str = ""
    run: str = ""
    version: int = 0
    label: str = ""
    manifest_digest: str = ""
    layout_digest: str = ""
    plan_digest: str = ""
    from_unix_ns: int = 0
    to_unix_ns: int = 0
    ended: bool = False


def parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"lockstepctl answered what is no JSON: {error}") from None


def decoded(kind: "Type[_Kind]", value: Any) -> _Kind:
    """``value``, from JSON, as a dataclass of ``kind``. ProtocolError: it is something else."""
    try:
        answer: _Kind = _of(kind, value)
        return answer
    except TypeError as error:
        raise ProtocolError(f"lockstepctl answered what is no {kind.__name__}: {error}") from None


def _of(kind: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        given = {"before" if name == "from" else name: entry for name, entry in dict(value or {}).items()}
        return kind(**{name: _of(hint, given[name]) for name, hint in hints.items() if name in given})  # type: ignore[operator]
    items = getattr(kind, "__args__", None)
    if items:
        return tuple(_of(items[0], entry) for entry in value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
