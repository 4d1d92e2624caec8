"""Publisher: how a trainer's weights become versions at the agent on its host."""

import os
from typing import TYPE_CHECKING, Any, Callable, Iterable, Mapping, Sequence, Tuple

from lockstep.core.agreement import ALONE
from lockstep.core.keywords import takes
from lockstep.core.tensors import NamedTensors, TensorMeta
from lockstep.export._adapter import adapter as adapter_part
from lockstep.export._fsdp import fsdp, refuse_sharded
from lockstep.export._in_place_writer import InPlaceWriter
from lockstep.export._megatron import megatron
from lockstep.export._named_tensors import named_tensors
from lockstep.export._parts import Frozen, Part
from lockstep.export._sharded_writer import ShardedWriter
from lockstep.export._stream_writer import Layout, Patterns, StreamWriter
from lockstep.export._writer import CommonOptions, Writer

if TYPE_CHECKING:
    from typing_extensions import Unpack


class ShardedOptions(CommonOptions, total=False):
    """Beside these, where all ranks of a group make it together."""

    group: Any
    on_agent_host: "bool | None"
    bucket_bytes: int


class StreamOptions(CommonOptions, total=False):
    """Beside these, of ``from_stream``."""

    rank: int
    writers: int
    dtype: Any
    ignore: Patterns
    keep: Patterns
    attachments: "Mapping[str, str] | None"


class Publisher(Writer):
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

    Publishers that all ranks of a group make together exchange what they hold, whether they are ready, and the number
    of each version, by ``all_gather_object``. They compile a plan of what each rank copies, and prove it. They take
    also:

    Args:
        group: the process group of all ranks that hold the model; None: the default one, or just this process when
            torch.distributed is not initialised.
        on_agent_host: whether this rank is on the agent's host; None: whether ``socket`` exists here. All ranks then
            wait until it exists for one of them. Ranks on other hosts send their shards to a rank on the agent's host,
            and ``skip_while_away`` is then refused.
        bucket_bytes: memory for that, on each rank; 0: 512 MiB, 64 MiB where GPU and CPU share memory.

    Raises:
        BadDataError: the description breaks a rule, such as a parameter without one, of a wrong shape or dtype, held by no
            rank or by two; the text names it.
        AbortedError: another rank could not be made ready; the text has its number and its reason.
        UnavailableError: no agent on ``socket``.
        Error: any other class of it, with the library's sentence.
    """

    def __new__(cls, *_: Any, **__: Any) -> "Publisher":
        if cls is Publisher:
            raise TypeError(
                "a Publisher is made by from_module, from_fsdp, from_megatron, from_tensors, from_adapter, from_parts, "
                "from_stream or in_place"
            )
        return super().__new__(cls)

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
        return _ShardedPublisher([part], model=model, group=ALONE, **options)

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
        return _ShardedPublisher(parts, model=model, **options)

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
        return _StreamPublisher(layout, model=model, **options)

    @staticmethod
    @takes(CommonOptions)
    def in_place(
        layout: "NamedTensors | Iterable[TensorMeta]",
        *,
        model: str,
        rank: int = 0,
        ranks: int = 1,
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
            attachments: small text files that belong to the model, file name to text, the same on every rank; receivers
                write them next to the tensors. With "adapter_config.json" among them that is a PEFT adapter's directory.
        """
        return _InPlacePublisher(layout, rank=rank, ranks=ranks, attachments=attachments, model=model, **options)


# What the makers return: a writer of each kind that is a Publisher. They stand below the class that they derive from.
class _ShardedPublisher(ShardedWriter, Publisher):
    pass


class _InPlacePublisher(InPlaceWriter, Publisher):
    pass


class _StreamPublisher(StreamWriter, Publisher):
    pass
