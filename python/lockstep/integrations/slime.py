"""slime's weight update by Lockstep: the trainer publishes, and SGLang's servers load what the receiver on their host has
proved.

    --custom-megatron-init-path lockstep.integrations.slime.install --custom-config-path lockstep.yaml

with a file of what is not as usual: ``lockstep_model`` ("actor"); ``lockstep_socket``, of the agent on the host of the
trainer's rank 0; ``lockstep_root``, the ``--root`` of the receivers, one on every host of SGLang; ``lockstep_receivers``,
how many these are or their names, where a server is on several hosts; ``lockstep_timeout_s`` (600); ``lockstep_shards``
(false): every rank publishes its own shards, by a record of what slime makes of them. Servers load the receiver's ``current`` in
place of slime's transfer over NCCL. Written against the sources of slime of 2026-08.
"""

import os
from typing import Any, Iterator, Sequence
from urllib.parse import urlsplit

import ray
import torch
import torch.distributed as dist

from lockstep.core import arguments
from lockstep.core.errors import AbortedError, BadDataError
from lockstep.core.publication import Publication
from lockstep.core.served import Receivers
from lockstep.export import Publisher
from lockstep.integrations._stored import rounded_as_stored


def install(args: Any) -> None:
    """Called by slime on every rank, before it chooses how to update weights. BadDataError: it would choose another way
    than over NCCL."""
    if args.colocate or (args.update_weight_mode, args.update_weight_transport) != ("full", "nccl"):
        raise BadDataError("lockstep takes the place of slime's NCCL; give neither --colocate nor --update-weight-*")
    if getattr(args, "lockstep_shards", False) and args.offload_train:
        raise BadDataError("lockstep_shards keeps a process group, which --offload-train destroys; give one of the two")
    from slime.backends.megatron_utils import actor

    actor.UpdateWeightFromDistributed = UpdateWeightByLockstep


class UpdateWeightByLockstep:
    """As slime's own ``UpdateWeightFrom...``. Every rank takes part in gathering, and rank 0 publishes; with
    ``lockstep_shards`` every rank publishes its own shards. Rank 0 waits until every connected receiver holds the version,
    and as many as there are hosts of servers, and has the servers load it. ``weight_version``, slime's, is the version's
    label."""

    def __init__(
        self, args: Any, model: "Sequence[torch.nn.Module]", weights_getter: Any, *, model_name: str, **options: Any
    ) -> None:
        from slime.backends.megatron_utils.update_weight.hf_weight_iterator_base import HfWeightIteratorBase

        self.weight_version = 0
        self.rollout_engines: "Sequence[Any]" = ()
        self._weights_getter = weights_getter
        self._model_name: str = getattr(args, "lockstep_model", "actor")
        self._root = arguments.replica_root(getattr(args, "lockstep_root", None))
        self._timeout_s: float = getattr(args, "lockstep_timeout_s", 600.0)
        self._receivers: "Receivers | None" = getattr(args, "lockstep_receivers", None)
        self._iterator = HfWeightIteratorBase.create(args=args, model=model, model_name=model_name, **options)
        self._shards: bool = getattr(args, "lockstep_shards", False)
        self._publisher = self._publisher_of(args)

    def connect_rollout_engines(self, rollout_engines: "Sequence[Any]", *_: Any, **__: Any) -> None:
        """Remembers which engines to notify; there is no group to join."""
        self.rollout_engines = rollout_engines

    def disconnect_rollout_engines(self) -> None:
        """Nothing."""

    def pop_metrics(self) -> "dict[str, float]":
        """None."""
        return {}

    @torch.no_grad()
    def update_weights(self) -> None:
        """On every rank; returns when every server has loaded. Raises what ``Publisher.publish`` does, on other ranks
        AbortedError; and on rank 0 as ``wait``, and what a server answers."""
        from slime.utils.distributed_utils import get_gloo_group

        self.weight_version += 1
        failure = ""
        try:
            tensors = None if self._shards else self._stream()
            publication = self._publisher.publish(self.weight_version, tensors=tensors)
        except BaseException as error:
            failure = f"{type(error).__name__}: {error}"
            raise
        finally:
            failures: "list[str]" = [""] * dist.get_world_size()
            dist.all_gather_object(failures, failure, group=get_gloo_group())
        for rank, reason in enumerate(failures):
            if reason:
                raise AbortedError(f"rank {rank} could not publish: {reason}")
        try:
            if dist.get_rank() == 0:
                self._load(publication)
        finally:
            dist.barrier(group=get_gloo_group())

    def _publisher_of(self, args: Any) -> Publisher:
        socket = getattr(args, "lockstep_socket", None)
        if not self._shards:
            return Publisher.from_stream(
                args.hf_checkpoint, model=self._model_name, socket=socket, rank=dist.get_rank(), dtype=torch.bfloat16
            )
        from slime.utils.distributed_utils import get_gloo_group

        return Publisher.from_megatron(
            self._weights_getter,
            recorded_from=rounded_as_stored(self._stream, args.hf_checkpoint),
            checkpoint=args.hf_checkpoint,
            convert=True,
            model=self._model_name,
            socket=socket,
            group=get_gloo_group(),
        )

    def _stream(self) -> "Iterator[tuple[str, torch.Tensor]]":
        for chunk in self._iterator.get_hf_weight_chunks(self._weights_getter()):
            yield from chunk

    def _load(self, publication: Publication) -> None:
        publication.wait(timeout=self._timeout_s)  # every one that is connected,
        publication.wait(receivers=self._receivers or self._hosts(), timeout=self._timeout_s)  # and so many at least
        self._tell("pause_generation")
        self._tell("flush_cache")
        self._tell(
            "update_weights_from_disk",
            model_path=os.path.join(self._root, self._model_name, "current"),
            weight_version=str(self.weight_version),
        )
        self._tell("continue_generation")

    def _hosts(self) -> int:
        urls = self._tell("get_url")
        hosts = {urlsplit(url or "").hostname for url in urls}
        if not hosts or None in hosts:
            shown = [(url or "").rpartition("@")[2] for url in urls]  # no user and no password
            raise BadDataError(
                f"slime's servers are at {shown}; give lockstep_receivers, how many hosts of servers there are"
            )
        return len(hosts)

    def _tell(self, method: str, **words: Any) -> "list[Any]":
        answers: "list[Any]" = ray.get([getattr(engine, method).remote(**words) for engine in self.rollout_engines])
        return answers
