"""vLLM's trainer API sends by the backend "lockstep": its own factory, sources and client, and its own workers."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from conformance_server import ConformanceServer
from harness import MODEL
from safetensors.torch import load_file
from vllm_process import VllmProgram

_RANKS = 2
_STEPS = 3


class Routes(BaseHTTPRequestHandler):
    """The routes of vLLM's server that its HTTP client calls, to the workers behind it."""

    def do_POST(self) -> None:  # the name is the library's
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null") or {}
        self.server.calls.append(self.path)
        if self.path == "/init_weight_transfer_engine":
            self.ask("init", **body)
        elif self.path == "/update_weights":
            self.ask("update", **body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def ask(self, do: str, **arguments) -> None:
        for worker in self.server.workers:
            worker.start(do, **arguments)
        for worker in self.server.workers:
            worker.answer()

    def log_message(self, *_) -> None:
        """Calls are in `calls`."""


@contextlib.contextmanager
def served(workers):
    """A server of these workers; its URL, and the paths that were called."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Routes)
    server.workers, server.calls = workers, []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.calls
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="module")
def trainers():
    """Two ranks of a trainer."""
    ranks = [VllmProgram("vllm_trainer.py", Path(__file__).resolve().parents[2] / "python") for _ in range(_RANKS)]
    yield ranks
    for rank in ranks:
        rank.close()


def ask_all(ranks, do: str, **arguments) -> list:
    """All ranks at once; their answers."""
    for rank in ranks:
        rank.start(do, **arguments)
    return [rank.answer() for rank in ranks]


@pytest.fixture(scope="module")
def joined(trainers, vllm_checkpoints, tmp_path_factory):
    """They have a model together."""
    store = tmp_path_factory.mktemp("trainers") / "store"
    checkpoint, _ = vllm_checkpoints.get("qwen3")
    for number, rank in enumerate(trainers):
        rank.start("build", checkpoint=checkpoint, rank=number, world=_RANKS, store=store)
    for rank in trainers:
        rank.answer()
    return trainers


@pytest.fixture
def workers(vllm_ranks, vllm_checkpoints):
    """Two workers of vLLM with the backend and the model, which follow nothing yet."""
    checkpoint, _ = vllm_checkpoints.get("qwen3")
    for number, worker in enumerate(vllm_ranks):
        worker.ask("load_plugins")
        worker.ask("build", checkpoint=checkpoint, tensor=(_RANKS, number), data=(1, 0), expert_parallel=False)
        worker.ask("load", checkpoint=checkpoint)
        worker.ask("create_engine", backend="lockstep")
    yield vllm_ranks
    for worker in vllm_ranks:
        worker.ask("shut_down")


@pytest.mark.parametrize("source", ["iter_local", "iter_full"])
def test_every_send_returns_when_the_workers_parameters_are_what_vllm_loads_of_the_trainers_checkpoint(
    source, joined, workers, cluster, vllm_loader, vllm_checkpoints, tmp_path
):
    agent, socket = cluster.agent(), cluster.directory / "engine.sock"
    checkpoint, _ = vllm_checkpoints.get("qwen3")
    with ConformanceServer("vllm", checkpoint) as paused, served(workers) as (url, calls):
        cluster.receiver(agent, engine=f"vllm:{paused.url}", engine_load="in-place", engine_socket=socket)
        opened = ask_all(joined, "open", source=source, url=url, socket=agent.socket, model=MODEL, engine_socket=socket)
        assert opened == ["LockstepTrainerWeightTransferEngine"] * _RANKS
        for step in range(1, _STEPS + 1):
            ask_all(joined, "train", step=step)
            ask_all(joined, "send", label=f"step {step}")
            ask_all(joined, "save", directory=tmp_path / f"{step}")
            for number, worker in enumerate(workers):
                worker.ask("save", output=tmp_path / "held.safetensors")
                held = load_file(tmp_path / "held.safetensors")
                wanted = vllm_loader.parameters(tmp_path / f"{step}", tensor=(_RANKS, number))
                assert sorted(held) == sorted(wanted)
                assert [name for name in wanted if not torch.equal(held[name], wanted[name])] == []
        assert paused.rules.version().endswith(f"-{_STEPS}/step {_STEPS}")
        assert paused.violations == []
        ask_all(joined, "close")
    update = ["/start_weight_update", "/update_weights", "/finish_weight_update"]
    assert calls == ["/init_weight_transfer_engine", *update * _STEPS]


def test_a_send_that_no_engine_serves_in_time_says_so_and_asks_no_worker(joined, cluster):
    agent = cluster.agent()
    with served([]) as (url, calls):
        ask_all(joined, "open", source="iter_local", url=url, socket=agent.socket, model=MODEL, timeout=0.2)
        for rank in joined:
            rank.start("send")
        with pytest.raises(AssertionError, match="DeadlineError: not within 0.2 s"):
            joined[0].answer()
        assert joined[1].answer() is None
        ask_all(joined, "close")
    assert calls == []


@pytest.mark.parametrize(
    "shape, mesh, dims",
    [
        ([7, 4], [3], [0]),
        ([7, 4], [2, 3], [0, 0]),
        ([5, 6], [2, 2], [None, 1]),
        ([6, 5], [2, 2], [1, 0]),
        ([3], [4], [0]),
    ],
)
def test_a_piece_lies_where_torch_chunk_cuts_it(shape, mesh, dims, trainers):
    found = trainers[0].ask("blocks", shape=shape, mesh=mesh, dims=dims)
    assert [same for _, _, same in found] == [True] * torch.Size(mesh).numel()


@pytest.mark.parametrize(
    "source, problem",
    [
        ({}, "the lockstep backend publishes a WeightSource"),
        (
            {"dtype": "bfloat16", "name": "w", "yields": [4, 2]},
            "gives rank 0 torch.bfloat16 [4, 2] of it, and iter_local",
        ),
        ({"dtype": "float32", "name": "w", "yields": [2, 2]}, "iter_local yields torch.float32 [2, 2]"),
        (
            {"dtype": "float32", "name": "v", "yields": [4, 2]},
            'tensor "v": iter_local yields it, and metadata is without',
        ),
        ({"dtype": "float32", "owners": [1]}, 'tensor "w": ranks [1] own it, and rank 0'),
    ],
)
def test_a_source_that_is_not_what_its_metadata_says_is_refused_by_name(source, problem, trainers):
    for refusal in ask_all(trainers, "refusal", **source):
        assert problem in refusal
