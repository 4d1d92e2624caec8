"""Publisher: how a trainer's weights become versions at the agent on its host. For trainers' programs, and integrations."""

import os
from typing import TYPE_CHECKING, Any, Callable, ContextManager, Iterable, Mapping, Sequence, Tuple

from lockstep.core.agreement import ALONE
from lockstep.core.errors import StateError
from lockstep.core.handle import CommonOptions, Handle
from lockstep.core.keywords import takes
from lockstep.core.publication import Publication
from lockstep.core.served import Receivers
from lockstep.core.tensors import NamedTensors, TensorMeta
from lockstep.export._adapter import adapter as adapter_part
from lockstep.export._fsdp import fsdp, refuse_sharded
from lockstep.export._in_place import InPlace
from lockstep.export._megatron import megatron
from lockstep.export._named_tensors import named_tensors
from lockstep.export._parts import Frozen, Part
from lockstep.export._sharded import Sharded
from lockstep.export._stream import Layout, Patterns, Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack


_SENT = ("lockstep/bytes_sent", "lockstep/buckets_sent")


class ShardedOptions(CommonOptions, total=False):
    """Beside these, where all ranks of a group make it together."""

    group: Any
    on_agent_host: "bool | None"
    by_host: bool
    bucket_bytes: int


class StreamOptions(CommonOptions, total=False):
    """Beside these, of ``from_stream``."""

    rank: int
    writers: int
    dtype: Any
    ignore: Patterns
    keep: Patterns
    attachments: "Mapping[str, str] | None"


