"""A whole vLLM server that is written in place, under load, by its own HTTP API. One server for all tests, in this order."""

import json
import threading
import time

import pytest
import torch
from harness import MODEL, Cluster, wait_until
from real_server import Judge, Load, Served, expected_http_error
from tiny_trainer import Trainer
from vllm_server import VllmServer

# So large that most greedy answers of consecutive versions differ.
RATES = (3e-3, 1e-2, 1e-3)
SIZES = {"vocab_size": 128, "max_position_embeddings": 256}


class Fleet:
    """A trainer, its agent, and a receiver that writes a server in place."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, directory = cluster, cluster.directory
        self.agent = self.cluster.agent()
        self.trainer = Trainer(
            "qwen3", directory / "checkpoints", self.agent.socket, MODEL, torch.float32, RATES, **SIZES
        )
        self.socket = directory / "engine.sock"
        self.server = self.cluster._add(
            VllmServer(
                directory / "checkpoints/start",
                directory / "vllm",
                follows={"LOCKSTEP_ENGINE_SOCKET": self.socket, "LOCKSTEP_MODEL": MODEL},
            ),
            start=False,
        )
        self.server.start(wait=False)
        self.receivers = 0
        self.receive()
        self.checkpoints = {0: directory / "checkpoints/start"}
        self.served = Served()
        self.version = 0
        self.server.wait_until_ready()

    def receive(self, **options) -> None:
        """Another receiver in place of the one before, if there is one."""
        if self.receivers:
            self.receiver.stop()
        self.receivers += 1
        self.receiver = self.cluster.receiver(
            self.agent,
            name=f"receiver-{self.receivers}",
            engine=f"vllm:{self.server.url}",
            engine_load="in-place",
            engine_socket=self.socket,
            **options,
        )

    def publish(self) -> int:
        """The next version. Not waited for."""
        self.version += 1
        if self.version > 1:
            self.trainer.step()
        self.served.asked(self.version)
        self.checkpoints[self.version] = self.trainer.publish(self.version)
        return self.version

    def serve(self) -> float:
        """The next version is served; the seconds that this took."""
        begun = time.monotonic()
        version = self.publish()
        self.trainer.exporter.wait_served(version=version, engines=1, timeout=120)
        self.served.served(version)
        return time.monotonic() - begun

    def check(self, load: Load) -> "list":
        """The answers of a load without an error, all of them right."""
        assert not load.errors, load.errors[:3]
        judge = Judge(self.checkpoints)
        assert judge.wrong(load.answers) == []
        assert self.served.wrong(load.answers) == []
        return load.answers

    def newest_is_answered(self) -> None:
        """After the newest version is served, a prompt is answered by it."""
        judge, prompt = Judge(self.checkpoints), [5, 7, 11]
        answer = self.server.ask(prompt, 16)
        assert [span.version for span in answer.spans] == [self.version]
        assert answer.tokens == judge.greedy(self.version, prompt, 16)


@pytest.fixture(scope="module")
def fleet():
    with Cluster() as cluster:
        fleet = Fleet(cluster)
        yield fleet
        fleet.trainer.close()


def test_every_version_is_served_under_load_and_no_answer_is_by_another(fleet, record_property):
    fleet.serve()
    with Load(fleet.server.ask, vocabulary=SIZES["vocab_size"]) as load:
        load.await_answers(3)
        took = []
        for _ in range(12):
            took.append(fleet.serve())
            load.await_answers(3)
    answers = fleet.check(load)
    by_version = {span.version for answer in answers for span in answer.spans}
    assert by_version == set(range(1, 14))
    fleet.newest_is_answered()
    assert fleet.receiver.ctl("verify", "--engines").returncode == 0
    engine = fleet.receiver.model_status()["engines"][0]
    assert engine["failures"] == 0
    record_property("served_s", sorted(took))
    print(f"{len(answers)} answers, publish to served in s: {sorted(took)}, {engine}")
