"""An engine with ranks on several hosts, a receiver on each: all of its ranks serve one version, whichever receiver is slow or dies.
Hosts are directories with a receiver's socket each."""

import json
import random
import secrets
import signal
import time
from pathlib import Path

import pytest
import torch
from engine_ranks import (
    Job,
    attach,
    build,
    differences,
    fall_asleep,
    join,
    parameters_of,
    version_served,
    wake,
)
from harness import MODEL, wait_until
from killed_receiver import kill_at
from ports import ReservedPort
from ranks import Ranks
from slicing import places
from tiny_trainer import Trainer

import lockstep
from lockstep.engine._agreement import Step

WORLD = 4
ON_FIRST = (0, 1)  # ranks of the first host
ROUNDS = 12
LONGEST_WAIT_S = 0.3  # from a publish to a kill: past the commit, mostly


class Hosts:
    """A trainer, its agent, two receivers and one engine: two ranks on each receiver's host."""

    def __init__(self, cluster, ranks: Ranks) -> None:
        self.ranks = ranks
        agent = cluster.agent()
        sockets, self.receivers = [], []
        for name in ("first", "second"):
            (cluster.directory / name).mkdir()
            sockets.append(cluster.directory / name / "engine.sock")
            self.receivers.append(cluster.receiver(agent, name=name, engine_load="in-place", engine_socket=sockets[-1]))
        self.trainer = Trainer("llama", cluster.directory / "checkpoints", agent.socket, MODEL, num_attention_heads=8)
        self.checkpoints = {}
        self.publish()
        jobs = [
            Job("engine", rank, WORLD, place, self.trainer.config, sockets[rank not in ON_FIRST], MODEL)
            for rank, place in enumerate(places(WORLD))
        ]
        with ReservedPort() as port:
            ranks.call(join, WORLD, port.number)
        ranks.call(build, jobs, self.checkpoints[1])
        ranks.call(attach)
        self.expect_newest()

    def publish(self) -> None:
        """Its checkpoint first: a rank may serve it before publish returns."""
        version = len(self.checkpoints) + 1
        if version > 1:
            self.trainer.step()
        self.checkpoints[version] = self.trainer.save(version)
        self.trainer.exporter.publish(version=version)

    def read(self) -> "set[int]":
        """What the ranks read now, each proved by its bytes. Never two versions at once."""
        found = set(self.ranks.call(version_served, self.checkpoints)) - {0}
        assert len(found) <= 1, f"ranks serve different versions: {found}"
        return found

    def expect_newest(self) -> None:
        newest = max(self.checkpoints)
        assert self.ranks.call(differences, newest, self.checkpoints[newest]) == [[]] * WORLD


@pytest.fixture
def hosts(cluster):
    with Ranks(WORLD) as ranks:
        hosts = Hosts(cluster, ranks)
        yield hosts
        hosts.trainer.close()


def test_ranks_of_all_hosts_follow(hosts):
    for _ in range(8):
        hosts.publish()
        hosts.read()
        hosts.expect_newest()
    for receiver in hosts.receivers:
        groups = receiver.model_status()["rank_groups"]
        assert [(group["world"], group["attached"]) for group in groups] == [(2, 2)]
        assert receiver.ctl("verify", "--engines").returncode == 0


def test_no_host_goes_on_alone(hosts):
    hosts.receivers[1].signal(signal.SIGSTOP)
    for _ in range(3):
        hosts.publish()
    first = hosts.receivers[0]
    wait_until(lambda: first.model_status()["held"]["version"] > 1, "one receiver holds a newer version")
    wait_until(lambda: "its other hosts" in first.model_status()["last_error"], "it says why it waits")
    assert hosts.read() == {1}
    hosts.receivers[1].signal(signal.SIGCONT)
    hosts.expect_newest()


def test_a_rollback_is_of_all_hosts(hosts):
    hosts.publish()
    hosts.expect_newest()
    first = hosts.receivers[0].ctl("rollback")
    assert first.returncode != 0 and "another host" in first.stderr
    assert hosts.read() <= {2}
    assert hosts.receivers[1].ctl("rollback").returncode == 0
    assert hosts.ranks.call(differences, 1, hosts.checkpoints[1]) == [[]] * WORLD


