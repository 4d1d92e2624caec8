"""Killed at any moment: no rank ever serves a mix of versions, and no two ranks of an engine serve different ones.

Where exactly a process dies is random; raas_receiver/engine/ranks has the tests that die at every single step.
"""

import random
import time

import pytest
from engine_ranks import Job, differences, start, version_served
from harness import MODEL
from ranks import Ranks
from slicing import places
from tiny_trainer import Trainer

WORLD = 4
SPARE = 1  # a process that waits to take the place of a killed rank
ROUNDS = 10
LONGEST_WAIT_S = 0.15  # from a publish to a kill: past the commit, mostly


class Fleet:
    """A trainer, its agent, a receiver and one engine of four ranks."""

    def __init__(self, cluster, ranks: Ranks) -> None:
        self.cluster, self.ranks = cluster, ranks
        self.random = random.Random(7)
        self.agent = cluster.agent()
        socket = cluster.directory / "engine.sock"
        self.receiver = cluster.receiver(self.agent, engine_load="in-place", engine_socket=socket)
        self.trainer = Trainer(
            "llama", cluster.directory / "checkpoints", self.agent.socket, MODEL, num_attention_heads=8
        )
        self.checkpoints = {}
        self.jobs = [
            Job("engine", rank, WORLD, place, self.trainer.config, socket, MODEL)
            for rank, place in enumerate(places(WORLD))
        ]
        self.process_of = list(range(WORLD))  # by rank
        self.publish()
        for rank in range(WORLD):
            self.start_rank(rank)
        self.expect_newest()

    @property
    def newest(self) -> int:
        return max(self.checkpoints)

    def publish(self) -> None:
        version = len(self.checkpoints) + 1
        self.trainer.step()
        # Kept first: a rank may serve it before publish returns.
        self.checkpoints[version] = self.trainer.save(version)
        self.trainer.exporter.publish(version=version)

    def start_rank(self, rank: int) -> None:
        """In its process, of which it must be the first user."""
        start(self.ranks, self.jobs[rank], self.checkpoints[self.newest], self.process_of[rank])

    def kill_rank(self, rank: int) -> None:
        self.ranks.kill(self.process_of[rank])

    def wait_a_moment(self) -> None:
        time.sleep(self.random.random() * LONGEST_WAIT_S)

    def versions(self, of: "list[int] | None" = None) -> "list[int]":
        """What ranks serve now, each proved by its bytes; 0 where a rank is held."""
        of = list(range(WORLD)) if of is None else of
        return self.ranks.call(version_served, self.checkpoints, only=sorted(self.process_of[rank] for rank in of))

    def read(self, of: "list[int] | None" = None) -> int:
        """The version that those of these ranks read that do not wait; 0 when all wait. Never two versions at once."""
        found = self.versions(of)
        assert len(set(found) - {0}) <= 1, f"ranks serve different versions: {found}"
        return max(found)

    def expect_newest(self) -> None:
        """Every rank reaches the newest version."""
        wrong = self.ranks.call(differences, self.newest, self.checkpoints[self.newest], only=sorted(self.process_of))
        assert wrong == [[]] * WORLD


@pytest.fixture
def fleet(cluster):
    with Ranks(WORLD + SPARE) as ranks:
        fleet = Fleet(cluster, ranks)
        yield fleet
        fleet.trainer.close()


def test_the_receiver_is_killed(fleet):
    for _ in range(ROUNDS):
        fleet.publish()
        fleet.wait_a_moment()
        fleet.receiver.kill()
        assert fleet.read() in (0, fleet.newest - 1, fleet.newest)
        fleet.receiver.start()
        fleet.expect_newest()


def test_receiver_and_a_rank_are_killed_at_once(fleet):
    fleet.publish()
    fleet.wait_a_moment()
    fleet.receiver.kill()
    fleet.kill_rank(2)
    assert fleet.read([0, 1, 3]) in (0, fleet.newest - 1, fleet.newest)
    fleet.process_of[2] = WORLD
    fleet.receiver.start()
    fleet.start_rank(2)
    fleet.expect_newest()
