"""Sharded: how a Publisher writes a model that is spread over ranks, one call a step on every rank."""

import contextlib
import ctypes
import difflib
import json
import os
import secrets
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Sequence, Tuple

from lockstep.core import arguments
from lockstep.core.agreement import (
    Ranks,
    all_gather,
    gather,
    gather_descriptions,
    made_by,
    rank_of,
    reason_of,
    require_agreement,
    resolved,
)
from lockstep.core.delayed_interrupt import delayed_interrupt
from lockstep.core.errors import AbortedError, BadDataError, Error, StateError, UnavailableError
from lockstep.core.forked import FORKED
from lockstep.core.handle import CommonOptions, Handle
from lockstep.core.publication import Publication
from lockstep.core.tensors import LocalTensor, NamedTensors, TensorMeta, described
from lockstep.export._c_tensors import c_locals, refuse_gpu_tensors, wait_for_gpu
from lockstep.export._parts import DESCRIPTION_FORMAT, Part

if TYPE_CHECKING:
    from typing_extensions import Unpack


_PAUSE_SECONDS = 0.1  # between looks for the agent


class Sharded:
    """The ranks' parts of a model, written by a plan, which is compiled and proved when this is made.

    Made on every rank of the group, together. After that each rank copies its own shards. No rank waits for another, except to
    agree on a number, and for the ranks that are on another host than the agent: they send theirs to one on its host.
    """

    def __init__(
        self,
        parts: "Sequence[Part]",
        *,
        model: str,
        group: Any = None,
        on_agent_host: "bool | None" = None,
        by_host: bool = False,
        bucket_bytes: int = 0,
        **options: "Unpack[CommonOptions]",
    ) -> None:
        self._parts = list(parts)
        self._locals: "list[LocalTensor]" = []
        self._attachments: "dict[str, str]" = {}
        self._group = resolved(group)
        self._hosts: "list[int]" = []  # of each rank, where each host's agent gets a part
        if by_host:
            on_agent_host = self._check_by_host(on_agent_host, options)
            self._hosts = _numbered(gather(lambda: _host_of(options), self._group))
            options["run"] = options.get("run") or made_by(0, lambda: secrets.token_hex(16), self._group)
        # Of each host's part, its own first: what this rank has of it is written, or sent there.
        self.handle = Handle(model=model, **options)
        self.others = [Handle(model=model, **options) for _ in range(len(set(self._hosts)) - 1)]
        self._finds_out = on_agent_host is None
        self.handle.on_agent_host = self._has_socket() if on_agent_host is None else on_agent_host
        for part in self._parts:
            part.open(self._group, self.handle.on_agent_host)
        ranks = gather_descriptions(self._describe, self._group)
        if not _any_on_agent_host(ranks) and self._comes_on_agent_host():
            ranks = gather_descriptions(self._describe, self._group)
        self._descriptions = ranks.descriptions
        exchange = _exchange_for(ranks, bool(self.others), group, self.handle.call_timeout, self._locals)
        fields: "dict[str, Any]" = dict(
            descriptions=(ctypes.c_char_p * len(ranks.descriptions))(*ranks.descriptions),
            ranks=len(ranks.descriptions),
            rank=ranks.rank,
            locals=c_locals(self._locals),
            local_count=len(self._locals),
            bucket_bytes=bucket_bytes,
            exchange=ctypes.pointer(exchange.callbacks) if exchange else None,
            keeps=exchange,
            attachments=self._attachments,
            config=next((part.config for part in self._parts if part.config is not None), None),
        )
        self._open_together(fields)
        self._locals = [local._replace(owner=None) for local in self._locals]  # a trainer may free or move them

    @property
    def layout(self) -> "list[Tuple[TensorMeta, int]]":
        return described(self._description["tensors"])

    @property
    def plan_digest(self) -> str:
        return "-".join(self._plans)

    def publish(self, label: "str | int | None", tensors: "NamedTensors | None", version: "int | None") -> Publication:
        with self.handle.lock, delayed_interrupt(second_at_once=True):
            if version is None:
                number = self.handle.number(self._agreed_number())
            else:
                self.handle.pointer()
                if self.others:
                    self._check_new(version)
                number = self.handle.number(version)
            try:
                if tensors is not None:
                    raise BadDataError("tensors: this publisher reads its own; only from_stream and in_place take some")
                name = arguments.label(label)
                current = self._whole_locals()  # may be the last reference to its tensors: it stays until the copy
            except BaseException as error:  # other ranks wait for this one's part: they must get the reason
                for handle in self._handles():
                    with contextlib.suppress(Error):
                        handle.call("abort", number, reason_of(error).encode(errors="replace"))
                raise
            publish = lambda: self._publish(number, name, _addresses(current))  # noqa: E731
            return self._told_together(lambda: self.handle.publish_or_skip(publish, number, name))

    def _told_together(self, publish: "Callable[[], Publication]") -> Publication:
        """With a guard every rank raises what one was told: also a rank that writes nothing, or on another host."""
        if not self.handle.guarded:
            return publish()
        published: "Publication | None" = None
        failure: "BaseException | None" = None
        try:
            published = publish()
        except BaseException as error:  # the other ranks wait for this one's answer
            failure = error
        refused = all_gather(str(failure) if isinstance(failure, BadDataError) else "", self._group)
        if any(refused):
            raise BadDataError(next(filter(None, refused))) from failure
        if failure is not None:
            raise failure
        assert published is not None
        return published

    def _publish(self, number: int, label: bytes, addresses: Any) -> Publication:
        """This rank's share of every part. Ranks take the parts in one order: they exchange buckets."""
        published, failure = None, None
        for handle in self._handles():
            try:
                if failure is not None:  # other ranks wait for this one's share
                    handle.call("abort", number, reason_of(failure).encode(errors="replace"))
                    continue
                publication = handle.commit("publish", number, label, number, label, addresses)
                published = publication if handle is self.handle else published
            except Error as error:
                failure = failure or error
        if failure is not None:
            raise failure
        assert published is not None
        return published

    def _handles(self) -> "list[Handle]":
        """Of each part, in the parts' order."""
        own = self._hosts[rank_of(self._group)] if self._hosts else 0
        return [*self.others[:own], self.handle, *self.others[own:]]

    def write_descriptions(self, directory: "str | os.PathLike[str]") -> None:
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        for rank, description in enumerate(self._descriptions):
            (target / f"rank-{rank:05}.json").write_bytes(description)

    @contextlib.contextmanager
    def filling(self) -> "Iterator[Callable[[int, int, int], None]]":
        """As ``Publisher._filling``."""
        if self.others:
            raise StateError("by_host: no rank has all of the model")
        with self.handle.lock:
            self.handle.pointer()
            current = self._whole_locals()  # they stay until the end
            addresses = _addresses(current)
            yield lambda offset, size, address: self.handle.call("fill", addresses, offset, size, address)

    def _check_by_host(self, on_agent_host: "bool | None", options: "CommonOptions") -> bool:
        if on_agent_host is False:
            raise BadDataError("by_host: there is an agent on each host; leave on_agent_host out")
        if options.get("derive"):
            raise BadDataError("derive: agents do not derive from parts; leave out by_host or derive")
        if options.get("skip_while_away"):
            raise BadDataError("skip_while_away: with by_host the agents of other hosts may be there; leave one out")
        return True

    def _has_socket(self) -> bool:
        return Path(self.handle.socket).is_socket()

    def _comes_on_agent_host(self) -> bool:
        """Waits until a rank finds an agent on its host; False: no rank is to find out. Ranks decide by the same answers."""
        deadline = None if self.handle.connect_timeout is None else time.monotonic() + self.handle.connect_timeout
        while True:
            self.handle.on_agent_host = self._finds_out and self._has_socket()
            late = deadline is not None and time.monotonic() >= deadline
            answers = all_gather((self._finds_out, self.handle.on_agent_host, late), self._group)
            if any(here for _, here, _ in answers) or not any(finds_out for finds_out, _, _ in answers):
                # The socket may have come since this rank looked.
                self.handle.on_agent_host = self._finds_out and self._has_socket()
                return any(here for _, here, _ in answers)
            if any(late for _, _, late in answers):
                raise UnavailableError(
                    f"there is no agent's socket {os.fspath(self.handle.socket)} on the host of any of {len(answers)} ranks; "
                    "start the agent, or give its --socket by socket= or $LOCKSTEP_EXPORT_SOCKET"
                )
            time.sleep(_PAUSE_SECONDS)

    def _agreed_number(self) -> int:
        """One above all that a rank has tried. Raises on every rank where one cannot publish."""
        failure = None
        try:
            self.handle.pointer()
        except Error as error:  # sent to the other ranks, and raised below
            failure = error
            if self.handle.closed == FORKED:  # the group is the parent's
                raise
        try:
            answers = all_gather((reason_of(failure), self.handle.newest), self._group)
        except Exception as error:
            if failure is not None:
                raise failure from None
            raise UnavailableError(f"the ranks could not agree on the version's number: {error}") from error
        if failure is not None:
            raise failure
        for rank, (reason, _) in enumerate(answers):
            if reason:
                raise AbortedError(f"rank {rank} cannot publish: {reason}")
        return 1 + int(max(newest for _, newest in answers))

    def _check_new(self, version: int) -> None:
        """An agent that lacks a number of the run would take it again, for other bytes than the others have under it."""
        least = self._agreed_number()
        if arguments.version_number(version) < least:
            raise BadDataError(f"version: {version} was tried in this run; with by_host, give {least} or more")

    def _open_together(self, fields: "dict[str, Any]") -> None:
        failure, interrupt, self._description = None, None, {}
        self._plans: "list[str]" = []
        try:
            for part, handle in enumerate(self._handles()):
                if self._hosts:
                    fields = {**fields, "hosts": (ctypes.c_uint32 * len(self._hosts))(*self._hosts), "part": part}
                handle.open(**fields)
                description = json.loads(handle.library.lockstep_describe(handle.pointer()))
                self._plans.append(str(description["plan"]))
                if handle is self.handle:
                    self._description = description
            self.handle.writes = self._description["writes"]
            if self._description["pin_trouble"]:
                warnings.warn(f"copies from GPUs are slow: {self._description['pin_trouble']}", stacklevel=2)
            self._check_frozen_names()
            if fields["exchange"] and self.handle.skips:
                raise BadDataError(
                    "skip_while_away: ranks on other hosts than the agent's cannot see that it is away; leave it out"
                )
        except Error as error:  # sent to the other ranks, and raised by all
            failure = error
        except BaseException as error:  # Ctrl-C: the other ranks wait for this one, too
            failure, interrupt = AbortedError(reason_of(error)), error
        try:
            self.handle.run = self._agree(failure)
        except BaseException:
            for handle in self._handles():
                handle.close()
            if interrupt is not None:
                raise interrupt from None
            raise

    def _check_frozen_names(self) -> None:
        """One that no rank has would be taken for one that changes, in silence."""
        for position, part in enumerate(self._parts):
            wanted = part.frozen.names
            if not wanted:
                continue
            parts = [json.loads(description)["parts"][position] for description in self._descriptions]
            entries = [entry for own in parts for entry in own.get("tensors") or own.get("parameters") or ()]
            known = {made["name"] for entry in entries for made in (entry, *entry.get("into", ()))}
            for name in sorted(wanted - known):
                near = "".join(f'; did you mean "{close}"?' for close in difflib.get_close_matches(name, known, 1))
                raise BadDataError(f'frozen: no rank has a tensor "{name}"{near}')

    def _check_training(self, trains: "Sequence[bool | None]") -> None:
        """frozen="requires_grad" says nothing where no rank has a tensor that requires a gradient: the tensors are detached,
        or those of a copy that is written to. One rank may have none: a pipeline stage of frozen layers."""
        if True in trains or False not in trains:
            return
        such = f', "{self._locals[0].name}" among them' if self._locals else ""
        raise BadDataError(
            f'frozen="requires_grad": no tensor of the model requires a gradient{such}: detached tensors, as of state_dict '
            "and saved_tensors, do not say what is trained; give the module that trains, its parameters, or the names of "
            "what never changes"
        )

    def _agree(self, failure: "Exception | None") -> str:
        """The run that all ranks publish in. Raises when they are not ready to publish one model together."""
        what = ("-".join(self._plans), self._description.get("bucket_bytes", 0))
        run = "" if failure else self.handle.run
        answers = all_gather((reason_of(failure), what, run, self._trains), self._group)
        require_agreement([answer[:2] for answer in answers], failure)
        self._check_training([trains for *_, trains in answers])
        runs = {run: rank for rank, (_, _, run, _) in enumerate(answers) if run}
        if len(runs) > 1:
            raise AbortedError(
                f"ranks publish in runs {', '.join(f'{run} (rank {rank})' for run, rank in runs.items())}: they reach "
                "different agents; give on_agent_host=False on the hosts whose agent is not the model's"
            )
        return str(next(iter(runs)))

    def _describe(self) -> str:
        """This rank's description. Everything that may fail on one rank alone is done here, before the others have it."""
        self._locals = self._current_locals()
        refuse_gpu_tensors((local.name, local.owner) for local in self._locals)
        self._attachments = {name: text for part in self._parts for name, text in part.attachments().items()}
        parts = [part.describe() for part in self._parts]
        by_gradient = any(part.frozen.by_gradient for part in self._parts)
        self._trains = any([part.trains() for part in self._parts]) if by_gradient else None
        return json.dumps(
            {"format": DESCRIPTION_FORMAT, "on_agent_host": self.handle.on_agent_host, "parts": parts},
            separators=(",", ":"),
        )

    def _current_locals(self) -> "list[LocalTensor]":
        return [local for part in self._parts for local in part.locals()]

    def _whole_locals(self) -> "list[LocalTensor]":
        """This rank's tensors as they are now, to be read."""
        for part in self._parts:
            part.prepare()
        current = self._current_locals()
        self._check_unchanged(current)
        wait_for_gpu(local.owner for local in current)
        return current

    def _check_unchanged(self, current: "list[LocalTensor]") -> None:
        names, opened_names = {local.name for local in current}, {local.name for local in self._locals}
        gone = [local.name for local in self._locals if local.name not in names]
        new = [local.name for local in current if local.name not in opened_names]
        if gone or new:
            changes = [f"no longer has {_listed(gone)}, which it was opened with"] if gone else []
            changes += [f"has {_listed(new)}, which it was opened without"] if new else []
            raise BadDataError(f"this rank {'; it '.join(changes)}; make a publisher of the tensors as they are now")
        if len(current) != len(names):
            twice = [name for name, count in Counter(local.name for local in current).items() if count > 1]
            raise BadDataError(f"this rank gives {_listed(twice)} twice; give each once")
        for present, opened in zip(current, self._locals):
            if present.description() != opened.description():
                raise BadDataError(f"the model has {_in_words(present)}; it was opened with {_in_words(opened)}")


