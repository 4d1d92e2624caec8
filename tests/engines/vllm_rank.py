"""A program (json_program.py): one rank of vLLM. A receiver writes its parameters, by the plugin or by a Follower."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import vllm.plugins
from json_program import answer_requests
from killed_receiver import kill_at
from safetensors.torch import save_file
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.quantization.online.lm_head import quantized_lm_head_copy
from vllm.plugins import load_general_plugins
from vllm.v1.worker.gpu_worker import Worker as VllmWorker
from vllm.v1.worker.worker_base import WorkerWrapperBase
from vllm_memory import SleepingMemory
from vllm_model import Model, Rank

from lockstep.engine._processing import Processing
from lockstep.engine._vllm_loading import note


class Worker:
    """As much of vLLM's worker as there is without a GPU."""

    def __init__(self) -> None:
        self.model: Any = None
        self.engine: Any = None
        self.memory: "SleepingMemory | None" = None
        self.wrapper: Any = None
        self.runner: Any = None
        self.checkpoint = ""
        self._groups = contextlib.ExitStack()

    def build(
        self,
        checkpoint: str,
        tensor: "list[int]",
        data: "list[int]",
        expert_parallel: bool,
        whole_tower: bool = False,
    ) -> None:
        """The rank's model, its weights NaN."""
        self.runner = None
        self._groups.close()
        rank = Rank(tuple(tensor), tuple(data), expert_parallel, whole_tower=whole_tower)
        self.model = Model(Path(checkpoint), rank)
        self._groups.enter_context(self.model.groups())
        self._loaded = list(self.model.parameters())

    def load(self, checkpoint: str) -> None:
        """vLLM's own loader."""
        self.checkpoint = checkpoint
        self.model.load(Path(checkpoint))

    def into_sleeping_memory(self) -> None:
        """The model's parameters lie from here on where a sleep takes them away."""
        self.memory = SleepingMemory(self.model.module)

    def collective_rpc(self, method: str, arguments: "list[Any]") -> Any:
        """As the executor calls a worker: by its wrapper. The device is idle, and as large as it was."""
        idle = {"synchronize": lambda *_: None, "get_memory_info": lambda *_: (1 << 30, 1 << 30)}
        with mock.patch.multiple(torch.accelerator, **idle):
            return getattr(self.wrapper, method)(*arguments)

    def add_draft(self) -> None:
        """The worker's runner is vLLM's own from here on. It has a draft model whose head is a quantised copy of the model's,
        and an image that an encoder has seen."""
        from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache
        from vllm.v1.worker.gpu.model_runner import GPUModelRunner
        from vllm.v1.worker.gpu.spec_decode.speculator import DraftModelSpeculator

        model, processed = self.model, self._processed

        class Runner(GPUModelRunner):
            def load_model(self, **_: Any) -> None:
                processed()

            def reset_lora_state(self) -> None:
                with model.current():
                    super().reset_lora_state()

        class Speculator(DraftModelSpeculator):
            pass

        Speculator.__abstractmethods__ = frozenset()  # nothing is drafted
        self.runner = Runner.__new__(Runner)
        self.runner.model, self.runner.vllm_config, self.runner.lora_config = model.module, model.config, None
        self.runner.pooling_runner, self.runner.encoder_cache = None, EncoderCache()
        self.runner.speculator = Speculator.__new__(Speculator)
        self.runner.speculator.model = torch.nn.ModuleDict({"lm_head": self._quantised_head()})
        self.runner.encoder_cache.encoder_outputs["image"] = torch.zeros(1)

    def stale(self) -> "list[str]":
        """What the runner has that is of other weights than the model's."""
        held, fresh = self.runner.speculator.model["lm_head"].state_dict(), self._quantised_head().state_dict()
        heads = [name for name in fresh if not torch.equal(held[name].float(), fresh[name].float())]
        return [*heads, *self.runner.encoder_cache.encoder_outputs]

    def _quantised_head(self) -> Any:
        with self.model.current():
            return quantized_lm_head_copy(self.model.module.lm_head, "fp8")

    def join(self, address: str, rank: int, world: int) -> None:
        """All ranks join one group of processes, as vLLM's workers do."""
        torch.distributed.init_process_group("gloo", init_method=f"tcp://{address}", rank=rank, world_size=world)

    def kill_at(self, step: int, receiver: int) -> None:
        """Of the receiver's next commit."""
        kill_at(self.engine.follower, step, receiver)

    def load_plugins(self) -> "list[str]":
        """What a process of vLLM does at its start; the backends there are then."""
        load_general_plugins()
        return list(WeightTransferEngineFactory._registry)

    def create_engine(self, backend: str, repacked: str = "") -> str:
        """What the worker does when its model is loaded; the engine's class."""
        config, module = self.model.config, self.model.module
        self._processed(repacked)
        self.engine = WeightTransferEngineFactory.create_engine(
            WeightTransferConfig(backend=backend), config, torch.device("cpu"), module
        )
        self.engine.model_runner = SimpleNamespace()
        return type(self.engine).__name__

    def _processed(self, repacked: str = "") -> None:
        """What vLLM does to weights that are loaded, for kernels of GPUs; ``repacked``: the parameter that they want in another
        order."""
        config, module = self.model.config, self.model.module
        with self.model.current():
            look = Processing(module)
            self.model.process()
            if repacked:
                weight = module.get_parameter(repacked).data
                weight.copy_(weight.flip(0).clone())
            note(module, config, config.model_config, "", look.end(module))

    def start(self, environment: "dict[str, str]", backend: "str | None", load_format: str = "auto") -> "str | None":
        """As a process with that environment, --weight-transfer-config and --load-format starts: it loads its plugins, and
        vLLM's worker its model. The class of its engine for weights, if it has one."""
        worker = VllmWorker.__new__(VllmWorker)  # without a device
        worker.vllm_config, worker.device = self.model.config, torch.device("cpu")
        worker.vllm_config.weight_transfer_config = None if backend is None else WeightTransferConfig(backend=backend)
        worker.vllm_config.load_config.load_format = load_format
        worker.weight_transfer_engine = None
        worker.model_runner = self.runner or SimpleNamespace(
            load_model=lambda **_: self._processed(),
            get_model=lambda: self.model.module,
            model=self.model.module,
            get_draft_model=lambda: None,
            reload_weights=lambda: self.model.load(Path(self.checkpoint)),
        )
        worker.model_config, worker._sleep_saved_buffers, worker._sleep_saved_draft_buffers = (
            self.model.config.model_config,
            {},
            {},
        )
        worker._sleep_saved_parameters = {}
        worker._sleep_mode_backend = self.memory
        wrapper = self.wrapper = WorkerWrapperBase()
        wrapper.worker, wrapper.vllm_config = worker, worker.vllm_config
        self.engine, vllm.plugins.plugins_loaded = None, False
        with mock.patch.dict(os.environ, environment), self.model.current(), _restored(WorkerWrapperBase, "load_model"):
            load_general_plugins()
            wrapper.load_model()
        self.engine = worker.weight_transfer_engine
        return None if self.engine is None else type(self.engine).__name__

    def balance_experts(self) -> None:
        """By EPLB."""
        self.model.config.parallel_config.enable_eplb = True

    def move(self, name: str) -> None:
        """A parameter gets other memory."""
        parameter = self.model.module.get_parameter(name)
        parameter.data = parameter.data.clone()

    def copy_latent_views(self) -> None:
        """As kernels do that take another form of kv_b_proj."""
        for layer in self.model.module.modules():
            if hasattr(layer, "W_UV"):
                layer.W_UV.data = layer.W_UV.data.clone()

    def init(self, init_info: "dict[str, Any]") -> None:
        """/init_weight_transfer_engine"""
        with self.model.current():
            self.engine.init_transfer_engine(self.engine.parse_init_info(init_info))

    def update(self, update_info: "dict[str, Any]") -> None:
        """/start_weight_update, /update_weights, /finish_weight_update"""
        with self.model.current():
            self.engine.start_weight_update()
            self.engine.receive_weights(self.engine.parse_update_info(update_info))
            self.engine.finish_weight_update()

    def shut_down(self) -> None:
        """/shutdown_weight_transfer_engine"""
        if self.engine is not None:
            self.engine.shutdown()

    def save(self, output: str) -> None:
        """Saves the parameters that vLLM loads."""
        save_file({name: tensor for name, tensor in self.model.parameters().items() if name in self._loaded}, output)


@contextlib.contextmanager
def _restored(kind: type, name: str) -> Iterator[None]:
    """Afterwards the class is without what was given to it under a name that it has not."""
    try:
        yield
    finally:
        if name in vars(kind):
            delattr(kind, name)


if __name__ == "__main__":
    worker = Worker()
    answer_requests(
        worker.join,
        worker.kill_at,
        worker.build,
        worker.load,
        worker.load_plugins,
        worker.add_draft,
        worker.stale,
        worker.move,
        worker.create_engine,
        worker.start,
        worker.into_sleeping_memory,
        worker.collective_rpc,
        worker.balance_experts,
        worker.copy_latent_views,
        worker.init,
        worker.update,
        worker.shut_down,
        worker.save,
    )
