"""Modules that vLLM built follow a training, in place, or from the directory and compared: a version is what vLLM's own
loader makes of its checkpoint."""

import contextlib

import pytest
from conformance_server import ConformanceServer
from engine_program import ask_all
from harness import MODEL, wait_until
from held_weights import check
from ports import ReservedPort
from real_server import install_package
from tiny_trainer import Trainer
from vllm_checkpoints import OVERRIDES
from vllm_process import VllmProgram

from lockstep.engine._agreement import Step


@pytest.fixture
def training(cluster):
    """Begins a training that a receiver follows for engines, with a server to pause; the trainer, the first checkpoint,
    the engines' socket and the receiver."""
    with contextlib.ExitStack() as stack:

        def begin(model: str, load: str = "in-place"):
            agent = cluster.agent()
            socket = cluster.directory / "engine.sock"
            trainer = Trainer(model, cluster.directory / "checkpoints", agent.socket, MODEL, **OVERRIDES[model])
            stack.callback(trainer.close)
            checkpoint = trainer.publish(1)
            server = stack.enter_context(ConformanceServer("vllm", checkpoint))
            receiver = cluster.receiver(agent, engine=f"vllm:{server.url}", engine_load=load, engine_socket=socket)
            return trainer, checkpoint, socket, receiver

        yield begin


class SleepingServer:
    """One worker of vLLM that follows by its environment, its weights in memory that is not there while it sleeps."""

    def __init__(self, rank, loader, checkpoints, training, directory) -> None:
        self.rank, self._loader, self._saved = rank, loader, directory / "held.safetensors"
        self.trainer, self.checkpoint, socket, self.receiver = training("qwen3")
        other, _ = checkpoints.get("qwen3")
        rank.ask("build", checkpoint=other, tensor=(1, 0), data=(1, 0), expert_parallel=False)
        rank.ask("load", checkpoint=other)
        rank.ask("into_sleeping_memory")
        environment = {"LOCKSTEP_ENGINE_SOCKET": str(socket), "LOCKSTEP_MODEL": MODEL}
        assert rank.ask("start", environment=environment, backend=None) == "LockstepWeightTransferEngine"
        self.newest = 1
        self.expect_newest()

    def call(self, method: str, *arguments) -> None:
        self.rank.ask("collective_rpc", method=method, arguments=arguments)

    def publish(self) -> None:
        self.newest += 1
        self.trainer.step()
        self.checkpoint = self.trainer.publish(self.newest)
        wait_until(
            lambda: self.receiver.model_status()["held"]["version"] == self.newest, "the receiver goes on meanwhile"
        )

    @property
    def engine(self) -> dict:
        """Between two connections of its rank there is none."""
        return wait_until(lambda: self.receiver.model_status()["rank_groups"], "its rank is attached")[0]

    def expect_asleep(self) -> None:
        wait_until(lambda: self.engine["asleep"] == 1, "the receiver knows that it sleeps")
        assert "1 asleep" in self.receiver.ctl("status").stdout

    def expect_newest(self) -> None:
        self.rank.ask("update", update_info={"version": self.newest, "timeout_s": 60})
        self.rank.ask("save", output=self._saved)
        check(self._saved, self.checkpoint, self._loader, tensor=(1, 0), expert_parallel=False)
        wait_until(lambda: self.receiver.model_status()["served_version"] == self.newest, "the receiver knows")


@pytest.fixture
def server(vllm_ranks, vllm_loader, vllm_checkpoints, training, tmp_path):
    server = SleepingServer(vllm_ranks[0], vllm_loader, vllm_checkpoints, training, tmp_path)
    yield server
    server.rank.ask("shut_down")


@pytest.mark.parametrize("versions", [0, 1, 3])
@pytest.mark.parametrize("level", [1, 2])
def test_a_worker_that_sleeps_is_not_written_and_has_the_newest_version_after_the_wake(server, level, versions):
    server.call("sleep", level)
    server.expect_asleep()
    for _ in range(versions):
        server.publish()
    server.call("wake_up", ["kv_cache"])  # weights sleep on
    server.expect_asleep()
    written = server.engine["commits"], server.engine["last_written_bytes"]
    server.call("wake_up", ["weights"])
    server.expect_newest()
    if level == 1 and versions == 0:  # the bytes were there: compared, and not written
        assert (server.engine["commits"], server.engine["last_written_bytes"]) == (written[0] + 1, 0)
    server.publish()
    server.expect_newest()


def test_weights_that_were_discarded_are_written_wholly_after_the_wake(server):
    server.call("discard", ["kv_cache"])
    assert server.engine["asleep"] == 0
    server.call("discard", ["weights"])
    server.expect_asleep()
    server.publish()
    server.call("wake_up")
    server.expect_newest()


def test_a_parameter_that_moved_has_the_newest_version_where_it_is_then(server):
    for name in ("model.embed_tokens.weight", "model.layers.0.self_attn.qkv_proj.weight"):
        server.rank.ask("move", name=name)
        server.publish()
        server.expect_newest()


