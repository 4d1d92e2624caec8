"""The agreement of an engine's ranks on several hosts: whatever receivers do, and whichever dies, ranks read one version, and only
while all ranks hold it, and their server runs only then. Receivers and ranks are played here, step by step in any order;
test_engine_hosts.py has them as processes."""

import random
import threading

import pytest
from harness import wait_until
from torch.distributed import HashStore

import lockstep
from lockstep.engine._agreement import Agreement, Answer, Step
from lockstep.engine._served import Served

RUN = "0f" * 16


class Server:
    """That the receivers of all hosts pause and resume."""

    runs = False


class Host:
    """A host's ranks, as one, and its receiver, which does one thing at each ``act``."""

    def __init__(self, store, host: int, hosts: int, server: Server) -> None:
        self.agreement = Agreement(store, host, hosts)
        self.server = server
        self.memory = 0  # what the ranks hold, wholly; 0: a mix, or what was there before
        self.reads = 0
        self.resumes = 0  # what was read before a pause, while nothing was written since
        self.current = 0  # what the receiver holds
        self.step: "Step | None" = None  # of a commit of `current`
        self.resume_with = 0  # what its ranks serve, and the server is to resume with
        self.lost = False  # its memory went since it was written

    def act(self, chance: random.Random, newest: int) -> None:
        if self.resume_with:
            answer = self.agreement.ask(Step.SERVED, Served(RUN, self.resume_with))
            if answer == Answer.YES:
                self.server.runs = True
            if answer != Answer.NOT_YET or chance.random() < 0.1:
                self.resume_with = 0
        elif self.step is None:
            self.current = max(self.current, chance.choice([self.current, newest]))
            if self.current and self.reads != self.current:
                self.step = Step.HELD
            elif self.reads and not self.server.runs:
                self.resume_with = self.reads
        else:
            self.commit(chance, self.agreement.ask(self.step, Served(RUN, self.current)))

    def commit(self, chance: random.Random, answer: Answer) -> None:
        if answer == Answer.NOT_YET and chance.random() < 0.9:
            return
        if answer != Answer.YES:
            self.give_up()
        elif self.step == Step.HELD:
            self.server.runs = False
            self.reads, self.resumes = 0, self.reads or self.resumes
            self.step = Step.PAUSED
        elif self.step == Step.PAUSED:
            self.resumes, self.step = 0, Step.WRITTEN
            if self.memory != self.current:
                self.memory = self.current
                if chance.random() < 0.1:  # the receiver dies half-way
                    self.memory = 0
                    self.die()
                else:
                    self.lost = False
        else:
            self.read(self.current)
            self.step = None

    def give_up(self) -> None:
        if self.resumes:
            self.read(self.resumes)
        self.step = None

    def die(self) -> None:
        """The receiver does, and another starts with the version that it held."""
        self.agreement.leave()
        self.give_up()
        self.resume_with = 0

    def lose(self) -> None:
        """The ranks' memory goes, which nothing reads any more: its server is paused, as vLLM's is for a sleep."""
        self.server.runs = False
        self.reads = self.resumes = self.memory = 0
        self.lost = True
        self.agreement.lose()
        self.die()

    def read(self, version: int) -> None:
        if self.memory == version and self.agreement.may_read(Served(RUN, version)):
            self.reads = self.resume_with = version
            self.resumes = 0


def check(hosts: "list[Host]") -> int:
    """The version that is read; 0: none is."""
    read = {host.reads for host in hosts} - {0}
    assert len(read) <= 1
    lost = [host for host in hosts if host.memory == 0 and host.reads == 0 and host.lost]
    assert all(host.memory == version for version in read for host in hosts if host not in lost)
    assert not hosts[0].server.runs or len({host.memory for host in hosts} | {0}) == 2
    return max(read, default=0)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seed", range(15))
def test_ranks_read_one_version_that_all_hold(count, seed):
    chance = random.Random(seed)
    store, server = HashStore(), Server()
    hosts = [Host(store, number, count, server) for number in range(count)]
    newest, versions = 1, set()
    for _ in range(3000):
        newest += chance.random() < 0.01
        host = chance.choice(hosts)
        if chance.random() < 0.01:
            host.die()
        elif chance.random() < 0.005:
            host.lose()
        else:
            host.act(chance, newest)
        versions.add(check(hosts))
    for _ in range(400 * count):  # nobody dies any more
        chance.choice(hosts).act(chance, newest)
        check(hosts)
    if [host.reads for host in hosts] != [newest] * count or not server.runs:
        pytest.fail(f"the newest version, {newest}, was not served again: {[vars(host) for host in hosts]}")
    assert len(versions) > 4


def test_a_host_that_is_behind_is_told_and_the_one_ahead_waits():
    store, new_run = HashStore(), "aa" * 16
    behind, ahead = Agreement(store, 0, 2), Agreement(store, 1, 2)
    assert behind.ask(Step.HELD, Served(RUN, 4)) == Answer.NOT_YET
    assert ahead.ask(Step.HELD, Served(RUN, 5)) == Answer.NOT_YET
    assert behind.ask(Step.HELD, Served(RUN, 4)) == Answer.NO
    assert ahead.ask(Step.HELD, Served(RUN, 5)) == Answer.NOT_YET  # nobody pauses for what was given up
    assert behind.ask(Step.HELD, Served(new_run, 1)) == Answer.NOT_YET  # runs have no order: the last one is newer
    assert ahead.ask(Step.HELD, Served(RUN, 5)) == Answer.NO
    assert ahead.ask(Step.HELD, Served(new_run, 1)) == Answer.YES


def test_nobody_pauses_for_a_host_whose_receiver_has_gone():
    store, version = HashStore(), Served(RUN, 4)
    one, other = Agreement(store, 0, 2), Agreement(store, 1, 2)
    one.ask(Step.HELD, version)
    assert other.ask(Step.HELD, version) == one.ask(Step.HELD, version) == Answer.YES
    assert one.ask(Step.PAUSED, version) == Answer.NOT_YET
    other.leave()
    assert one.ask(Step.PAUSED, version) == Answer.NO


def test_a_store_that_does_not_answer_is_an_error():
    class Gone:
        def compare_set(self, *_):
            raise RuntimeError("connection reset")

    with pytest.raises(lockstep.UnavailableError, match="connection reset"):
        Agreement(Gone(), 0, 2).may_read(Served(RUN, 1))


def test_a_store_that_takes_for_ever_is_an_error_in_time():
    goes_on, others = threading.Event(), set(threading.enumerate())

    class Frozen(HashStore):
        def compare_set(self, *arguments):
            goes_on.wait()
            return super().compare_set(*arguments)

    agreement = Agreement(Frozen(), 0, 1)
    agreement._store_seconds = 0.1
    for _ in range(3):
        with pytest.raises(lockstep.UnavailableError, match="does not answer"):
            agreement.leave()
    goes_on.set()
    wait_until(lambda: set(threading.enumerate()) <= others, "calls that were given up end")
    assert agreement.ask(Step.HELD, Served(RUN, 1)) == Answer.YES
