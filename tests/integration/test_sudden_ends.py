"""Ranks that fork, are killed, or get Ctrl-C at random moments of a publish: none hangs, and the next publish works."""

import contextlib
import multiprocessing
import os
import random
import re
import signal
import time

import pytest
from rank_process import content

import lockstep

ROUNDS_A_LOOK = 10
HANG_S = 15  # half of the calls' timeout; a busy machine alone takes seconds
SHAPES = {"a": [100_000], "b": [100_000]}  # a tensor a rank
CHILD_LIVES_S = 1
# What the errors of those say that another's end concerns: it died, or skipped a version. A fork concerns none.
REASONS = {
    signal.SIGKILL: "is gone: its (process|connection) has ended",
    signal.SIGINT: "went on to version|than the one being written|its connection has ended",
    signal.SIGUSR1: "no error at all",
}


def leave_a_child(*_) -> None:
    """As a data loader's worker, which outlives what its parent does."""
    if os.fork() == 0:
        time.sleep(CHILD_LIVES_S)
        os._exit(0)


class Rank:
    """A rank in a process of its own, which publishes the versions that it is told and answers the errors."""

    def __init__(self, agent, number: int, run: "str | None") -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(
            target=self._serve, args=(theirs, agent, number, run), daemon=True
        )
        self.process.start()
        self.run = self.answer()

    def publish(self, *versions: int) -> None:
        self._pipe.send(versions)

    def answer(self):
        """The run at first, then the errors of what it was told to publish."""
        assert self._pipe.poll(HANG_S), "the rank hangs"
        return self._pipe.recv()

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self._pipe.close()

    @staticmethod
    def _serve(pipe, agent, number: int, run: "str | None") -> None:
        publishing = False

        def interrupt(*_) -> None:
            if publishing:
                raise KeyboardInterrupt

        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGUSR1, leave_a_child)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the children are not waited for
        name = list(SHAPES)[number]
        metas = [lockstep.TensorMeta(name, "F32", tuple(shape)) for name, shape in SHAPES.items()]
        with agent.publisher(metas, rank=number, ranks=len(SHAPES), owns=[name], run=run) as publisher:
            pipe.send(publisher.run)
            while True:
                parts = {version: {name: content(name, version, SHAPES[name])} for version in pipe.recv()}
                errors = []
                for version, part in parts.items():
                    try:
                        publishing = True
                        try:
                            publisher.publish(version=version, tensors=part)
                        except lockstep.Error as error:
                            errors.append(f"{type(error).__name__}: {error}")
                        publishing = False
                    except KeyboardInterrupt:  # it goes on with the next version
                        publishing = False
                pipe.send(errors)


class Trainer:
    """All ranks; those that were killed are replaced with ``replace``."""

    def __init__(self, agent) -> None:
        self._agent = agent
        self.ranks: "list[Rank]" = []
        self._start()

    def _start(self) -> None:
        self.ranks = [Rank(self._agent, number, None) for number in range(len(SHAPES))]

    def publish(self, *versions: int) -> None:
        for rank in self.ranks:
            rank.publish(*versions)

    def replace(self, killed: "set[int]") -> None:
        if len(killed) == len(self.ranks):
            self._start()
            return
        (run,) = {rank.run for rank in self.ranks}
        for number in killed:
            self.ranks[number] = Rank(self._agent, number, run)

    def kill(self) -> None:
        for rank in self.ranks:
            with contextlib.suppress(OSError):
                rank.kill()


@pytest.fixture
def agent(cluster):
    return cluster.agent()


@pytest.fixture
def trainer(agent):
    trainer = Trainer(agent)
    yield trainer
    trainer.kill()


@pytest.mark.parametrize("rounds", [100, pytest.param(500, marks=pytest.mark.nightly)])
def test_ranks_that_fork_die_or_are_interrupted_amid_a_publish_leave_no_rank_waiting_and_the_next_publish_works(
    rounds, cluster, agent, trainer
):
    randomness = random.Random(15)
    receiver = cluster.receiver(agent)
    took_s = 0.02
    for round_number in range(rounds):
        version = 3 * round_number + 1
        victims = set(randomness.choice([[0], [1], [0, 1]]))
        end = randomness.choice(list(REASONS))
        told = f"round {round_number}: {signal.Signals(end).name} to {victims}"
        forked = end == signal.SIGKILL and randomness.random() < 0.5  # Python cannot be interrupted while it forks

        trainer.publish(version, version + 1)  # so that one rank may wait for the other to begin
        time.sleep(randomness.uniform(0, 1.5 * took_s))
        for number in victims:
            if forked:
                trainer.ranks[number].signal(signal.SIGUSR1)
            trainer.ranks[number].signal(end)
        killed = victims if end == signal.SIGKILL else set()
        for number, rank in enumerate(trainer.ranks):
            if number not in killed:
                for error in rank.answer():
                    assert re.search(REASONS[end], error), f"{told}: rank {number}: {error}"
        for number in killed:
            trainer.ranks[number].kill()
        trainer.replace(killed)

        start = time.monotonic()
        trainer.publish(version + 2)
        answers = [rank.answer() for rank in trainer.ranks]
        assert answers == [[], []], f"{told}: the next publish: {answers}"
        took_s = time.monotonic() - start
        if (round_number + 1) % ROUNDS_A_LOOK == 0:
            receiver.wait_for({name: content(name, version + 2, shape) for name, shape in SHAPES.items()})
