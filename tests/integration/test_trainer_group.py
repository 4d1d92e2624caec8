"""A trainer that runs as another user, as under Slurm, reaches the agent by a group."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from harness import MODEL
from replicas import ToyModel, differing_tensor

import lockstep

AGENT, TRAINER, OTHER, GROUP = 65530, 65531, 65532, 54321

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")


@pytest.fixture
def runtime():
    """Where the agent makes its directory, below ones that are root's."""
    path = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/run"))
    os.chown(path, AGENT, AGENT)
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def agent(cluster, runtime):
    cluster.directory.chmod(0o755)
    agent = cluster.agent(
        start=False,
        socket=runtime / "agent/export.sock",
        segment_dir=cluster.directory / "segments",
        segments="memfd",
        trainer_group=GROUP,
    )
    agent.socket = runtime / "agent/export.sock"
    agent.prefix = ["setpriv", f"--reuid={AGENT}", f"--regid={AGENT}", f"--groups={GROUP}"]
    for directory in (agent.address_file.parent, agent.segment_dir):
        directory.mkdir(exist_ok=True)
        os.chown(directory, AGENT, AGENT)
    agent.start()
    return agent


def outcome_as(user: int, groups: "list[int]", socket: Path, model: ToyModel, *, waits: bool = False) -> str:
    """How a process of that user ends that publishes version 1, and waits for its receivers."""
    lockstep.library_version()  # loads the library, which the other user may not find
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(user)
            os.setuid(user)
            with lockstep.Publisher.in_place(model.tensors, model=MODEL, socket=socket) as publisher:
                published = publisher.publish(version=1, tensors=model.tensors)
                if waits:
                    published.wait(timeout=60)
            os.write(writing, b"published")
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as said:
        outcome = said.read()
    os.waitpid(child, 0)
    return outcome


def test_a_trainer_of_another_user_exports_by_its_group_and_no_other_does(cluster, agent):
    model = ToyModel(blocks=8)
    refused = outcome_as(OTHER, [], agent.socket, model)
    assert refused.startswith("PermissionDeniedError") and "--trainer-group" in refused
    assert outcome_as(TRAINER, [GROUP], agent.socket, model) == "published"
    receiver = cluster.receiver(agent)
    receiver.wait_for(model.tensors)
    assert outcome_as(TRAINER, [GROUP], agent.socket, model, waits=True) == "published"
    link = cluster.directory / "link.sock"
    link.symlink_to(agent.socket)
    assert "PermissionDeniedError" in outcome_as(TRAINER, [GROUP], link, model, waits=True)
    agent.socket.chmod(0o666)
    refused = outcome_as(OTHER, [], agent.socket, model)
    assert f"uid {OTHER} may not export to an agent of uid {AGENT}" in refused and f"in group {GROUP}" in refused
    assert differing_tensor(receiver.file(), model.tensors) is None
    assert agent.model_status()["newest_version"] == 1


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"trainer_group": "no-such-group", "segments": "memfd"}, "there is no group no-such-group"),
        ({"trainer_group": GROUP}, "needs segments = memfd"),
    ],
)
def test_a_group_that_cannot_be_let_in_is_a_configuration_error(cluster, options, problem):
    agent = cluster.agent(start=False, **options)
    with pytest.raises(AssertionError, match=f"78: .*--trainer-group.*{problem}"):
        agent.start()
