"""verl's checkpoint engine ``lockstep``: trainers publish, and rollouts load what the receiver on their host has proved.

    actor_rollout_ref.rollout.checkpoint_engine.backend=lockstep
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=lockstep.integrations.verl
    '+actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.lockstep.checkpoint=${actor_rollout_ref.model.path}'

With ``engine_kwargs.lockstep.shards=true`` every rank of the trainer publishes its own shards. That takes verl's training engine,
which its workers make by a registry: ``actor_rollout_ref.model.external_lib=lockstep.integrations.verl`` and the trainer's
VERL_ENGINE_VENDOR=lockstep have them make the one of this module. Written against the sources of verl 0.9.1.
"""

import os
from collections import deque
from typing import Any, AsyncIterator, ClassVar, Iterator, Mapping, NamedTuple, Tuple

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.device import get_device_name

from lockstep.core import arguments
from lockstep.core.agreement import gather, made_by
from lockstep.core.checkpoint_files import local_checkpoint
from lockstep.core.errors import BadDataError, StateError
from lockstep.daemons import ensure_agent, ensure_receiver
from lockstep.engine import Replica
from lockstep.export import Part, Publisher, fsdp, megatron
from lockstep.integrations._replicas import check_reachable, check_room, open_replica
from lockstep.integrations._stored import rounded_as_stored

_VENDOR = "lockstep"  # of the engines that _register_engines registers


class _Announced(NamedTuple):
    """The version that an update is about to publish, as the trainer's first rank tells it to every rollout worker."""

    run: str
    version: int
    agent: str  # its address, where daemons were not given
    host: str  # of that agent
    model_bytes: int

    def is_of(self, replica: Replica) -> bool:
        return (replica.run, replica.version) == (self.run, self.version)


