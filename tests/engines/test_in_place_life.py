"""Engines in place beside everything else that happens to a receiver: rollback, engines that come late, new runs, engines
that cannot be written, servers around the ranks."""

from pathlib import Path

import pytest
import torch
from conformance_server import ConformanceServer
from engine_ranks import Job, build, differences, lend, refusal
from harness import MODEL, wait_until
from ranks import Ranks
from slicing import places
from tiny_trainer import Trainer, checkpoint_tensors

import lockstep

WORLD = 2


class Stage:
    """A trainer, its agent, a receiver that writes engines in place, and processes for ranks."""

    def __init__(self, cluster, ranks: Ranks) -> None:
        self.cluster, self.ranks = cluster, ranks
        self.agent = cluster.agent()
        self.socket = cluster.directory / "engine.sock"
        self.receiver = cluster.receiver(self.agent, engine_load="in-place", engine_socket=self.socket)
        self.trainer = self.new_trainer("checkpoints")
        self.checkpoints = {}

    def new_trainer(self, directory: str) -> Trainer:
        return Trainer("llama", self.cluster.directory / directory, self.agent.socket, MODEL)

    def publish(self, version: int) -> Path:
        self.trainer.step()
        self.checkpoints[version] = self.trainer.publish(version)
        return self.checkpoints[version]

    def start(self, name: str, processes: "list[int]", **options) -> None:
        for rank, process in enumerate(processes):
            place = places(len(processes))[rank]
            job = Job("vllm", name, rank, len(processes), place, self.trainer.config, self.socket, MODEL, **options)
            self.ranks.call(build, job, max(self.checkpoints.items())[1], only=[process])
            self.ranks.call(lend, only=[process])

    def expect(self, version: int, processes: "list[int]") -> None:
        wrong = self.ranks.call(differences, version, self.checkpoints[version], only=processes)
        assert wrong == [[]] * len(processes)

    def engines(self) -> "dict[str, dict]":
        return {engine["name"]: engine for engine in self.receiver.model_status()["engines"]}


@pytest.fixture
def stage(cluster):
    with Ranks(2 * WORLD) as ranks:
        stage = Stage(cluster, ranks)
        yield stage
        stage.trainer.close()


@pytest.mark.parametrize("double_buffered", [False, True], ids=["one-half", "two-halves"])
def test_a_rollback_writes_the_version_before_from_the_delta_and_a_pull_goes_on(stage, double_buffered):
    stage.publish(1)
    stage.start("engine", [0, 1], double_buffered=double_buffered)
    stage.publish(2)
    stage.expect(2, [0, 1])
    whole = stage.engines()["engine"]["target_bytes"]
    stage.receiver.ask("rollback")
    wait_until(lambda: stage.engines()["engine"]["serving"]["version"] == 1, "the engine is rolled back")
    assert stage.ranks.call(differences_at, 1, stage.checkpoints[1], only=[0, 1]) == [[], []]
    if not double_buffered:
        assert stage.engines()["engine"]["last_written_bytes"] < whole
    stage.receiver.ask("pull")
    stage.expect(2, [0, 1])


def differences_at(rank, version: int, checkpoint: Path) -> "list[str]":
    """As differences, for a version that is older than one that was served before."""
    wait_until(lambda: rank.follower.served and rank.follower.served.version == version, f"version {version} is served")
    return differences(rank, version, checkpoint)


def test_an_engine_that_comes_late_gets_everything_and_then_what_changes(stage):
    stage.publish(1)
    stage.start("first", [0, 1])
    stage.expect(1, [0, 1])
    stage.publish(2)
    stage.expect(2, [0, 1])
    stage.start("second", [2, 3])
    stage.expect(2, [2, 3])
    assert stage.engines()["second"]["last_written_bytes"] > 0.9 * stage.engines()["second"]["target_bytes"]
    with torch.no_grad():
        stage.trainer.model.lm_head.weight[3, 5] += 1
    stage.checkpoints[3] = stage.trainer.publish(3)
    stage.expect(3, [0, 1, 2, 3])
    engines = stage.engines()
    assert engines["first"]["serving"] == engines["second"]["serving"]
    assert engines["first"]["last_written_bytes"] == engines["second"]["last_written_bytes"] == 2
    assert engines["first"]["commits"] == 3 and engines["second"]["commits"] == 2