class Publisher:
    """Publishes versions of one model to the trainer_agent on this host.

    One per (process, model), made by one of

    =================  =========================================================  ===================
    ``from_fsdp``      a transformers model under FSDP2, DDP or tensor            all ranks together
                       parallelism by DTensor
    ``from_megatron``  Megatron-core's model chunks                               all ranks together
    ``from_tensors``   tensors under their HuggingFace names, whole or in pieces  all ranks together
    ``from_adapter``   the adapter of a PEFT model                                all ranks together
    ``from_parts``     several of these as one model                              all ranks together
    ``from_module``    a model that this process holds whole                      one process
    ``from_stream``    whole tensors, one after the other, of a generator         every rank
    ``in_place``       bytes that the caller puts into shared memory              the ranks that write
    =================  =========================================================  ===================

    Publishers serialise their own calls, not the steps of a version: let one thread publish. Closing one, leaving its
    ``with`` block, or ending the process aborts a version that is being written.

    All of them take:

    Args:
        model: the model's name, ``[A-Za-z0-9._-]{1,128}``.
        socket: the agent's unix socket; None: $LOCKSTEP_EXPORT_SOCKET, or that of this host's agent.
        threads: that copy, the caller's among them; 0: as many as there are cores for each rank of this host, at most 4.
        run: None for a new run; 32 hex digits to continue a run of which the agent still holds versions. It must have
            the same tensors and attachments, and as many ranks that write.
        connect_timeout: seconds to wait for the agent; None: no limit, as of the next two.
        reconnect_timeout: seconds that a call waits for an agent that went away.
        call_timeout: seconds that a call waits for the agent's answer.
        skip_while_away: if ``reconnect_timeout`` passes without an agent, ``publish`` returns a false value instead of
            raising UnavailableError. From then on it does so without a wait, until an agent listens on ``socket``. The
            next version has all weights, so receivers catch up with it.
        derive: names of models that the agent makes of this one, and how each is quantised, such as
            ``{"actor-fp8": lockstep.Fp8Block()}``: of each version it makes the same version of those, away from the
            trainer. The same on every rank.
        guard: what every version is to keep (``lockstep.Guard``); None: versions are counted, and not refused. ``publish``
            then waits until all ranks have committed and the agent has compared the version with the one before. Where the
            version breaks the guard, ``publish`` raises BadDataError on every rank. The same on every rank.

    Publishers that all ranks of a group make together exchange what they hold, whether they are ready, and the number
    of each version, by ``all_gather_object``. They compile a plan of what each rank copies, and prove it. They take
    also:

    Args:
        group: the process group of all ranks that hold the model; None: the default one, or just this process when
            torch.distributed is not initialised.
        on_agent_host: whether this rank is on the agent's host; None: whether ``socket`` exists here. All ranks then
            wait until it exists for one of them. Ranks on other hosts send their shards to a rank on the agent's host,
            and ``skip_while_away`` is then refused.
        by_host: each host has an agent, which gets the part of the model that this host's ranks hold most of; receivers
            put the parts together (docs/howto/parts.md). No host then needs memory for the whole model. ``layout`` and
            ``stats`` are those of this rank's host.
        bucket_bytes: memory for that, on each rank; 0: 512 MiB, 64 MiB where GPU and CPU share memory.

    Raises:
        BadDataError: the description breaks a rule, such as a parameter without one, of a wrong shape or dtype, held by no
            rank or by two; the text names it.
        AbortedError: another rank could not be made ready; the text has its number and its reason.
        UnavailableError: no agent on ``socket``.
        Error: any other class of it, with the library's sentence.
    """

    _way: "Sharded | InPlace | Stream"
    _handle: Handle  # which the way writes through
    _others: "list[Handle]"  # to the agents of other hosts' parts

    def __new__(cls, *_: Any, **__: Any) -> "Publisher":
        raise TypeError(
            "a Publisher is made by from_module, from_fsdp, from_megatron, from_tensors, from_adapter, from_parts, "
            "from_stream or in_place"
        )

    @classmethod
    def _of(cls, way: "Sharded | InPlace | Stream") -> "Publisher":
        publisher = object.__new__(cls)
        publisher._way, publisher._handle = way, way.handle
        publisher._others = way.others if isinstance(way, Sharded) else []
        return publisher

    @staticmethod
    @takes(CommonOptions)
    def from_module(
        module: Any, /, *, model: str, dtype: Any = None, frozen: Frozen = None, **options: "Unpack[CommonOptions]"
    ) -> "Publisher":
        """What ``save_pretrained`` would write of a model that this process holds whole, and publishes alone.

        Args:
            module, dtype, frozen: as for ``lockstep.fsdp``.
        """
        refuse_sharded(module)
        part = fsdp(module, dtype=dtype, frozen=frozen)
        return Publisher._of(Sharded([part], model=model, group=ALONE, **options))

    @staticmethod
    @takes(ShardedOptions)
    def from_fsdp(
        module: Any, /, *, model: str, dtype: Any = None, frozen: Frozen = None, **options: "Unpack[ShardedOptions]"
    ) -> "Publisher":
        """A transformers model under FSDP2, on every rank. Arguments also as for ``lockstep.fsdp``."""
        return Publisher.from_parts([fsdp(module, dtype=dtype, frozen=frozen)], model=model, **options)

    @staticmethod
    @takes(ShardedOptions)
    def from_megatron(
        model_chunks: Any,
        hf_config: Any = None,
        *,
        model: str,
        place: "Mapping[str, int] | None" = None,
        convert: bool = False,
        frozen: Frozen = None,
        bridge: Any = None,
        recorded_from: "Callable[[], Iterable[Tuple[str, Any]]] | None" = None,
        checkpoint: "str | os.PathLike[str] | None" = None,
        ignore: Patterns = (),
        **options: "Unpack[ShardedOptions]",
    ) -> "Publisher":
        """A Megatron-core model, on every rank. Arguments also as for ``lockstep.megatron``."""
        part = megatron(
            model_chunks,
            hf_config,
            place=place,
            convert=convert,
            frozen=frozen,
            bridge=bridge,
            recorded_from=recorded_from,
            checkpoint=checkpoint,
            ignore=ignore,
        )
        return Publisher.from_parts([part], model=model, **options)

    @staticmethod
    @takes(ShardedOptions)
    def from_tensors(
        tensors: Any, *, model: str, dtype: Any = None, frozen: Frozen = None, **options: "Unpack[ShardedOptions]"
    ) -> "Publisher":
        """Tensors under HuggingFace names, on every rank. Arguments also as for ``lockstep.named_tensors``."""
        return Publisher.from_parts([named_tensors(tensors, dtype=dtype, frozen=frozen)], model=model, **options)

    @staticmethod
    @takes(ShardedOptions)
    def from_adapter(
        module: Any, /, *, model: str, adapter: str = "default", dtype: Any = None, **options: "Unpack[ShardedOptions]"
    ) -> "Publisher":
        """The adapter of a PEFT model, on every rank. Arguments also as for ``lockstep.adapter``."""
        return Publisher.from_parts([adapter_part(module, adapter=adapter, dtype=dtype)], model=model, **options)

    @staticmethod
    @takes(ShardedOptions)
    def from_parts(parts: "Sequence[Part]", *, model: str, **options: "Unpack[ShardedOptions]") -> "Publisher":
        """What the model is made of, on every rank: ``megatron``, ``fsdp``, ``named_tensors`` and ``adapter``."""
        return Publisher._of(Sharded(parts, model=model, **options))

    @staticmethod
    @takes(StreamOptions)
    def from_stream(layout: Layout, *, model: str, **options: "Unpack[StreamOptions]") -> "Publisher":
        """Whole tensors that come one at a time, once per version, in any order, on the CPU or a GPU.

        For trainers with a generator of (name, whole tensor) that gathers shards as it goes, with collectives: every rank
        makes a publisher and gives each ``publish`` its generator, and the first ``writers`` ranks, which must be on
        the agent's host, write. A stream is always taken to its end, also after an error and on ranks that write
        nothing, so that no rank is left alone in a collective. No tensor is held once the next one is asked for.

        Args:
            layout: the whole model, the same on every rank that writes: the directory of a HuggingFace checkpoint, of
                which only the headers are read; ``TensorMeta``; or tensors, such as a first pass of the generator (which
                every rank then must make).
            rank: this process's number among all ranks.
            writers: how many of them write, each its share of the bytes.
            dtype: the HuggingFace dtype of float32 tensors, when it is not float32: ``torch.bfloat16`` rounds them. A
                checkpoint and ``TensorMeta`` say it for each tensor; this permits the rounding.
            ignore: patterns of names that are no part of what is published, be they in the layout, in the stream or in
                both, as a multi-token-prediction head that is not trained: "mtp.*".
            keep: patterns of names that are published as the checkpoint has them where a stream does not give them. The
                checkpoint is not to change.
            attachments: as for ``in_place``.

        Raises:
            As the others, on ranks that write; NotFoundError: ``layout`` has no checkpoint.
        """
        return Publisher._of(Stream(layout, model=model, **options))

    @staticmethod
    @takes(CommonOptions)
    def in_place(
        layout: "NamedTensors | Iterable[TensorMeta]",
        *,
        model: str,
        rank: int = 0,
        ranks: int = 1,
        owns: "Iterable[str] | None" = None,
        attachments: "Mapping[str, str] | None" = None,
        **options: "Unpack[CommonOptions]",
    ) -> "Publisher":
        """What the caller writes into shared memory itself, or gives to ``publish`` as whole tensors.

        Args:
            layout: the whole model in export order, the same on every rank: a mapping or (name, tensor) pairs of tensors
                on any device, or ``TensorMeta``. Only names, dtypes and shapes are used. One that has two names, as a
                tied ``lm_head.weight``, is published twice, with a warning: ``without_ties`` leaves the second one out.
                Of a transformers model give ``saved_tensors``, here and to ``publish``.
            rank: this writer's number, below ``ranks``.
            ranks: how many writers on this host must commit a version.
            owns: names of the tensors that this writer writes. Each tensor has one writer. None: all, of the only writer.
            attachments: small text files that belong to the model, file name to text, the same on every rank; receivers
                write them next to the tensors. With "adapter_config.json" among them that is a PEFT adapter's directory.
        """
        way = InPlace(layout, rank=rank, ranks=ranks, owns=owns, attachments=attachments, model=model, **options)
        return Publisher._of(way)

    def publish(
        self,
        label: "str | int | None" = None,
        *,
        tensors: "NamedTensors | None" = None,
        version: "int | None" = None,
    ) -> Publication:
        """Publishes the weights as a version; called on every rank. They are not written to meanwhile.

        An error leaves no version half-written, and the next publish works. Ctrl-C ends a wait for the agent, and the
        version with it, but not the wait for the answer to the commit: ``last_publication`` says whether the version is
        committed. A second Ctrl-C ends that wait, too, and takes effect at once if other ranks need this one. Outside
        such a wait, Ctrl-C takes effect after the copy.

        Args:
            label: what the version is called beside its number, such as the trainer's step: text of at most 64 bytes,
                or a number. Several versions may have the same label. All ranks that write and give one must give the
                same.
            tensors: for ``from_stream``: (name, whole tensor) pairs, or a mapping, in any order: every tensor of the
                layout once. A rank that writes needs all of them, those of other ranks' shares too. If the layout lacks
                ``lm_head.weight``, because its checkpoint ties the head to the embedding, that tensor may come after
                the embedding; it must equal the embedding, and is left out. For ``in_place``: the tensors that this
                rank owns, all of them if it is the only one; contiguous, in host memory or on a GPU. Other publishers
                read their own tensors.
            version: greater than every version of the run; None: the next number that was not tried before. Ranks that
                were made together then agree on it, by one ``all_gather_object`` of their group: give it on all ranks
                or on none. Several writers of ``from_stream`` or ``in_place`` must give it.

        Returns:
            The version, which is whole once the last rank has committed it; false where it was skipped, see
            ``skip_while_away``. Of ``from_stream``, on a rank that writes nothing and gave no number, it has number 0.

        Raises:
            BadDataError: the weights are not what was described, or bytes are missing; or ranks give different labels.
            StateError: the version does not increase, or another publish of it is under way.
            AbortedError: another rank failed, vanished or skipped it; the version is gone for all.
            UnavailableError: the agent, or another rank, cannot be reached. A lost rank is final.
        """
        return self._way.publish(label, tensors, version)

    @property
    def layout(self) -> "list[Tuple[TensorMeta, int]]":
        """tensors_meta: every tensor and its byte offset in the data section, in offset order; of ``from_stream`` [] on a
        rank that writes nothing."""
        return list(self._way.layout)

    @property
    def data_bytes(self) -> int:
        """Size of the model's data section in bytes."""
        return sum(meta.nbytes for meta, _ in self.layout)

    @property
    def writes(self) -> bool:
        """Whether this rank writes into the agent's memory: its own part, or that of ranks on other hosts."""
        return self._handle.writes

    @property
    def run(self) -> str:
        """The run that versions are published in, 32 hex digits; the same on every rank; of ``from_stream`` "" on one that
        writes nothing."""
        return self._handle.run

    @property
    def committed_version(self) -> int:
        """The newest version this rank knows to be committed by all ranks; 0 for none.

        A rank that is done before others gets it with its next commit.
        """
        return self._handle.committed_version

    @property
    def last_publication(self) -> "Publication | None":
        """The last version that this rank has committed; None before the first. After a Ctrl-C it says whether the version
        that was being published is committed all the same. StateError: a second Ctrl-C broke off the wait for the agent's
        answer, so that is not known, until the next version is committed."""
        return self._handle.last_publication

    @property
    def stats(self) -> "dict[str, float]":
        """What the last publish and the last ``wait_served`` took, in seconds, bytes and versions, as docs/howto/trainers.md
        lists it. Nothing of one that failed or was skipped."""
        stats = dict(self._handle.stats)
        for other in self._others:
            for name in _SENT:
                stats[name] = stats.get(name, 0) + other.stats.get(name, 0)
        return stats

    def wait_served(
        self,
        label: "str | int | None" = None,
        *,
        version: "int | None" = None,
        receivers: "Receivers | None" = None,
        engines: "int | None" = None,
        timeout: "float | None" = None,
    ) -> int:
        """Waits until the engines of ``receivers``, or so many ``engines``, serve a version of this run, or a newer one, as
        a fleet that has gone on does. Returns the version. Other threads may publish meanwhile, and Ctrl-C ends it.

        Args:
            label: that of the version; of several, of the newest that has it, also one that gets it meanwhile.
            version: its number, in place of a label.
            receivers: how many, with all of their engines, or the names of all that must, RECEIVER or RECEIVER/ENGINE;
                of receivers without an engine it is enough to hold it. None, "*": every one that is connected to the agent,
                and one at least; one that has not come yet is not missed.
            engines: how many, of whichever receivers; in place of ``receivers``.
            timeout: seconds; None waits for ever.

        Raises:
            DeadlineError: the time is up; the text says what each receiver serves and holds, its last error, such as
                why its engine refuses, and which are gone; ``lacking`` are the receivers that lack the version. A label is
                remembered with the newest 4096 of a run.
            StateError: the run has ended, the publisher is closed, or this rank does not write.
            UnavailableError: the time is up, and no agent answers.
        """
        return self._handle.wait_served(label, version, receivers, engines, timeout)

    def begin(self, version: "int | None" = None) -> memoryview:
        """Starts writing ``version``, as for ``publish``; waits, if at all, for the end of the previous diff.

        Returns the data section in shared memory, to be filled in place at the offsets of ``layout``, until commit,
        abort or close: writing to it later damages a version that is served, and receivers refuse it. After close it
        raises ValueError; its slices, and arrays made of it, keep the memory.
        """
        return self._in_place().begin(version)

    def write(self, name: str, tensor: Any) -> None:
        """Copies one whole tensor into the version being written and reports it as done. BadDataError as publish."""
        self._in_place().write(name, tensor)

    def tensors_done(self, names: "Iterable[str]") -> None:
        """Reports that the bytes of these tensors, filled in place, are final. Each is reported once a version;
        ``write`` reports it, too."""
        self._in_place().tensors_done(names)

    def commit(self, label: "str | int | None" = None) -> Publication:
        """This rank is done with the version. BadDataError names the first of its tensors that was not written, or says
        that one was reported twice. ``label`` as for ``publish``."""
        return self._in_place().commit(label)

    def abort(self) -> None:
        """Aborts the version being written, for all ranks."""
        self._in_place().abort()

    @property
    def plan_digest(self) -> str:
        """Names the plan; equal on all ranks."""
        return self._sharded().plan_digest

    def write_descriptions(self, directory: "str | os.PathLike[str]") -> None:
        """Writes the descriptions of all ranks to ``directory``, for ``lockstepctl plan --descriptions``."""
        self._sharded().write_descriptions(directory)

    def close(self) -> None:
        """Leaves the agent; a version being written is aborted. Closing twice is fine. Where a signal's handler closes
        in the middle of a call, that call ends with StateError."""
        for handle in (self._handle, *self._others):
            handle.close()

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _filling(self) -> "ContextManager[Callable[[int, int, int], None]]":
        """Inside, a function that writes a range of the HuggingFace data section, made of the tensors as they are now:
        (offset, bytes, address to write to). BadDataError: this rank does not hold the whole model."""
        return self._sharded().filling()

    def _in_place(self) -> InPlace:
        if not isinstance(self._way, InPlace):
            raise StateError("this is for what Publisher.in_place makes; call publish")
        return self._way

    def _sharded(self) -> Sharded:
        if not isinstance(self._way, Sharded):
            raise StateError("this publisher has no plan: it was made by from_stream or in_place")
        return self._way
