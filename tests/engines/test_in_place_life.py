"""Engines in place with everything else that happens to a receiver: rollback, engines that come late, new runs,
engines that cannot be written, servers around the ranks."""

import time
from pathlib import Path

import pytest
import torch
from conformance_server import ConformanceServer
from engine_ranks import Job, differences, leave, paused_at_writes, refusal, spoil_deriving, start
from harness import MODEL, wait_until
from ranks import Ranks
from slicing import places
from tiny_trainer import Trainer

WORLD = 2


class System:
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

    def start(self, name: str, processes: "list[int]") -> None:
        for rank, process in enumerate(processes):
            place = places(len(processes))[rank]
            job = Job(name, rank, len(processes), place, self.trainer.config, self.socket, MODEL)
            start(self.ranks, job, max(self.checkpoints.items())[1], process)

    def expect(self, version: int, processes: "list[int]") -> None:
        wrong = self.ranks.call(differences, version, self.checkpoints[version], only=processes)
        assert wrong == [[]] * len(processes)

    def engines(self) -> "dict[str, dict]":
        return {engine["name"]: engine for engine in self.receiver.model_status()["rank_groups"]}


@pytest.fixture
def system(cluster):
    with Ranks(2 * WORLD) as ranks:
        system = System(cluster, ranks)
        yield system
        system.trainer.close()


def test_a_rollback_writes_the_version_before_from_the_delta_and_a_pull_leads_on(system):
    system.publish(1)
    system.start("engine", [0, 1])
    system.publish(2)
    system.expect(2, [0, 1])
    whole = system.engines()["engine"]["target_bytes"]
    system.receiver.ask("rollback")
    wait_until(lambda: system.engines()["engine"]["serving"]["version"] == 1, "the engine is rolled back")
    assert system.ranks.call(differences_at, 1, system.checkpoints[1], only=[0, 1]) == [[], []]
    assert system.engines()["engine"]["last_written_bytes"] < whole
    system.receiver.ask("pull")
    system.expect(2, [0, 1])


def differences_at(rank, version: int, checkpoint: Path) -> "list[str]":
    """As differences, for a version that is older than one that was served before."""
    wait_until(lambda: rank.follower.served and rank.follower.served.version == version, f"version {version} is served")
    return differences(rank, version, checkpoint)


def test_an_engine_that_comes_late_gets_everything_and_then_what_changes(system):
    system.publish(1)
    system.start("first", [0, 1])
    system.expect(1, [0, 1])
    system.publish(2)
    system.expect(2, [0, 1])
    system.start("second", [2, 3])
    system.expect(2, [2, 3])
    assert system.engines()["second"]["last_written_bytes"] > 0.9 * system.engines()["second"]["target_bytes"]
    with torch.no_grad():
        system.trainer.model.lm_head.weight[3, 5] += 1
    system.checkpoints[3] = system.trainer.publish(3)
    system.expect(3, [0, 1, 2, 3])
    engines = system.engines()
    assert engines["first"]["serving"] == engines["second"]["serving"]
    assert engines["first"]["last_written_bytes"] == engines["second"]["last_written_bytes"] == 2
    assert engines["first"]["commits"] == 3 and engines["second"]["commits"] == 2


def test_a_restarted_trainers_run_reaches_the_engines(system):
    system.publish(1)
    system.start("engine", [0, 1])
    system.expect(1, [0, 1])
    before = system.engines()["engine"]["serving"]["run"]
    system.trainer.close()
    system.trainer = system.new_trainer("again")
    system.trainer.step()
    system.publish(1)
    wait_until(lambda: system.engines()["engine"]["serving"]["run"] not in (before, ""), "the new run is served")
    system.expect(1, [0, 1])


class Server:
    """An SGLang around two ranks, which only it can stop, and a receiver that pauses it."""

    def __init__(self, system: System) -> None:
        self.system = system
        system.receiver.kill()
        checkpoint = system.publish(1)
        self.http = ConformanceServer("sglang", checkpoint)
        self.receiver = system.receiver = system.cluster.receiver(
            system.agent,
            engine=f"sglang:{self.http.url}",
            engine_attempts=1,
            engine_load="in-place",
            engine_socket=system.socket,
            engine_pause_timeout="2s",
        )
        for rank, place in enumerate(places(WORLD)):
            of = system.trainer.config, system.socket, MODEL
            start(system.ranks, Job("engine", rank, WORLD, place, *of, server=self.http.url), checkpoint, rank)
        self.resumes_with(1)

    def resumes_with(self, version: int) -> None:
        self.system.expect(version, [0, 1])
        wait_until(lambda: not self.paused, "the server resumes")
        assert self.http.state()["weight_version"].endswith(f"-{version}")
        assert all(all(paused) for paused in self.system.ranks.call(paused_at_writes, only=[0, 1]))
        assert self.http.rules.update_path not in self.http.paths()
        assert self.http.violations == []

    @property
    def paused(self) -> bool:
        return self.http.state()["paused"]


