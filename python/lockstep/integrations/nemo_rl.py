"""A checkpoint engine of NeMo-RL: the policy publishes, and vLLM loads what the receiver on its host has proved.

    policy.generation:
      refit_transport: "lockstep.integrations.nemo_rl:LockstepCheckpointEngine"
      refit_cfg:
        "lockstep.integrations.nemo_rl:LockstepCheckpointEngine": {release_after_refit: true, checkpoint: ..., ...}

Written against the sources of NeMo-RL of 2026-08.
"""

import os
import uuid
from collections import deque
from typing import Any, AsyncIterator, Iterator

import torch
from nemo_rl.utils.checkpoint_engines.base import CheckpointEngine

from lockstep.core import arguments
from lockstep.core.checkpoint_files import local_checkpoint
from lockstep.core.errors import BadDataError
from lockstep.export import Part, Publisher
from lockstep.integrations._replicas import open_replica


class LockstepCheckpointEngine(CheckpointEngine):
    """Rank 0 of the policy publishes what its workers gather, or every rank its own shards; every rollout worker gives
    vLLM's own loader the whole tensors of the version that this refit published, and of no other.

    A version's label is the refit's name, 32 hex digits, which every worker learns before it: NeMo-RL gives no step.

    Args:
        bucket_size: bytes of tensors that vLLM is given at a time; a larger tensor comes alone.
        release_after_refit: must be true, so that every refit is prepared, and named, by itself.
        checkpoint: what the model was loaded from, a directory or a name on the HuggingFace hub, for the tensors' names,
            dtypes and shapes.
        model: what the model is called.
        socket: the agent's, on the host of the policy's rank 0; None: as ``Publisher``.
        root: the receiver's ``--root`` on every host with rollouts; None: $LOCKSTEP_ROOT, then the usual one.
        dtype: that of the checkpoint, to which float32 tensors are rounded.
        device: where vLLM is given the tensors.
        timeout_s: how long a rollout waits for a version; one that is waiting does nothing else.
    """

    def __init__(
        self,
        bucket_size: int,
        *,
        checkpoint: str,
        model: str = "actor",
        socket: "str | None" = None,
        root: "str | None" = None,
        dtype: str = "bfloat16",
        device: str = "cuda",
        timeout_s: float = 600.0,
        release_after_refit: bool = False,
    ) -> None:
        if not release_after_refit:
            raise BadDataError("release_after_refit is false; set it to true, in refit_cfg beside the checkpoint")
        self._bucket_bytes, self._device, self._timeout_s = bucket_size, device, timeout_s
        self._checkpoint, self._socket, self._model = checkpoint, socket, model
        self._replica = os.path.join(arguments.replica_root(root), model)
        self._dtype = getattr(torch, dtype)
        self._part: "Part | None" = None
        self._publisher: "Publisher | None" = None
        self._refit = ""

    def publish_shards_of(self, part: Part) -> None:
        """Every rank publishes its own shards of ``part``, such as ``lockstep.megatron`` makes, in place of what the policy
        gathers. For a policy's worker of your own, on every rank, before the first refit."""
        self._part = part

    def prepare(self) -> "dict[str, Any]":
        """A name for the refit; that of the policy's rank 0 counts."""
        return {"refit": uuid.uuid4().hex}

    def init_policy_process_group(self, *, worker_rank: int, metadata: "list[dict[str, Any]]", **_: int) -> None:
        """There is no group. Ranks that publish open the model, once. Raises as the makers of ``Publisher``."""
        self._refit = metadata[0]["refit"]
        if self._publisher is not None:
            return
        if self._part is not None:
            self._publisher = Publisher.from_parts([self._part], model=self._model, socket=self._socket)
        elif worker_rank == 0:
            self._publisher = Publisher.from_stream(
                local_checkpoint(self._checkpoint), model=self._model, socket=self._socket, dtype=self._dtype
            )

    def init_rollout_process_group(self, *, metadata: "list[dict[str, Any]]", **_: int) -> None:
        """There is no group."""
        self._refit = metadata[0]["refit"]

    async def send_weights(self, weights: "Iterator[tuple[str, torch.Tensor]]") -> None:
        """On every rank of the policy. Raises on those that publish what ``Publisher.publish`` does."""
        if self._publisher is None:
            deque(weights, maxlen=0)  # to its end: every rank takes part in gathering each tensor
        else:
            self._publisher.publish(self._refit, tensors=weights if self._part is None else None)

    async def receive_weight_batches(self) -> "AsyncIterator[list[tuple[str, torch.Tensor]]]":
        """Whole tensors on ``device``, batch by batch. Raises as ``open_replica``."""
        refit = self._refit
        with await open_replica(
            self._replica,
            f"the version of refit {refit}",
            lambda replica: replica.label == refit,
            lambda: self._refit == refit,
            self._timeout_s,
        ) as replica:
            batch: "list[tuple[str, torch.Tensor]]" = []
            size = 0
            for name, tensor in replica.state_dict().items():
                if batch and size + tensor.nbytes > self._bucket_bytes:
                    yield batch
                    batch, size = [], 0
                batch.append((name, tensor.to(self._device)))
                size += tensor.nbytes
            yield batch
