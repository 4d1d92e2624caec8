"""Exporter: publishes a sharded model, one call a step on every rank."""

import contextlib
import ctypes
import difflib
import json
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping, Sequence, TypedDict

from lockstep.core import arguments
from lockstep.core.delayed_interrupt import delayed_interrupt
from lockstep.core.errors import AbortedError, BadDataError, Error
from lockstep.core.handle import Handle
from lockstep.core.publication import Publication
from lockstep.core.tensors import LocalTensor, TensorMeta, described
from lockstep.export._absence import Absence
from lockstep.export._agreement import Ranks, all_gather, gather_sheets, reason_of, require_agreement
from lockstep.export._c_tensors import c_locals, refuse_gpu_tensors, wait_for_gpu
from lockstep.export._named_tensors import named_tensors
from lockstep.export._parts import SHEET_FORMAT, Frozen, Part

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ExporterOptions(TypedDict, total=False):
    """The keyword arguments of ``Exporter`` that may be left out."""

    beside_agent: "bool | None"
    group: Any
    bucket_bytes: int
    threads: int
    run: "str | None"
    connect_timeout: "float | None"
    reconnect_timeout: "float | None"
    call_timeout: "float | None"
    skip_while_away: bool
    socket: "str | os.PathLike[str] | None"


class NamedExporterOptions(ExporterOptions):
    """All keyword arguments of ``Exporter``."""

    model: str