def _addresses(tensors: "Sequence[LocalTensor]") -> Any:
    return (ctypes.c_void_p * len(tensors))(*(local.address for local in tensors))


def _any_on_agent_host(ranks: Ranks) -> bool:
    return any(json.loads(description)["on_agent_host"] for description in ranks.descriptions)


def _host_of(options: "CommonOptions") -> str:
    """Which agent this rank's is, among those of all hosts."""
    path = arguments.export_socket(options.get("socket"))
    timeout = options.get("connect_timeout", 10.0)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        try:
            info = os.stat(path)
            return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {info.st_dev} {info.st_ino}"
        except OSError as error:
            if deadline is not None and time.monotonic() >= deadline:
                raise UnavailableError(
                    f"by_host: there is no agent on this rank's host: {error}; start one on each, or give its --socket "
                    "by socket= or $LOCKSTEP_EXPORT_SOCKET"
                ) from None
        time.sleep(_PAUSE_SECONDS)


def _numbered(hosts: "Sequence[str]") -> "list[int]":
    """The number of each, counted in the order of their first ranks."""
    numbers: "dict[str, int]" = {}
    return [numbers.setdefault(host, len(numbers)) for host in hosts]


def _exchange_for(
    ranks: Ranks, several_agents: bool, group: Any, timeout: "float | None", tensors: "Sequence[LocalTensor]"
) -> Any:
    if not several_agents and all(json.loads(description)["on_agent_host"] for description in ranks.descriptions):
        return None
    if len(ranks.descriptions) == 1:
        return None  # no rank on the agent's host: the library refuses that
    from lockstep.export._exchange import TorchExchange

    on_gpu = (tensor.owner.device for tensor in tensors if getattr(tensor.owner, "is_cuda", False))
    return TorchExchange(group, timeout, next(on_gpu, None))


def _listed(names: "Sequence[str]") -> str:
    some = ", ".join(f'"{name}"' for name in names[:3])
    more = f", and {len(names) - 3} more" if len(names) > 3 else ""
    return f"tensor{'s' if len(names) > 1 else ''} {some}{more}"


def _in_words(tensor: LocalTensor) -> str:
    frozen = ", frozen" if tensor.frozen else ""
    return f'tensor "{tensor.name}", {tensor.dtype} {list(tensor.shape)} with strides {list(tensor.strides)}{frozen}'
