"""Two real builds in one fleet: of one protocol, where a rolling upgrade misses no version; and of two, where each refuses the
other by its name. tests/integration/test_peers_that_differ.py has peers that no build speaks for, such as an engine's rank."""

import contextlib
import json
import threading

import pytest
from builds import RELEASE, next_build
from harness import RAAS_RECEIVER, ROOT, TRAINER_AGENT, wait_until
from replicas import ToyModel, data_hash, tensors_hash

import lockstep

THIS = (ROOT / "VERSION").read_text().strip()


class Fleet:
    """Receivers that follow a trainer, which publishes until it is stopped: a version once all receivers that are up have the one
    before it. Each receiver's every version is compared with what the trainer published under that number."""

    def __init__(self, agent, receivers) -> None:
        self.agent, self.receivers = agent, receivers
        self.up = set(receivers)
        self.published: "list[str]" = []  # the hash of version 1, 2, ...
        self.error: "BaseException | None" = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._train)

    def _train(self) -> None:
        model = ToyModel(blocks=2)
        try:
            with self.agent.publisher(model.tensors) as publisher:
                while not self._stopping.is_set():
                    self.published.append(tensors_hash(model.step()))
                    version = len(self.published)
                    publisher.publish(version=version, tensors=model.tensors)
                    for receiver in self.receivers:
                        wait_until(
                            lambda: receiver not in self.up or self.serves(receiver) >= version, f"{version} is served"
                        )
        except BaseException as error:
            self.error = error

    def serves(self, receiver) -> int:
        """The version that an engine would load now, proved to be the trainer's. 0: none."""
        while receiver.published().exists():
            directory = receiver.published().resolve()
            with contextlib.suppress(FileNotFoundError):
                found = data_hash(directory / "model.safetensors")
                if receiver.published().resolve() == directory:  # else its bytes may be another version's by now
                    version = int(directory.name.lstrip("v"))
                    assert found == self.published[version - 1], f"{receiver.name} serves {directory}"
                    return version
        return 0

    def go_on(self, versions: int = 5) -> None:
        """Until that many more versions are published."""
        wanted = len(self.published) + versions

        def published() -> bool:
            assert self._thread.is_alive(), self.error
            return len(self.published) >= wanted

        wait_until(published, f"version {wanted} is published")

    @contextlib.contextmanager
    def down(self, receiver):
        self.up.discard(receiver)
        yield
        wait_until(lambda: self.serves(receiver) >= len(self.published) - 1, f"{receiver.name} has caught up")
        self.up.add(receiver)

    def __enter__(self) -> "Fleet":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join()
        if self.error and exception == (None, None, None):
            raise self.error


def replace(daemon, program) -> None:
    """With its next build, as an upgrade of its unit does."""
    assert daemon.stop() == 0
    daemon.command[0] = str(next_build(program))
    daemon.start()
    assert daemon.ask("status")["build"]["version"] == RELEASE


def syncs_of(receiver) -> "list[tuple[str, int]]":
    """Mode and version of each, in order, of all its processes."""
    events = [json.loads(line) for line in receiver.log().splitlines() if '"event":"version_committed"' in line]
    return [(event["mode"], event["version"]) for event in events]


def test_a_rolling_upgrade_misses_no_version_and_serves_nothing_else(cluster):
    agent = cluster.agent()
    receivers = [cluster.receiver(agent, name=f"receiver-{number}") for number in range(3)]
    missed = {}
    with Fleet(agent, receivers) as fleet:
        fleet.go_on()
        replace(agent, TRAINER_AGENT)
        fleet.go_on()
        for receiver in receivers:
            with fleet.down(receiver):
                left = fleet.serves(receiver)
                replace(receiver, RAAS_RECEIVER)
            missed[receiver] = range(left + 1, fleet.serves(receiver))
            fleet.go_on()
    last = len(fleet.published)
    for receiver in receivers:
        wait_until(lambda: fleet.serves(receiver) == last, f"{receiver.name} has the last version")
        (first, _), *others = syncs = syncs_of(receiver)
        assert first == "full" and {mode for mode, _ in others} <= {"delta", "chain"}  # a chain is several deltas
        assert set(range(1, last + 1)) - {version for _, version in syncs} <= set(missed[receiver])


def refusal(self: "tuple[str, str, int]", other: "tuple[str, str, int]", older: str) -> str:
    (program, release, protocol), (other_program, other_release, other_protocol) = self, other
    return (
        f"{program} {release} speaks protocol {protocol}, {other_program} {other_release} speaks protocol {other_protocol}; "
        f"upgrade the {older}"
    )


def started(daemon, program):
    daemon.command[0] = str(next_build(program, "next_protocol"))
    daemon.start()
    return daemon


@pytest.mark.parametrize("newer", ["trainer_agent", "raas_receiver"])
def test_an_agent_and_a_receiver_of_two_protocols_refuse_each_other(cluster, newer):
    model = ToyModel(blocks=1)
    agent = cluster.agent()
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        agent.wait_for(1)
    if newer == "trainer_agent":
        agent.stop()
        started(agent, TRAINER_AGENT)
        receiver = cluster.receiver(agent)
        said = refusal(("trainer_agent", RELEASE, 2), ("raas_receiver", THIS, 1), "raas_receiver")
    else:
        receiver = started(cluster.receiver(agent, start=False), RAAS_RECEIVER)
        said = refusal(("trainer_agent", THIS, 1), ("raas_receiver", RELEASE, 2), "trainer_agent")
    wait_until(lambda: said in receiver.model_status()["last_error"], "the receiver's status says who speaks what")
    wait_until(lambda: said in agent.ctl("status").stdout, "and the agent's")
    assert said in receiver.log() and not receiver.published().exists()


def test_a_plugin_and_an_agent_of_two_protocols_refuse_each_other(cluster):
    agent = started(cluster.agent(start=False), TRAINER_AGENT)
    said = refusal(("export_plugin", THIS, 1), ("trainer_agent", RELEASE, 2), "export_plugin")
    with pytest.raises(lockstep.ProtocolError, match=said):
        agent.publisher(ToyModel(blocks=1).tensors)


def test_two_daemons_of_the_next_protocol_work_together(cluster):
    """So what was refused above was the protocol."""
    agent = started(cluster.agent(start=False), TRAINER_AGENT)
    receiver = started(cluster.receiver(agent, start=False), RAAS_RECEIVER)
    watching = lambda: "model_not_open" in receiver.log()  # noqa: E731
    wait_until(watching, "the agent has told the receiver what it has")
    assert "speaks protocol" not in receiver.log()