class Exporter(Handle):
    """Publishes a model that is spread over ranks, by a plan that is compiled and proved when it is made.

    Made on every rank of the group, together: the ranks exchange what they hold and whether they are ready (two
    ``all_gather_object``, the only collectives of the exporter). After that each rank copies its own shards, and no
    rank waits for another, except for the ranks that are on another host than the agent: they send theirs to one
    on its host.

    Args:
        parts: what the model is made of; see ``megatron``, ``fsdp``, ``named_tensors`` and ``adapter``.
        socket: the agent's unix socket, the same path on every host; None: as for ``Publisher``.
        model: the model's name, ``[A-Za-z0-9._-]{1,128}``.
        beside_agent: whether this rank is on the agent's host; None: whether ``socket`` exists here.
        group: the process group of all ranks that hold the model; None: the default one, or just this process when
            torch.distributed is not initialised.
        bucket_bytes: memory for buckets between hosts, on each rank; 0: 512 MiB, 64 MiB where GPU and CPU share memory.
        threads: that copy, the caller's among them; 0: as many as there are cores for each rank of this host, at most 4.
        run: None for a new run; 32 hex digits to continue a run whose versions the agent still holds: of the same
            tensors and attachments, with as many ranks that write.
        connect_timeout, reconnect_timeout, call_timeout: as for ``Publisher``.
        skip_while_away: as for ``Publisher``; only where all ranks are on the agent's host.

    Raises:
        BadDataError: a parameter without a rule, of a wrong shape or dtype, held by no rank or by two; it is named.
        AbortedError: another rank could not be made ready; the text has its number and its reason.
        Error: any other class of it, with the library's sentence.
    """

    def __init__(
        self,
        parts: "Sequence[Part]",
        *,
        socket: "str | os.PathLike[str] | None" = None,
        model: str,
        beside_agent: "bool | None" = None,
        group: Any = None,
        bucket_bytes: int = 0,
        threads: int = 0,
        run: "str | None" = None,
        connect_timeout: "float | None" = 10.0,
        reconnect_timeout: "float | None" = 60.0,
        call_timeout: "float | None" = 600.0,
        skip_while_away: bool = False,
    ) -> None:
        super().__init__()
        self._parts = list(parts)
        socket = arguments.agent_socket(socket)
        opening = arguments.opening(
            socket,
            model,
            threads=threads,
            run=run,
            connect_timeout=connect_timeout,
            reconnect_timeout=reconnect_timeout,
            call_timeout=call_timeout,
        )
        beside = Path(socket).is_socket() if beside_agent is None else beside_agent
        self._agent = (os.fspath(socket), model) if beside else None
        ranks = gather_sheets(lambda: self._describe(beside), group)
        self._sheets = ranks.sheets
        self._exchange = _exchange_for(ranks, group, call_timeout, self._locals)
        self._absence = Absence(socket, skip_while_away)
        options: "dict[str, Any]" = dict(
            sheets=(ctypes.c_char_p * len(ranks.sheets))(*ranks.sheets),
            ranks=len(ranks.sheets),
            rank=ranks.rank,
            locals=c_locals(self._locals),
            local_count=len(self._locals),
            bucket_bytes=bucket_bytes,
            exchange=ctypes.pointer(self._exchange.callbacks) if self._exchange else None,
            attachments=self._attachments,
            **opening,
        )
        self._open_together(options, group)

    @classmethod
    def from_megatron(
        cls,
        model_chunks: Any,
        hf_config: Any,
        *,
        place: "Mapping[str, int] | None" = None,
        convert: bool = False,
        frozen: Frozen = None,
        **options: "Unpack[NamedExporterOptions]",
    ) -> "Exporter":
        """A Megatron-core model. Arguments as ``lockstep.megatron`` and the constructor take them."""
        from lockstep.export._megatron import megatron

        return cls([megatron(model_chunks, hf_config, place=place, convert=convert, frozen=frozen)], **options)

    @classmethod
    def from_fsdp(
        cls, module: Any, /, *, dtype: Any = None, frozen: Frozen = None, **options: "Unpack[NamedExporterOptions]"
    ) -> "Exporter":
        """A transformers model under FSDP2. Arguments as ``lockstep.fsdp`` and the constructor take them."""
        from lockstep.export._fsdp import fsdp

        return cls([fsdp(module, dtype=dtype, frozen=frozen)], **options)

    @classmethod
    def from_named_tensors(
        cls, tensors: Any, *, dtype: Any = None, frozen: Frozen = None, **options: "Unpack[NamedExporterOptions]"
    ) -> "Exporter":
        """Tensors under HuggingFace names. Arguments as ``lockstep.named_tensors`` and the constructor take them."""
        return cls([named_tensors(tensors, dtype=dtype, frozen=frozen)], **options)

    @classmethod
    def from_adapter(
        cls, module: Any, /, *, adapter: str = "default", dtype: Any = None, **options: "Unpack[NamedExporterOptions]"
    ) -> "Exporter":
        """The adapter of a PEFT model. Arguments as ``lockstep.adapter`` and the constructor take them."""
        from lockstep.export._adapter import adapter as adapter_part

        return cls([adapter_part(module, adapter=adapter, dtype=dtype)], **options)

    @property
    def tensors(self) -> "list[tuple[TensorMeta, int]]":
        """tensors_meta: every HuggingFace tensor and its byte offset, in export order; the same on every rank."""
        return described(self._description["tensors"])

    @property
    def plan_digest(self) -> str:
        """Names the plan; equal on all ranks."""
        return str(self._description["plan"])

    @property
    def writes(self) -> bool:
        """Whether this rank writes into the agent's memory (its own shards, or those of ranks on other hosts)."""
        return bool(self._description["writes"])

    def publish(self, version: int, label: "str | int | None" = None) -> Publication:
        """Publishes this rank's part of ``version``; called on every rank, with the weights not written to meanwhile.
        False where it was skipped, see ``skip_while_away``.

        Ctrl-C ends a wait for the agent, and the version with it. Else it waits for the end, which the other ranks need
        as much as this one; a second one does not.
        ``label`` as for ``Publisher.publish``; it counts on ranks that write (``writes``).

        Raises:
            BadDataError: the model is not what it was when the exporter was made, or bytes are missing.
            StateError: the version does not increase.
            AbortedError: another rank failed, or skipped it; the version is gone for all, and the next publish works.
            UnavailableError: the agent, or another rank, cannot be reached. A lost rank is final.
        """
        number = arguments.version_number(version)
        with self._lock, delayed_interrupt(second_at_once=True):
            self._open_handle()
            self._published_stats = {}
            try:
                name = arguments.label(label)
                current = self._whole_locals()  # its tensors may be nobody else's: they stay until they are copied
            except BaseException as error:  # other ranks wait for this one's part: they must get the reason
                with contextlib.suppress(Error):
                    self._call("abort", number, reason_of(error).encode(errors="replace"))
                raise
            return self._absence.publish(lambda: self._publish(number, name, _addresses(current)), number, name)

    def write_sheets(self, directory: "str | os.PathLike[str]") -> None:
        """Writes the sheets of all ranks to ``directory``, for ``lockstepctl plan --sheets``."""
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        for rank, sheet in enumerate(self._sheets):
            (target / f"rank-{rank:05}.json").write_bytes(sheet)

    @contextlib.contextmanager
    def _filling(self) -> "Iterator[Callable[[int, int, int], None]]":
        """Inside, a function that writes a range of the HuggingFace data section, made of the tensors as they are now:
        (offset, bytes, address to write to). BadDataError: this rank does not hold the whole model."""
        with self._lock:
            self._open_handle()
            current = self._whole_locals()  # they stay until the end
            addresses = _addresses(current)
            yield lambda offset, size, address: self._call("fill", addresses, offset, size, address)

    def _open_together(self, options: "dict[str, Any]", group: Any) -> None:
        failure, interrupt, self._description = None, None, {}
        try:
            self._open(**options)
            self._description = json.loads(self._library.lockstep_describe(self._open_handle()))
            if self._description["pin_trouble"]:
                warnings.warn(f"copies from GPUs are slow: {self._description['pin_trouble']}", stacklevel=2)
            self._check_frozen_names()
            if self._exchange and self._absence.skips:
                raise BadDataError(
                    "skip_while_away: ranks on other hosts than the agent's cannot see that it is away; leave it out"
                )
        except Error as error:  # sent to the other ranks, and raised by all
            failure = error
        except BaseException as error:  # Ctrl-C: the other ranks wait for this one, too
            failure, interrupt = AbortedError(reason_of(error)), error
        try:
            self._run = self._agree(failure, group)
        except BaseException:
            self.close()
            if interrupt is not None:
                raise interrupt from None
            raise

    def _check_frozen_names(self) -> None:
        """One that no rank has would be taken for one that changes, in silence."""
        for position, part in enumerate(self._parts):
            wanted = part.frozen_names
            if not wanted:
                continue
            parts = [json.loads(sheet)["parts"][position] for sheet in self._sheets]
            known = {entry["name"] for own in parts for entry in own.get("tensors") or own.get("parameters") or ()}
            for name in sorted(wanted - known):
                near = "".join(f'; did you mean "{close}"?' for close in difflib.get_close_matches(name, known, 1))
                raise BadDataError(f'frozen: no rank has a tensor "{name}"{near}')

    def _agree(self, failure: "Exception | None", group: Any) -> str:
        """The run that all ranks publish in. Raises when they are not ready to publish one model together."""
        what = (self._description.get("plan", ""), self._description.get("bucket_bytes", 0))
        run = "" if failure else self._library.lockstep_run(self._open_handle()).decode()
        answers = all_gather((reason_of(failure), what, run), group)
        require_agreement([answer[:2] for answer in answers], failure)
        runs = {run: rank for rank, (_, _, run) in enumerate(answers) if run}
        if len(runs) > 1:
            raise AbortedError(
                f"ranks publish in runs {', '.join(f'{run} (rank {rank})' for run, rank in runs.items())}: they reach "
                "different agents; give beside_agent=False on the hosts whose agent is not the model's"
            )
        return str(next(iter(runs)))

    def _publish(self, version: int, label: bytes, addresses: Any) -> Publication:
        self._call("publish", version, label, addresses)
        return self._note_published(version, label)

    def _describe(self, beside_agent: bool) -> str:
        """This rank's sheet. Everything that may fail on one rank alone is done here, before the others have it."""
        self._locals = self._current_locals()
        refuse_gpu_tensors((local.name, local.owner) for local in self._locals)
        files = {name: text for part in self._parts for name, text in part.attachments().items()}
        self._attachments = json.dumps(files).encode() if files else None
        parts = [part.sheet() for part in self._parts]
        return json.dumps({"format": SHEET_FORMAT, "beside_agent": beside_agent, "parts": parts}, separators=(",", ":"))

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
        if len(current) != len(self._locals):
            raise BadDataError(f"this rank has {len(current)} tensors; it was opened with {len(self._locals)}")
        for present, opened in zip(current, self._locals):
            if present.description() != opened.description():
                raise BadDataError(f"the model has {_in_words(present)}; it was opened with {_in_words(opened)}")


def _addresses(tensors: "Sequence[LocalTensor]") -> Any:
    return (ctypes.c_void_p * len(tensors))(*(local.address for local in tensors))


def _exchange_for(ranks: Ranks, group: Any, timeout: "float | None", tensors: "Sequence[LocalTensor]") -> Any:
    if all(json.loads(sheet)["beside_agent"] for sheet in ranks.sheets):
        return None
    if len(ranks.sheets) == 1:
        return None  # no rank on the agent's host: the library refuses that
    from lockstep.export._exchange import TorchExchange

    on_gpu = (tensor.owner.device for tensor in tensors if getattr(tensor.owner, "is_cuda", False))
    return TorchExchange(group, timeout, next(on_gpu, None))


def _in_words(tensor: LocalTensor) -> str:
    frozen = ", frozen" if tensor.frozen else ""
    return f'tensor "{tensor.name}", {tensor.dtype} {list(tensor.shape)} with strides {list(tensor.strides)}{frozen}'
