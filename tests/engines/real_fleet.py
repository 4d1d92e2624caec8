"""A trainer, its agent, a receiver and whole inference servers, for the tests of real_vllm and real_sglang."""

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import MODEL, Cluster, wait_until
from real_server import Answer, Judge, Load, RealServer, Served
from tiny_trainer import Trainer

# So large that most greedy answers of consecutive versions differ.
_RATES = (3e-3, 1e-2, 1e-3)
VOCABULARY = 128
_SIZES = {"vocab_size": VOCABULARY, "max_position_embeddings": 256}
_PROMPT = [*range(60), 5, 7, 11]  # longer than a block of a prefix cache


class Fleet:
    """All of it, with version 1 served.

    Args:
        new_server: ``new_server(model, directory, follows)`` makes the server of a checkpoint; ``follows`` are variables
            of its environment.
        kind: the receiver's name for its kind.
        in_place: the server is written in place; else it loads directories.
        servers: how many the receiver has; several are called a, b and so on.
        model: a name of hf_models.MODELS; ``overrides`` change its configuration.
    """

    def __init__(
        self,
        cluster: Cluster,
        new_server: "Callable[[Path, Path, dict[str, Any]], RealServer]",
        kind: str,
        in_place: bool,
        servers: int = 1,
        model: str = "qwen3",
        **overrides: Any,
    ) -> None:
        self.cluster, directory = cluster, cluster.directory
        self.agent = cluster.agent()
        self.trainer = Trainer(
            model, directory / "checkpoints", self.agent.socket, MODEL, torch.float32, _RATES, **{**_SIZES, **overrides}
        )
        self.start = directory / "checkpoints/start"
        self._in_place, self._kind, self._socket = in_place, kind, directory / "engine.sock"
        follows = {"LOCKSTEP_ENGINE_SOCKET": self._socket, "LOCKSTEP_MODEL": MODEL} if in_place else {}
        self._names = [chr(ord("a") + number) for number in range(servers)] if servers > 1 else ["default"]
        self.servers = [
            new_server(self.start, directory / name, {**follows, "LOCKSTEP_ENGINE_NAME": name}) for name in self._names
        ]
        self.server = self.servers[0]
        cluster.daemons += self.servers
        for server in self.servers:
            server.start(wait=False)
        self.receive()
        self.version = 0
        self.judge = Judge({0: self.start})
        self.served = Served()
        for server in self.servers:
            server.wait_until_ready()
        self.serve()

    def receive(self, **options: Any) -> None:
        """A receiver with these options; the one before ends."""
        if hasattr(self, "receiver"):
            self.receiver.stop()
            self.cluster.daemons.remove(self.receiver)
        if self._in_place:
            options = {"engine_load": "in-place", "engine_socket": self._socket, **options}
        else:
            options = {"assets": self.start, **options}
        engines = [f"{name}={self._kind}:{server.url}" for name, server in zip(self._names, self.servers)]
        self.receiver = self.cluster.receiver(self.agent, name="receiver", engine=engines, **options)

    def publish(self) -> int:
        """The next version, which is not waited for."""
        self.version += 1
        if self.version > 1:
            self.trainer.step()
        self.served.asked(self.version)
        self.judge.checkpoints[self.version] = self.trainer.publish(self.version, label=_label(self.version))
        return self.version

    def serve(self) -> float:
        """The next version is served. The seconds from its publication until then."""
        version = self.publish()
        begun = time.monotonic()
        self.await_served(version)
        return time.monotonic() - begun

    def await_served(self, version: int, engines: "int | None" = None) -> None:
        """Until every engine serves it, or so many."""
        self.trainer.exporter.wait_served(version=version, engines=engines or len(self.servers), timeout=60)
        self.served.served(version)

    def load(self, ask: "Callable[[list[int], int, bool], Answer] | None" = None, clients: int = 3) -> Load:
        """To be entered: requests without a pause."""
        return Load(ask or self.server.ask, VOCABULARY, clients)

    def check(self, load: Load, errors_allowed: bool = False) -> "list[Answer]":
        """The answers of a load: each token is of the version that it is stamped with, which was served meanwhile."""
        assert errors_allowed or not load.errors, load.errors[:3]
        assert self.judge.wrong(load.answers) == []
        assert self.served.wrong(load.answers) == []
        return load.answers

    def newest_is_answered(self) -> None:
        """And nothing that older weights computed is left in a cache: the prompt is asked at every version."""
        answer = self.server.ask(_PROMPT, 16)
        [span] = answer.spans
        assert span.version == self.version and span.name.endswith(f"/{_label(self.version)}")
        assert answer.tokens == self.judge.greedy(self.version, _PROMPT, 16)

    def engine(self) -> "dict[str, Any]":
        """What the receiver says of the first one."""
        return self.receiver.model_status()["engines"][0]

    def ready(self) -> bool:
        """Whether the receiver calls the engine ready."""
        return self.receiver.ctl("health", f"raas-receiver-engine/{MODEL}").returncode == 0

    @contextlib.contextmanager
    def never_ready_with(self, version: int) -> "Iterator[None]":
        """Meanwhile, whenever the engine is ready, the server answers by a newer version."""
        wrong, stop = [], threading.Event()

        def look() -> None:
            while not stop.wait(0.2):
                with contextlib.suppress(OSError, ValueError):
                    before = self.ready()
                    answer = self.server.ask(_PROMPT, 1)
                    if before and self.ready() and answer.spans[0].version <= version:
                        wrong.append(answer)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        assert not wrong, wrong[:3]