def test_what_a_worker_loaded_from_the_directory_is_proved_and_anything_else_found(
    training, vllm_ranks, vllm_checkpoints
):
    trainer, _, socket, receiver = training("qwen3", load="directory")
    rank = vllm_ranks[0]
    other, _ = vllm_checkpoints.get("qwen3")
    rank.ask("build", checkpoint=other, tensor=(1, 0), data=(1, 0), expert_parallel=False)
    rank.ask("load", checkpoint=other)

    def verify(code: int, said: str) -> None:
        result = receiver.ctl("verify", "--engines")
        assert result.returncode == code and said in result.stdout + result.stderr, result

    def load(version: int) -> None:
        wait_until(lambda: receiver.model_status()["served_version"] == version, "the server serves it")
        verify(65, f"other parameters than version {version}")
        rank.ask("load", checkpoint=receiver.model_status()["current_path"])
        verify(0, "engines whose memory was compared, too: 1")

    wait_until(lambda: receiver.model_status()["served_version"] == 1, "the server serves it")
    verify(75, "no engine is attached")
    environment = {"LOCKSTEP_ENGINE_SOCKET": str(socket), "LOCKSTEP_MODEL": MODEL, "LOCKSTEP_ENGINE_COMPARE": "1"}
    assert rank.ask("start", environment=environment, backend=None) == "LockstepWeightTransferEngine"
    wait_until(lambda: receiver.model_status()["rank_groups"], "the rank is attached")
    assert "1 compare" in receiver.ctl("status").stdout
    load(1)
    rank.ask(
        "collective_rpc", method="reload_weights", arguments=[]
    )  # another may load it: what counts is what is there
    wait_until(
        lambda: any(engine["comparing"] for engine in receiver.model_status()["rank_groups"]), "the rank is awake again"
    )
    verify(0, "engines whose memory was compared, too: 1")
    trainer.step()
    trainer.publish(2)
    load(2)
    rank.ask("shut_down")


WORLD = 8  # of an engine on two hosts


@pytest.fixture
def eight_ranks(tmp_path):
    """Workers of one server, the first four on one host."""
    packages = install_package(tmp_path / "installed")
    with contextlib.ExitStack() as stack:
        ranks = [VllmProgram("vllm_rank.py", *packages) for _ in range(WORLD)]
        for rank in ranks:
            stack.callback(rank.close)
        with ReservedPort() as port:
            for number, rank in enumerate(ranks):
                rank.start("join", address=port.address, rank=number, world=WORLD)
            for rank in ranks:
                rank.answer()
        yield ranks


def test_an_engine_on_two_hosts_follows_and_serves_no_version_before_all_hosts_have_it(
    cluster, eight_ranks, vllm_loader, tmp_path
):
    agent = cluster.agent()
    trainer = Trainer("qwen3", cluster.directory / "checkpoints", agent.socket, MODEL, **OVERRIDES["qwen3"])
    checkpoint = trainer.publish(1)
    with ConformanceServer("vllm", checkpoint) as server:
        receivers, sockets = [], []
        for name in ("first", "second"):
            (cluster.directory / name).mkdir()
            sockets.append(cluster.directory / name / "engine.sock")
            engine = {"engine": f"vllm:{server.url}", "engine_load": "in-place", "engine_socket": sockets[-1]}
            receivers.append(cluster.receiver(agent, name=name, **engine))
        ask_all(eight_ranks, "load_plugins")
        for number, rank in enumerate(eight_ranks):
            place = {"tensor": (WORLD, number), "data": (1, 0), "expert_parallel": False}
            rank.start("build", checkpoint=checkpoint, **place)
        for rank in eight_ranks:
            rank.answer()
        ask_all(eight_ranks, "create_engine", backend="lockstep")
        for number, rank in enumerate(eight_ranks):
            socket = sockets[number // (WORLD // 2)]
            rank.start("init", init_info={"socket": str(socket), "model": MODEL})
        for rank in eight_ranks:
            rank.answer()
        for version in range(1, 4):
            if version > 1:
                trainer.step()
                checkpoint = trainer.publish(version)
            if version == 3:
                wait_until(lambda: not receivers[1].running(), "it is killed between WRITTEN and SERVE")
                assert server.state()["paused"]  # until all ranks serve it
                receivers[1].start()
            ask_all(eight_ranks, "update", update_info={"version": version, "timeout_s": 60})
            for number, rank in enumerate(eight_ranks):
                rank.ask("save", output=tmp_path / "held.safetensors")
                check(tmp_path / "held.safetensors", checkpoint, vllm_loader, tensor=(WORLD, number))
            if version == 2:
                eight_ranks[4].ask("kill_at", step=Step.WRITTEN, receiver=receivers[1].process.pid)
        wait_until(lambda: not server.state()["paused"], "the server runs")
    ask_all(eight_ranks, "shut_down")
    trainer.close()