@pytest.fixture
def server(system):
    server = Server(system)
    yield server
    server.http.close()


def test_a_rank_that_goes_while_its_servers_pause_hangs_makes_the_engine_unready_and_ends_the_call(server):
    wait_until(lambda: server.receiver.ctl("health", "readiness").returncode == 0, "it is ready")
    server.http.fault("/pause_generation", "hang")
    server.system.publish(2)
    wait_until(lambda: not any(fault.times for fault in server.http.faults), "the receiver waits for an answer")
    server.system.ranks.call(leave, only=[1])
    begun = time.monotonic()
    wait_until(lambda: server.receiver.ctl("health", "readiness").returncode != 0, "it is not ready")
    said = "a rank went before its server was paused"
    wait_until(lambda: said in server.receiver.model_status()["last_error"], "the call has ended")
    assert time.monotonic() - begun < 20, "the call's own time is a minute"


def test_a_server_that_does_not_resume_is_made_to_again(server):
    server.http.fault("/continue_generation", "status", times=3)
    server.system.publish(2)
    server.resumes_with(2)
    assert server.http.paths().count("/continue_generation") >= 5


def test_a_version_counts_as_served_once_the_server_was_resumed(server):
    server.http.fault("/continue_generation", "hang", times=1)
    server.system.publish(2)
    server.system.expect(2, [0, 1])
    wait_until(lambda: not any(fault.times for fault in server.http.faults), "the receiver waits for an answer")
    assert server.paused
    assert server.receiver.model_status()["served_version"] == 1
    server.receiver.stop()
    server.receiver.start()
    server.resumes_with(2)
    wait_until(lambda: server.receiver.model_status()["served_version"] == 2, "it is served")


def test_a_server_that_a_killed_receiver_left_paused_is_resumed_by_the_next_one(server):
    server.http.fault("/continue_generation", "hang", times=1)
    server.system.publish(2)
    server.system.expect(2, [0, 1])
    wait_until(lambda: not any(fault.times for fault in server.http.faults), "the receiver waits for an answer")
    server.receiver.kill()
    assert server.paused
    server.receiver.start()
    server.resumes_with(2)


def test_a_server_stays_paused_while_a_rank_cannot_use_what_was_written(server):
    server.system.ranks.call(spoil_deriving, True, only=[1])
    server.system.publish(2)
    wait_until(lambda: server.receiver.model_status()["last_error"], "the failure is reported")
    for _ in range(20):
        assert server.paused
        time.sleep(0.05)
    server.system.ranks.call(spoil_deriving, False, only=[1])
    server.resumes_with(2)


@pytest.mark.parametrize("name", ["other", "engine"])
def test_a_second_server_is_refused_for_nothing_pauses_it(server, name):
    """Whatever it calls itself, and whether or not the first one's ranks are there."""
    system = server.system
    if name == "engine":
        system.ranks.call(leave, only=[0, 1])
        wait_until(lambda: not system.engines(), "the first server's ranks are gone")
    of = system.trainer.config, system.socket, MODEL
    job = Job(name, 0, 1, places(1)[0], *of, server="http://127.0.0.1:1", incarnation="two")
    start(system.ranks, job, system.checkpoints[1], 2)
    [reason] = system.ranks.call(refusal, only=[2])
    assert f"engine {name}" in reason and "not of the server that is paused for engine default" in reason
    system.publish(2)
    if name == "other":
        server.resumes_with(2)
    else:
        wait_until(lambda: system.receiver.model_status()["held"]["version"] == 2, "the receiver goes on")
    assert list(system.engines()) == (["engine"] if name == "other" else [])
    assert system.ranks.call(paused_at_writes, only=[2]) == [[]]


def test_ranks_that_only_their_server_can_stop_are_refused_where_it_is_not_paused(system):
    checkpoint = system.publish(1)
    job = Job("engine", 0, 1, places(1)[0], system.trainer.config, system.socket, MODEL, server="http://127.0.0.1:1")
    start(system.ranks, job, checkpoint, 0)
    [reason] = system.ranks.call(refusal, only=[0])
    assert "name the kind of the server with --engine" in reason