def _label(version: int) -> str:
    return f"step {version}"


@contextlib.contextmanager
def new_fleet(*arguments: Any, **options: Any) -> "Iterator[Fleet]":
    """A fleet below a directory of its own, ended whatever happens. AssertionErrors have the ends of all logs."""
    with Cluster() as cluster:
        try:
            fleet = Fleet(cluster, *arguments, **options)
            yield fleet
            fleet.trainer.close()
        except BaseException:
            for daemon in cluster.daemons:
                print(f"--- {daemon.name}\n{daemon.log_tail()}")
            raise


def fleet_of(server: "Callable[..., RealServer]", kind: str, in_place: bool) -> Any:
    """A fixture: the fleet of a module's tests, with one server of a class that takes ``follows``."""

    @pytest.fixture(scope="module")
    def fleet() -> "Iterator[Fleet]":
        new_server = lambda model, directory, follows: server(model, directory, follows=follows)  # noqa: E731
        with new_fleet(new_server, kind, in_place=in_place) as fleet:
            yield fleet

    return fleet


# --- what every server must do, whatever it is and however versions get into it ---


def follows_under_load(fleet: Fleet, versions: int) -> "list[Answer]":
    """So many versions are each served under load, and verified."""
    took, first, failures = [], fleet.version, fleet.engine()["failures"]
    with fleet.load() as load:
        load.await_answers(3)
        for _ in range(versions):
            took.append(fleet.serve())
            load.await_answers(2)
    answers = fleet.check(load)
    by_version = {span.version for answer in answers for span in answer.spans}
    assert by_version == set(range(first, fleet.version + 1)), "versions that no answer is by"
    fleet.newest_is_answered()
    engine = fleet.engine()
    assert engine["failures"] == failures and engine["last_error"] == ""
    took.sort()
    print(
        f"\n{versions} versions, {len(answers)} answers, publish to served {took[len(took) // 2]:.3f} s, at most "
        f"{took[-1]:.3f} s, last pause {engine['last_pause_us'] / 1e3:.0f} ms"
    )
    return answers


def daemons_end_at_random_moments(fleet: Fleet, rounds: int, seed: int) -> None:
    """The receiver and the agent are killed and stopped around commits, under load: no answer is wrong, and the server
    is never left paused."""
    moments = random.Random(seed)
    with fleet.load() as load:
        load.await_answers()
        for _ in range(rounds):
            version = fleet.publish()
            time.sleep(moments.uniform(0, 0.3))
            daemon = fleet.receiver if moments.random() < 0.7 else fleet.agent
            daemon.kill() if moments.random() < 0.7 else daemon.stop()
            time.sleep(moments.uniform(0, 1))
            daemon.start()
            if daemon is fleet.agent:  # its versions are gone with it
                version = fleet.publish()
            fleet.await_served(version)
            load.await_answers(2)
    fleet.check(load)
    fleet.newest_is_answered()


def server_processes_end_at_random_moments(fleet: Fleet, rounds: int, seed: int, names: "list[str]") -> None:
    """A process of the server is killed, or stopped for some seconds, around a commit, under load. What was killed is
    started again; nothing is paused for ever."""
    moments = random.Random(seed)
    for _ in range(rounds):
        with fleet.load() as load, fleet.never_ready_with(0):
            load.await_answers(2)
            process = fleet.server.process_named(moments.choice(names))
            version = fleet.publish()
            time.sleep(moments.uniform(0, 0.3))
            if moments.random() < 0.5:
                os.kill(process, signal.SIGSTOP)
                time.sleep(moments.uniform(0.1, 4))
                os.kill(process, signal.SIGCONT)
            else:
                os.kill(process, signal.SIGKILL)
                time.sleep(moments.uniform(0, 2))
                fleet.server.kill()
                fleet.server.start()
            fleet.await_served(version)
            load.await_answers(2)
        fleet.served.again(0)
        fleet.check(load, errors_allowed=True)
        fleet.newest_is_answered()


def restarted_server_is_not_ready_before_it_has_the_version(fleet: Fleet, kill: "Callable[[], None]") -> None:
    """The server dies and is started again, with the weights that it was started with first."""
    assert fleet.ready()
    with fleet.load() as load, fleet.never_ready_with(0):
        load.await_answers(2)
        kill()
        begun = time.monotonic()
        wait_until(lambda: not fleet.ready(), "a server that died is not ready", 20)
        noticed = time.monotonic() - begun
        fleet.server.kill()
        fleet.server.start()
        begun = time.monotonic()
        wait_until(fleet.ready, "the server is ready again", 60)
        again = time.monotonic() - begun
        fleet.newest_is_answered()
    fleet.served.again(0)  # until it has the version, it answers with the weights of its start, and says so
    fleet.check(load, errors_allowed=True)
    assert noticed < 5 and again < 15, f"unready after {noticed:.1f} s, ready {again:.1f} s after it was up"
    print(f"\nunready {noticed:.1f} s after its death, ready {again:.1f} s after it was up")


def dies_in_a_pause(fleet: Fleet, name: str) -> None:
    """The server's process with that name does, while the receiver's call waits for it."""
    process = fleet.server.process_named(name)
    os.kill(process, signal.SIGSTOP)
    fleet.publish()
    time.sleep(1)
    os.kill(process, signal.SIGKILL)
