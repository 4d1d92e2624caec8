"""Memory that no longer holds what it is called, on either side: it is found, said, and never served on."""

import mmap
from pathlib import Path

from harness import wait_until
from replicas import ToyModel


def flip_last_bit(path: Path) -> None:
    """Through a mapping, as bad memory and stray pointers do; the last byte is of the last block."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[-1] ^= 1


def written_slot(agent) -> Path:
    """The slot that holds version 1: the other one is not written yet."""

    def written(slot: Path) -> bool:
        with open(slot, "rb") as file:
            file.seek(-4096, 2)
            return any(file.read())

    [slot] = filter(written, agent.segment_dir.glob("*/slot-*"))
    return slot


def test_a_slot_that_was_written_after_its_commit_is_withdrawn_once_a_receiver_finds_it(cluster):
    model = ToyModel(blocks=8)
    agent = cluster.agent(scrub_round="0")
    first = cluster.receiver(agent, name="first")
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, first)
        before = {name: tensor.copy() for name, tensor in model.tensors.items()}
        flip_last_bit(written_slot(agent))
        late = cluster.receiver(agent, name="late")
        wait_until(lambda: "version_withdrawn" in agent.log(), "the version is withdrawn")
        status = agent.model_status()
        assert status["newest_version"] == 0 and "withdrawn" in status["last_error"]
        wait_until(lambda: "withdrawn" in late.model_status()["last_error"], "the late receiver says why")
        assert not late.file().exists()
        first.wait_for(before)  # it has what was committed
        publisher.publish(version=2, tensors=model.step())
        for receiver in (first, late):
            receiver.wait_for(model.tensors)


def test_a_bit_that_flips_in_a_replica_is_repaired_and_its_reader_told_by_a_new_directory(cluster):
    model = ToyModel(blocks=8)
    agent = cluster.agent()
    receiver = cluster.receiver(agent, scrub_round="200ms")
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, receiver)
        directory = receiver.published().resolve()
        flip_last_bit(receiver.file())
        wait_until(lambda: receiver.published().resolve() != directory, "another directory is published")
        receiver.wait_for(model.tensors)
        status = receiver.model_status()
        assert (status["damaged_blocks"], status["repaired_blocks"]) == (1, 1)
        assert "damage_found" in receiver.log()
        assert receiver.ctl("verify").returncode == 0