def test_a_restarted_trainers_run_reaches_the_engines(stage):
    stage.publish(1)
    stage.start("engine", [0, 1])
    stage.expect(1, [0, 1])
    before = stage.engines()["engine"]["serving"]["run"]
    stage.trainer.close()
    stage.trainer = stage.new_trainer("again")
    stage.trainer.step()
    stage.publish(1)
    wait_until(lambda: stage.engines()["engine"]["serving"]["run"] not in (before, ""), "the new run is served")
    stage.expect(1, [0, 1])


def test_an_engine_that_repacked_a_parameter_is_refused_by_name(stage):
    checkpoint = stage.publish(1)
    job = Job("vllm", "engine", 0, 1, places(1)[0], stage.trainer.config, stage.socket, MODEL)
    stage.ranks.call(build, job, checkpoint, only=[0])
    stage.ranks.call(repack, "model.layers.1.mlp.down_proj.weight", only=[0])
    stage.ranks.call(lend, only=[0])
    [said] = stage.ranks.call(refusal, only=[0])
    assert "model.layers.1.mlp.down_proj.weight" in said and "director" in said
    assert stage.receiver.answers()


def repack(rank, name: str) -> None:
    """As some kernels want weights: the other way round."""
    module, _, leaf = name.rpartition(".")
    parent = rank.module.get_submodule(module)
    setattr(parent, leaf, torch.nn.Parameter(getattr(parent, leaf).detach().t().contiguous(), requires_grad=False))


def test_verify_finds_a_bit_that_somebody_changed_in_an_engines_memory(stage):
    stage.publish(1)
    stage.start("engine", [0, 1])
    stage.expect(1, [0, 1])
    assert stage.receiver.ctl("verify").returncode == 0
    stage.ranks.call(spoil, "model.layers.0.mlp.gate_up_proj.weight", only=[1])
    found = stage.receiver.ctl("verify")
    assert found.returncode == 65 and "engine" in found.stderr and "rank 1" in found.stderr
    stage.publish(2)
    stage.expect(2, [0])


@torch.no_grad()
def spoil(rank, name: str) -> None:
    """One bit of one element."""
    rank.module.get_parameter(name).view(torch.int16)[3, 3] ^= 1


def test_a_replica_in_python_is_the_published_version_and_stays_while_it_is_held(stage):
    first = stage.publish(1)
    path = stage.receiver.root / MODEL
    assert lockstep.wait_for(path, 1, timeout=30) == 1
    with lockstep.Replica(path) as replica:
        state = replica.state_dict()
        for version in (2, 3, 4):
            newest = stage.publish(version)
            lockstep.wait_for(path, version, timeout=30)
        assert replica.version == 1
        assert_equal(state, checkpoint_tensors(first))
    with lockstep.Replica(path) as replica:
        assert replica.version == 4
        assert_equal(replica.state_dict(), checkpoint_tensors(newest))


def assert_equal(one: "dict[str, torch.Tensor]", other: "dict[str, torch.Tensor]") -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor.view(torch.int16), other[name].view(torch.int16)), name


def test_a_server_is_paused_around_the_writes_and_never_told_to_load(cluster):
    agent = cluster.agent()
    socket = cluster.directory / "engine.sock"
    trainer = Trainer("llama", cluster.directory / "checkpoints", agent.socket, MODEL)
    checkpoint = trainer.publish(1)
    with ConformanceServer("sglang", checkpoint) as server, Ranks(WORLD) as ranks:
        receiver = cluster.receiver(
            agent, engine="sglang", engine_url=server.url, engine_load="in-place", engine_socket=socket
        )
        jobs = [
            Job("sglang", "engine", rank, WORLD, place, trainer.config, socket, MODEL)
            for rank, place in enumerate(places(WORLD))
        ]
        ranks.call(build, jobs, checkpoint)
        ranks.call(lend)
        assert ranks.call(differences, 1, checkpoint) == [[]] * WORLD
        wait_until(lambda: receiver.model_status()["served_version"] == 1, "the engine serves it")
        wait_until(lambda: "/continue_generation" in paths_of(server), "the server goes on")
        paths = paths_of(server)
        assert "/update_weights_from_disk" not in paths
        assert paths.index("/pause_generation") < paths.index("/flush_cache") < paths.index("/continue_generation")
        assert server.violations == []
    trainer.close()


def paths_of(server: ConformanceServer) -> "list[str]":
    """What it was asked, in order."""
    return [entry["path"] for entry in server.log]
