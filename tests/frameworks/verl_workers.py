"""Ray workers of verl for tests, on the CPU: its FSDP engine, its checkpoint engine's workers and its manager are the
real ones; a server that takes weights is a stand-in, as in verl's own tests of checkpoint engines. Of its Megatron engine
what builds the model is a stand-in, for verl's takes Transformer Engine."""

from types import SimpleNamespace
from typing import Any

import mbridge_loader
import ray
import topologies
import torch
import torch.distributed as dist
import verl_cpu
from harness import ROOT
from hydra import compose, initialize_config_dir
from megatron.core import tensor_parallel
from megatron_models import build_chunks, megatron_on_cpu
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

verl_cpu.use_cpu()

from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry, CheckpointEngineWorker  # noqa: E402
from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.utils.import_utils import import_external_libs  # noqa: E402
from verl.workers.config import (  # noqa: E402
    CheckpointEngineConfig,
    FSDPEngineConfig,
    FSDPOptimizerConfig,
    HFModelConfig,
    McoreEngineConfig,
    McoreOptimizerConfig,
    RolloutConfig,
)
from verl.workers.engine import EngineRegistry  # noqa: E402
from verl.workers.engine_workers import ActorRolloutRefWorker  # noqa: E402
from verl.workers.rollout import BaseRollout, RolloutReplica  # noqa: E402

Tensors = "dict[str, torch.Tensor]"


def rollout_config(checkpoint: str, **engine_kwargs: Any) -> RolloutConfig:
    """What verl makes of the example's configuration, for this checkpoint."""
    kwargs = "+actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.lockstep"
    with initialize_config_dir(str(ROOT / "python/examples"), version_base=None):
        config = compose(
            "verl_grpo",
            [
                "hydra.searchpath=[pkg://verl.trainer.config]",
                f"actor_rollout_ref.model.path={checkpoint}",
                *(f"{kwargs}.{key}={value}" for key, value in engine_kwargs.items()),
            ],
        )
    return omega_conf_to_dataclass(config.actor_rollout_ref.rollout)


def model_config(checkpoint: str) -> HFModelConfig:
    return HFModelConfig(
        path=checkpoint,
        external_lib="lockstep.integrations.verl",
        load_tokenizer=False,
        use_remove_padding=False,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "eager"},
    )


class Spoiled:
    """Before a class of verl's engines. A test can spoil its stream of weights."""

    spoiled_by = ""

    def get_per_tensor_param(self, **options: Any) -> Any:
        stream, adapter = super().get_per_tensor_param(**options)
        how, self.spoiled_by = self.spoiled_by, ""
        return (spoiled(stream, how) if how else stream), adapter


class OnCpu:
    """Before verl's Megatron engine."""

    def _build_tf_config(self) -> None:
        self.is_value_model = self._qat_enabled = False
        self.vanilla_bridge, self.provider, self.peft_cls, self.param_dtype = True, None, None, torch.bfloat16
        self.tf_config, self.share_embeddings_and_output_weights = None, False
        self.topology = topologies.Topology(tp=dist.get_world_size())
        self.bridge = mbridge_loader.bridge_of(self.model_config.hf_config, self.topology)

    def _build_megatron_module(self) -> Any:
        chunks = build_chunks(self.model_config.hf_config, self.topology, te_names=True)
        self.bridge.load_weights(chunks, self.model_config.local_path)
        return chunks

    def _build_optimizer(self) -> Any:
        return SimpleNamespace(step=self._step, zero_grad=lambda: None)

    def _step(self) -> None:
        with torch.no_grad():
            for parameter in self.module[0].parameters():
                parameter.mul_(1.25)

    def _build_lr_scheduler(self) -> None:
        pass


def make_engine(checkpoint: str, backend: str) -> Any:
    """Of the class that verl's registry has."""
    model = model_config(checkpoint)
    found = EngineRegistry.get_engine_cls("language_model", backend)
    if backend == "fsdp2":
        config = FSDPEngineConfig(strategy="fsdp2", use_torch_compile=False)
        optimizer = FSDPOptimizerConfig(lr=0.01, total_training_steps=10)
        return type("Engine", (Spoiled, found), {})(model, config, optimizer, CheckpointConfig())
    megatron_on_cpu().__enter__()  # as long as the process lives
    tensor_parallel.model_parallel_cuda_manual_seed = lambda _: None
    tensor_parallel.random.initialize_rng_tracker(inference_rng_tracker=True)  # the usual one wants a CUDA generator
    config = McoreEngineConfig(tensor_model_parallel_size=dist.get_world_size(), use_mbridge=True, vanilla_mbridge=True)
    return type("Engine", (Spoiled, OnCpu, found), {})(model, config, McoreOptimizerConfig(lr=0.01), CheckpointConfig())