@CheckpointEngineRegistry.register("lockstep")
class LockstepCheckpointEngine(CheckpointEngine):
    """Rank 0 of the trainer publishes what verl gathers; every rollout worker gives verl's own loader the whole tensors
    of the version that this update published, and of no other.

    Versions are numbered by this class; verl's ``global_steps``, which may be 0 or repeat, is their label. An update
    that fails leaves rollouts with the version before, and the next one works.

    Args:
        bucket_size, is_master: as verl gives them, the latter to the trainer's ranks alone; there are no buckets.
        checkpoint: what the model was loaded from, a directory or a name on the HuggingFace hub, for the tensors' names,
            dtypes and shapes.
        model: what the model is called.
        port: the agent's, for rollouts on other hosts, which are refused without it. 0: any port; an agent that
            replaces a dead one has another, and receivers do not find it. None: all workers are on one host.
        agent, receiver: options of these (docs/reference/options.md). They start on the hosts that Ray chose, and end
            with the workers there. With a port both need ``tls_cert`` and the like, and the agent ``tls_policy``; or
            both need the name of a network that may read the weights, ``allow_insecure_network: 10.20.0.0/16``.
        socket: of daemons that are there already, instead: the agent's on the host of the trainer's rank 0.
        root: with a socket, the ``--root`` of the receiver on every host with rollouts; None: $LOCKSTEP_ROOT, then the
            usual one.
        dtype: that of the checkpoint, to which the trainer's float32 tensors are rounded.
        timeout_s: how long a rollout waits for a version.
        shards: every rank publishes its own shards of FSDP2 or Megatron, in place of what verl gathers.
    """

    def __init__(
        self,
        bucket_size: int,
        is_master: "bool | None" = None,
        *,
        checkpoint: str,
        model: str = "actor",
        port: "int | None" = None,
        agent: "Mapping[str, Any] | None" = None,
        receiver: "Mapping[str, Any] | None" = None,
        socket: str = "",
        root: "str | None" = None,
        dtype: str = "bfloat16",
        timeout_s: float = 600.0,
        shards: bool = False,
    ) -> None:
        if root is not None and not socket:
            raise BadDataError(f"root is {root!r} without a socket; give both, or none to start daemons")
        self._is_master = is_master
        self._checkpoint, self._model = checkpoint, model
        self._port, self._agent_options, self._receiver_options = port, agent or {}, receiver or {}
        self._starts_daemons = not socket
        self._socket = socket
        self._replica = os.path.join(arguments.replica_root(root), model) if socket else ""
        self._receiver: "str | None" = None
        self._dtype = getattr(torch, dtype)
        self._timeout_s = timeout_s
        self._shards = shards
        self._publisher: "Publisher | None" = None
        self._version = 0
        self._awaited: "_Announced | None" = None

    def prepare(self) -> "_Announced | None":
        """On ranks of the trainer that publish, what this update will. A worker that still waits for the version of an
        update before, which failed, gives it up."""
        self._awaited = None
        if self._is_master is None or not (self._is_master or self._shards):
            return None
        agent, self._socket, host = self._find_agent()
        if self._publisher is None:
            self._publisher = self._open(host)
        self._version += 1
        return _Announced(self._publisher.run, self._version, agent, host, self._publisher.data_bytes)

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: "list[Any]"
    ) -> "tuple[dict[str, list[Any]], dict[str, list[Any]]]":
        """Rollouts learn what rank 0 of the trainer will publish: its metadata is the first."""
        return {}, {"announced": metadata[:1] * rollout_world_size}

    def init_process_group(self, announced: "_Announced | None" = None) -> None:
        """There is no group. On a rollout worker: the version to wait for. BadDataError: it is on another host, and the
        agent has no port. ResourceExhaustedError: its host has no room for the model."""
        self._awaited = announced
        if announced is not None and self._starts_daemons:
            check_reachable(announced.agent, announced.host, ray.util.get_node_ip_address())
            receiver = ensure_receiver(announced.agent, self._model, end_with_owner=True, **self._receiver_options)
            self._replica, self._receiver = receiver.replica(self._model), receiver.control
            check_room(self._replica, announced.model_bytes)

    async def send_weights(
        self, weights: "Iterator[tuple[str, torch.Tensor]]", global_steps: "int | None" = None
    ) -> None:
        """On every rank of the trainer. Raises on those that publish what ``Publisher.publish`` does."""
        if self._publisher is None:
            deque(weights, maxlen=0)  # to its end: every rank takes part in gathering each tensor
        else:
            tensors = None if self._shards else weights
            self._publisher.publish(global_steps, tensors=tensors, version=self._version)

    async def receive_weights(self, global_steps: "int | None" = None) -> "AsyncIterator[tuple[str, torch.Tensor]]":
        """Whole tensors on verl's device. Raises as ``open_replica``."""
        announced = self._awaited
        if announced is None:
            raise StateError("no version was announced to this worker; call prepare and init_process_group before")
        with await open_replica(
            self._replica,
            f"version {announced.version} of run {announced.run[:8]}",
            announced.is_of,
            lambda: self._awaited is announced,
            self._timeout_s,
            self._receiver,
        ) as replica:
            for name, tensor in replica.state_dict().items():
                yield name, tensor.to(get_device_name())

    def finalize(self) -> None:
        """Nothing: the publisher stays open, and the replica was closed when it was read."""

    def _find_agent(self) -> "Tuple[str, str, str]":
        """The agent's address, for receivers, its socket, and its host, which is that of rank 0."""

        def find() -> "Tuple[str, str, str]":
            host = ray.util.get_node_ip_address()
            if not self._starts_daemons:
                return "", self._socket, host
            listen = "" if self._port is None else f"{host}:{self._port}"
            agent = ensure_agent(listen=listen, end_with_owner=True, **self._agent_options)
            return agent.grpc or agent.control, agent.socket, host

        return made_by(0, find, None) if self._shards else find()

    def _open(self, host: str) -> Publisher:
        if not self._shards:
            layout = local_checkpoint(self._checkpoint)
            return Publisher.from_stream(layout, model=self._model, socket=self._socket, dtype=self._dtype)
        parts: "list[Part]" = []
        gather(lambda: parts.append(self._part()), None)  # made on every rank, or on none
        here = ray.util.get_node_ip_address() == host
        return Publisher.from_parts(parts, model=self._model, socket=self._socket, on_agent_host=here)

    def _part(self) -> Part:
        engine = _Trained.engine
        if engine is None:
            raise BadDataError(
                f"shards needs an engine of verl's for FSDP2 or Megatron that {__name__} makes: set the trainer's "
                f"VERL_ENGINE_VENDOR={_VENDOR}, and actor_rollout_ref.model.external_lib={__name__}"
            )
        weights, _ = engine.get_per_tensor_param()  # on the GPU from here on, also where verl offloads them
        del weights
        if not isinstance(engine.module, list):
            return fsdp(engine.module, dtype=self._dtype)
        layout = local_checkpoint(self._checkpoint)
        export = rounded_as_stored(lambda: engine.get_per_tensor_param()[0], layout)
        return megatron(engine.module, recorded_from=export, checkpoint=layout, convert=True)


class _Trained:
    """Before a class of verl's engines: says which engine of this process is trained."""

    engine: "ClassVar[Any]" = None

    def initialize(self: Any) -> None:
        super().initialize()  # type: ignore[misc]
        if not self.engine_config.forward_only:
            _Trained.engine = self


def _register_engines() -> None:
    """verl then makes these in place of its own."""
    from verl.workers import engine as engines

    for backend, engine in (("fsdp2", engines.FSDPEngineWithLMHead), ("megatron", engines.MegatronEngineWithLMHead)):
        if engine is not None:  # verl has it where Megatron is
            register = engines.EngineRegistry.register("language_model", backend, vendor=_VENDOR)
            register(type(engine.__name__, (_Trained, engine), {}))


if os.environ.get("VERL_ENGINE_VENDOR") == _VENDOR:
    _register_engines()
