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
from safetensors.torch import save_file
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.plugins import load_general_plugins
from vllm.v1.worker.gpu_worker import Worker as VllmWorker
from vllm.v1.worker.worker_base import WorkerWrapperBase
from vllm_memory import SleepingMemory
from vllm_model import Model, Rank

import lockstep


class Worker:
    """As much of vLLM's worker as there is without a GPU."""

    def __init__(self) -> None:
        self.model: Any = None
        self.engine: Any = None
        self.follower: "lockstep.Follower | None" = None
        self.memory: "SleepingMemory | None" = None
        self.wrapper: Any = None
        self.checkpoint = ""

    def build(self, checkpoint: str, tensor: "list[int]", data: "list[int]", expert_parallel: bool) -> None:
        """The rank's model, its weights NaN."""
        self.model = Model(Path(checkpoint), Rank(tuple(tensor), tuple(data), expert_parallel))

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

    def load_plugins(self) -> "list[str]":
        """What a process of vLLM does at its start; the backends there are then."""
        load_general_plugins()
        return list(WeightTransferEngineFactory._registry)

    def create_engine(self, backend: str) -> str:
        """What the worker does when its model is loaded; the engine's class."""
        config, module = self.model.config, self.model.module
        for layer in module.modules():  # what vLLM does now, without kernels
            if hasattr(layer, "kv_b_proj") and hasattr(layer, "process_weights_after_loading"):
                layer.process_weights_after_loading(torch.bfloat16)
        self.engine = WeightTransferEngineFactory.create_engine(
            WeightTransferConfig(backend=backend), config, torch.device("cpu"), module
        )
        return type(self.engine).__name__

    def start(self, environment: "dict[str, str]", backend: "str | None") -> "str | None":
        """As a process with that environment and --weight-transfer-config starts: it loads its plugins, and vLLM's
        worker its model. The class of its engine for weights, if it has one."""
        worker = VllmWorker.__new__(VllmWorker)  # without a device
        worker.vllm_config, worker.device = self.model.config, torch.device("cpu")
        worker.vllm_config.weight_transfer_config = None if backend is None else WeightTransferConfig(backend=backend)
        worker.weight_transfer_engine = None
        worker.model_runner = SimpleNamespace(
            load_model=lambda **_: None,
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

    def pretend_expert_backend(self, name: str) -> None:
        """As on a GPU: weights are as loaded, and the CPU's kernels have not packed them yet."""
        for layer in self.model.module.modules():
            if hasattr(layer, "w13_weight"):
                layer.quant_method.unquantized_backend = UnquantizedMoeBackend[name]

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

    def follow(self, **options: Any) -> None:
        """A Follower of the model, without the plugin."""
        self.follower = lockstep.Follower(self.model.module, **options)

    def leave(self) -> None:
        """Ends that."""
        self.follower.close()

    def save(self, output: str, version: "int | None" = None) -> None:
        """Saves the parameters; with ``version``, while the Follower serves exactly that."""
        if version is None:
            save_file(self.model.parameters(), output)
            return
        self.follower.wait_for(version, timeout=120)
        with self.follower.serving() as served:
            if served.version != version:
                raise AssertionError(f"serves {served}, not version {version}")
            save_file(self.model.parameters(), output)


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
        worker.build,
        worker.load,
        worker.load_plugins,
        worker.create_engine,
        worker.start,
        worker.into_sleeping_memory,
        worker.collective_rpc,
        worker.pretend_expert_backend,
        worker.copy_latent_views,
        worker.init,
        worker.update,
        worker.shut_down,
        worker.follow,
        worker.leave,
        worker.save,
    )
