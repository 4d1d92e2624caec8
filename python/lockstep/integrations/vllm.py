"""vLLM's trainer API publishes: a trainer engine for its ``WeightTransferTrainerFactory``, called on every rank.

    info = LockstepTrainerInitInfo(rank=rank, model="actor")
    engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=ModuleSource(model))
    engine.send_weights(label=step)

Importing this registers the backend "lockstep". Written against the sources of vLLM 0.33.0. The engine's side of it is
``lockstep.engine.vllm``.
"""

import dataclasses
import math
from typing import Any, ClassVar, Iterator, Tuple

from vllm.distributed.weight_transfer.base import ParamMeta, Shard, TrainerInitInfo, TrainerWeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from lockstep.core.dtypes import safetensors_dtype
from lockstep.core.errors import BadDataError, bad_tensor
from lockstep.core.served import EVERY, Receivers
from lockstep.core.tensors import TensorMeta
from lockstep.export import Piece, Publisher


@dataclasses.dataclass
class LockstepTrainerInitInfo(TrainerInitInfo):
    """Where weights go, and which engines must have them.

    Args:
        model: the model's name, ``[A-Za-z0-9._-]{1,128}``.
        socket: the agent's unix socket, for ranks on its host; None: as ``Publisher``.
        engine_socket: the receivers' ``--engine-socket``, for the engine's workers; None: they follow by their
            environment, or have it already.
        receivers: the receivers with engines that must serve a version, as for ``Publisher.wait_served``.
        timeout: seconds for that.
        options: of ``lockstep.Publisher.from_tensors`` for a source with ``iter_local``, of ``from_stream`` for others.
    """

    backend: ClassVar[str] = "lockstep"

    model: str
    socket: "str | None" = None
    engine_socket: "str | None" = None
    receivers: Receivers = EVERY
    timeout: float = 600.0
    options: "dict[str, Any]" = dataclasses.field(default_factory=dict)


class LockstepTrainerWeightTransferEngine(TrainerWeightTransferEngine[LockstepTrainerInitInfo]):
    """Each ``send_weights`` is a version, counted from 1. Names, dtypes and shapes are those of a HuggingFace checkpoint.

    A source with ``iter_local`` is published as it is sharded, by each rank its pieces. One without is gathered by
    ``iter_full``, and rank 0, which must own all of it and be on the agent's host, writes.
    """

    init_info_cls = LockstepTrainerInitInfo

    def __init__(self, info: LockstepTrainerInitInfo, *, client: Any, source: Any) -> None:
        super().__init__(client=client, source=source, is_sender=info.is_sender, rank=info.rank)
        self._info = info
        self._source = source
        self._publisher = _publisher_of(info, source)

    @classmethod
    def trainer_init(
        cls, init_info: LockstepTrainerInitInfo, *, client: Any, source: Any = None
    ) -> "LockstepTrainerWeightTransferEngine":
        """Opens the model at the agent, and has the engine's workers follow. Raises as ``Publisher``;
        BadDataError: there is no source, or its rank 0 owns only a part of what it gathers."""
        if source is None:
            raise BadDataError("the lockstep backend publishes a WeightSource; give trainer_init(source=...)")
        engine = cls(init_info, client=client, source=source)
        if engine.is_sender and init_info.engine_socket is not None:
            client.init_weight_transfer_engine({"socket": init_info.engine_socket, "model": init_info.model})
        return engine

    def send_weights(self, label: "str | int | None" = None) -> None:
        """Publishes the weights, which are not written to meanwhile. On rank 0 it returns when the receivers' engines
        serve them and the client's workers have confirmed that; on others, when they are published.

        Raises as ``Publisher.publish``, ``Publication.wait`` and ``client``. A DeadlineError of the wait says what
        keeps the engines.
        """
        stream = None if self._source.implements_iter_local() else self._source.iter_full()
        published = self._publisher.publish(label, tensors=stream)
        if not published or not self.is_sender:
            return
        # First: while a worker waits, vLLM's core does, and could not be paused.
        published.wait(receivers=self._info.receivers, timeout=self._info.timeout)
        self.client.start_weight_update()
        self.client.update_weights({"version": published.version, "run": published.run})
        self.client.finish_weight_update()  # without a name: the receiver has given the server the version's

    def shutdown(self) -> None:
        """Leaves the agent."""
        self._publisher.close()


def _publisher_of(info: LockstepTrainerInitInfo, source: Any) -> Publisher:
    if source.implements_iter_local():
        return Publisher.from_tensors(
            lambda: _pieces(source, info.rank), model=info.model, socket=info.socket, **info.options
        )
    for meta in source.metadata:
        if meta.owners is not None and 0 not in meta.owners:
            raise bad_tensor(meta.name, f"ranks {list(meta.owners)} own it, and rank 0, which writes, does not")
    layout = [TensorMeta(meta.name, safetensors_dtype(meta.name, meta.dtype), meta.shape) for meta in source.metadata]
    return Publisher.from_stream(layout, model=info.model, socket=info.socket, rank=info.rank, **info.options)


def _pieces(source: Any, rank: int) -> "Iterator[Tuple[str, Piece]]":
    """This rank's part of the source, with its place."""
    metas = {meta.name: meta for meta in source.metadata}
    for name, tensor in source.iter_local():
        if name not in metas:
            raise bad_tensor(name, "iter_local yields it, and metadata is without it")
        start, size = block_of(metas[name], rank)
        fits = tuple(tensor.shape) == size or tensor.numel() == math.prod(size) == 0  # FSDP has empty ones of any shape
        if not fits or tensor.dtype != metas[name].dtype:
            raise bad_tensor(
                name,
                f"metadata gives rank {rank} {metas[name].dtype} {list(size)} of it, and iter_local yields "
                f"{tensor.dtype} {list(tensor.shape)}",
            )
        yield name, Piece(tensor.reshape(size), metas[name].shape, start)


def block_of(meta: ParamMeta, rank: int) -> "Tuple[Tuple[int, ...], Tuple[int, ...]]":
    """Where the piece of ``rank`` begins in the whole tensor, and its size. BadDataError: the rank owns none of it."""
    start, size = [0] * len(meta.shape), list(meta.shape)
    if meta.owners is None or meta.placements is None:
        return tuple(start), tuple(size)
    if rank not in meta.owners:
        raise bad_tensor(meta.name, f"iter_local yields it on rank {rank}, and ranks {list(meta.owners)} own it")
    ranks_below, place = len(meta.owners), meta.owners.index(rank)
    for parts, placement in zip(meta.mesh_shape, meta.placements):
        ranks_below //= parts
        coordinate, place = divmod(place, ranks_below)
        if isinstance(placement, Shard):  # as torch.chunk splits: the last ones may be short, or empty
            extent = size[placement.dim]
            chunk = -(-extent // parts)
            before = min(coordinate * chunk, extent)
            start[placement.dim] += before
            size[placement.dim] = min(chunk, extent - before)
    return tuple(start), tuple(size)


WeightTransferTrainerFactory.register_engine(LockstepTrainerInitInfo.backend, LockstepTrainerWeightTransferEngine)
