"""A live module in GPU memory follows a training in place."""

import threading

import pytest
import torch
from gpu_models import (
    DTYPES,
    ON_GPU,
    Weights,
    agent_with_receiver,
    exporter,
    follower,
    gpu_only,
    module,
    unlike,
)
from gpu_ranks import follow, late_unlike, read_late, served_unlike
from ranks import Ranks

VERSIONS = 20


class Reader(threading.Thread):
    """Reads a module without end. `torn`: times that weights changed while it was inside."""

    def __init__(self, engine, follows):
        super().__init__(daemon=True)
        self.engine, self.follows = engine, follows
        self.reads, self.torn, self.ended = 0, 0, threading.Event()

    def run(self):
        while not self.ended.is_set():
            with self.follows.serving(timeout=60):
                first, second = self._sum(), self._sum()
            self.reads, self.torn = self.reads + 1, self.torn + (first != second)

    def _sum(self):
        return sum(int(tensor.view(torch.int16).sum(dtype=torch.int64)) for tensor in self.engine.state_dict().values())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_twenty_versions_are_in_a_live_module_bit_for_bit(cluster, dtype):
    agent, _, socket = agent_with_receiver(cluster)
    weights, twin = Weights(dtype), Weights(dtype, "cpu")
    engine = module(weights)
    places = {name: tensor.data_ptr() for name, tensor in engine.state_dict().items()}
    with exporter(agent.socket, weights) as trainer, follower(engine, socket) as follows:
        reader = Reader(engine, follows)
        for version in range(1, VERSIONS + 1):
            weights.step()
            trainer.publish(version=version)
            follows.wait_for(version, timeout=60)
            with follows.serving(timeout=60) as served:
                assert served.version == version
                assert unlike(engine.state_dict(), twin.step().published()) == [], f"version {version}"
            if version == 1:
                reader.start()
        reader.ended.set()
        reader.join(60)
        assert reader.reads > 0 and reader.torn == 0
    if ON_GPU:
        assert places == {name: tensor.data_ptr() for name, tensor in engine.state_dict().items()}


def test_what_an_engine_queued_before_it_was_held_reads_the_weights_of_before(cluster):
    agent, _, socket = agent_with_receiver(cluster)
    weights = Weights(torch.bfloat16)
    with exporter(agent.socket, weights) as trainer, Ranks(1, start="spawn", timeout_s=90) as engines:
        trainer.publish(version=1)
        engines.call(follow, socket)
        for version in (2, 3):
            before = weights.published()
            assert engines.call(served_unlike, version - 1, before) == [[]]
            engines.call(read_late)
            weights.step()
            trainer.publish(version=version)
            assert engines.call(served_unlike, version, weights.published()) == [[]], f"version {version}"
            assert engines.call(late_unlike, before) == [[]], f"before version {version}"


@gpu_only
def test_a_graph_that_was_captured_before_an_update_replays_with_the_new_weights(cluster):
    agent, _, socket = agent_with_receiver(cluster)
    weights = Weights(torch.bfloat16)
    engine = module(weights)
    with exporter(agent.socket, weights) as trainer, follower(engine, socket) as follows:
        trainer.publish(version=1)
        follows.wait_for(1, timeout=60)
        with follows.serving(timeout=60):
            copies = {name: torch.empty_like(tensor) for name, tensor in engine.state_dict().items()}
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # the follower has a thread, too
                for name, tensor in engine.state_dict().items():
                    copies[name].copy_(tensor)
        for version in (2, 3):
            weights.step()
            trainer.publish(version=version)
            follows.wait_for(version, timeout=60)
            with follows.serving(timeout=60):
                graph.replay()
                torch.cuda.synchronize()
                assert unlike(copies, weights.published()) == [], f"version {version}"


@gpu_only
def test_expandable_memory_is_written_by_its_own_process(cluster, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    agent, _, socket = agent_with_receiver(cluster)
    weights = Weights(torch.bfloat16)
    with exporter(agent.socket, weights) as trainer, Ranks(1, start="spawn", timeout_s=90) as engines:
        trainer.publish(version=1)
        engines.call(follow, socket)
        for version in (2, 3):
            weights.step()
            trainer.publish(version=version)
            assert engines.call(served_unlike, version, weights.published()) == [[]], f"version {version}"