def spoiled(stream: Any, how: str) -> Any:
    for number, (name, tensor) in enumerate(stream):
        if number == 5 and how == "the stream ends":
            raise RuntimeError("the trainer ran out of memory")
        yield f"{name}.unknown" if number == 5 else name, tensor


class Trainer(ActorRolloutRefWorker):
    """A rank of the trainer. ``update_weights`` and ``execute_checkpoint_engine`` are verl's; of its ``init_model`` what
    makes the engine and the checkpoint engine, for the CPU."""

    def __init__(self, checkpoint: str, config: CheckpointEngineConfig, backend: str) -> None:
        Worker.__init__(self)
        dist.init_process_group("gloo")
        self.config = SimpleNamespace(rollout=SimpleNamespace(checkpoint_engine=config))
        engine = make_engine(checkpoint, backend)
        engine.initialize()
        self.actor = SimpleNamespace(engine=engine)
        import_external_libs(config.custom_backend_module)
        self.checkpoint_engine = CheckpointEngineRegistry.new(
            config.backend,
            is_master=dist.get_rank() == 0,
            bucket_size=config.update_weights_bucket_megabytes << 20,
            **config.engine_kwargs[config.backend],
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def train(self) -> None:
        """A step of verl's optimizer on tokens of this rank's own."""
        engine, tokens = self.actor.engine, torch.arange(7)[None] + dist.get_rank()
        if not isinstance(engine.module, list):
            engine.module(input_ids=tokens, labels=tokens).loss.backward()
        engine.optimizer.step()
        engine.optimizer.zero_grad()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def weights(self) -> Tensors:
        """What is trained, whole, as a bf16 checkpoint has it; of the module itself, or by the bridge."""
        if isinstance(self.actor.engine.module, list):
            return {name: tensor.clone() for name, tensor in self.actor.engine.get_per_tensor_param()[0]}
        state = self.actor.engine.module.state_dict()
        return {name: tensor.full_tensor().bfloat16() for name, tensor in state.items()}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def spoil_next_stream(self, how: str) -> None:
        self.actor.engine.spoiled_by = how


class Server(BaseRollout):
    """Takes weights, and keeps them."""

    async def resume(self, tags: "list[str]") -> None:
        raise NotImplementedError

    async def release(self) -> None:
        raise NotImplementedError

    async def update_weights(self, weights: Any, wire_format: str = "named_tensors", **options: Any) -> None:
        assert wire_format == "named_tensors"
        received = {name: tensor.clone() async for name, tensor in weights}
        self.received, self.global_steps = received, options["global_steps"]


class Rollout(CheckpointEngineWorker):
    """A worker of a rollout."""

    def __init__(self, rollout_config: RolloutConfig, model_config: HFModelConfig) -> None:
        super().__init__(rollout_config, model_config, Server(rollout_config, model_config, device_mesh=None))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def received(self) -> "tuple[int | None, Tensors]":
        """verl's step and the tensors of the last update that ended well."""
        return self.server_adapter.global_steps, self.server_adapter.received


class Replica(RolloutReplica):
    """A rollout without servers, so that a request to all of its servers succeeds at once."""

    async def launch_servers(self) -> None:
        pass


def worker_group(cls: type, workers: int, **arguments: Any) -> RayWorkerGroup:
    pool = RayResourcePool(process_on_nodes=[workers], use_gpu=False, max_colocate_count=1)
    return RayWorkerGroup(pool, RayClassWithInitArgs(cls=ray.remote(cls), **arguments), device_name="cpu")


class Job:
    """A trainer of two ranks and two rollouts of a worker each, with verl's manager between them."""

    def __init__(self, checkpoint: str, backend: str = "fsdp2", **engine_kwargs: Any) -> None:
        self._checkpoint, self._backend = checkpoint, backend
        rollout = rollout_config(checkpoint, **engine_kwargs)
        self._config = rollout.checkpoint_engine
        model = model_config(checkpoint)
        self._workers = worker_group(Rollout, 2, rollout_config=rollout, model_config=model)
        self.replicas = [Replica(number, rollout, model) for number in range(2)]
        for replica, worker in zip(self.replicas, self._workers.workers):
            replica.workers = [worker]
        self.start_trainer()

    def start_trainer(self) -> None:
        self.trainer = worker_group(Trainer, 2, checkpoint=self._checkpoint, config=self._config, backend=self._backend)
        self.manager = CheckpointEngineManager(self._config, self.trainer, list(self.replicas))

    def kill_trainer(self) -> None:
        for worker in self.trainer.workers:
            ray.kill(worker)

    def update(self, global_steps: int) -> None:
        self.manager.update_weights(global_steps=global_steps)

    def received(self) -> "list[tuple[int | None, Tensors]]":
        """Of each rollout worker."""
        return self._workers.received()

    def trained(self) -> Tensors:
        return self.trainer.weights()[0]