@pytest.mark.parametrize("asleep", [[2, 3], [0, 1, 2, 3]])
def test_ranks_that_lost_their_memory_are_written_before_any_host_goes_on(hosts, asleep):
    hosts.ranks.call(fall_asleep, only=asleep)
    assert hosts.read() <= {1}
    hosts.ranks.call(wake, only=asleep)
    hosts.expect_newest()
    hosts.ranks.call(fall_asleep, only=asleep)
    hosts.publish()
    hosts.ranks.call(wake, only=asleep)
    hosts.expect_newest()


def _kill_at(rank, step: Step, receiver: int, agreed: bool) -> None:
    kill_at(rank.follower, step, receiver, agreed)


@pytest.mark.parametrize("step, agreed, may_read", [
    (Step.HELD, False, {1}),
    (Step.PAUSED, False, {1}),
    (Step.PAUSED, True, set()),  # ranks of the other host may be written
    (Step.WRITTEN, False, {2}),  # all hold it
])  # fmt: skip
def test_a_receiver_that_dies_at_any_step_leaves_no_two_versions(hosts, step, agreed, may_read):
    receiver = hosts.receivers[1]
    hosts.ranks.call(_kill_at, step, receiver.process.pid, agreed, only=[2])
    hosts.publish()
    wait_until(lambda: not receiver.running(), "it is killed")
    for _ in range(5):
        assert hosts.read() <= may_read
        time.sleep(0.05)
    receiver.start()
    hosts.expect_newest()


def test_receivers_that_die_at_any_moment_leave_no_two_versions(hosts):
    chance = random.Random(11)
    for _ in range(ROUNDS):
        hosts.publish()
        time.sleep(chance.random() * LONGEST_WAIT_S)
        killed = chance.choice([hosts.receivers[:1], hosts.receivers[1:], hosts.receivers])
        for receiver in killed:
            receiver.kill()
        hosts.read()
        for receiver in killed:
            receiver.start()
        hosts.read()
        hosts.expect_newest()


def _follow(rank, shares: "list[dict[str, torch.Tensor]]", sockets: "list[Path]") -> None:
    """This rank has what its host's part has."""
    rank.module = parameters_of(shares[rank.number])
    rank.follower = lockstep.Follower(
        rank.module,
        model=MODEL,
        socket=sockets[rank.number],
        rank=rank.number,
        world=len(shares),
        process_group=torch.distributed.group.WORLD,
    )


def _holds(rank, version: int, shares: "list[dict[str, torch.Tensor]]") -> bool:
    rank.follower.wait_for(version, timeout=30)
    with rank.follower.serving() as served:
        held = dict(rank.module.named_parameters())
        return served.version == version and all(map(torch.equal, held.values(), shares[rank.number].values()))


def test_each_host_has_the_parts_of_its_ranks_alone(cluster):
    """As with pipeline stages on several hosts: no host has the whole model."""
    shares = [{f"layer.{part}.{name}": torch.randn(64, 32) for name in "abc"} for part in range(2)]
    run, sockets, receivers, publishers = secrets.token_hex(16), [], [], []
    for part, share in enumerate(shares):
        agent = cluster.agent(name=f"agent-{part}")
        number = {"lockstep_part.json": json.dumps({"part": part, "parts": len(shares)})}
        publishers.append(agent.publisher(share, run=run, attachments=number))
        directory = cluster.directory / f"host-{part}"
        directory.mkdir()
        sockets.append(directory / "engine.sock")
        options = {"engine_load": "in-place", "engine_socket": sockets[-1], "some_parts": True}
        receivers.append(cluster.receiver([agent], name=f"host-{part}", **options))
    with Ranks(len(shares)) as ranks, ReservedPort() as port:
        ranks.call(join, len(shares), port.number)
        ranks.call(_follow, shares, sockets)
        for version in range(1, 6):
            for share, publisher in zip(shares, publishers):
                share[next(iter(share))][version] += version
                publisher.publish(version=version, tensors=share)
            assert ranks.call(_holds, version, shares) == [True, True]
    for part, receiver in enumerate(receivers):
        status = receiver.model_status()
        assert (status["share"], status["model_bytes"]) == (f"part {part} of 2", 3 * 64 * 32 * 4)
