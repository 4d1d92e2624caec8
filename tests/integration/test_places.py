"""Where daemons are when no option says so (common/os/places.h, lockstep.core.places): several users of one host, and
starts that fail."""

import contextlib
import json
import multiprocessing
import os
import shutil
import socket
import stat
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from harness import LOCKSTEPCTL, MODEL, RAAS_RECEIVER, TRAINER_AGENT, roomy_directory, wait_until

import lockstep
from lockstep.core import abi, places

# Users that have no name and no daemon. A test that is not root is one user.
USERS = (63101, 63102) if os.geteuid() == 0 else (os.geteuid(),)
WEIGHTS = {"embed": np.arange(64, dtype=np.float32)}


class User:
    """A user of the host with programs that he may execute, and nothing that tells him of daemons."""

    def __init__(self, uid: int, programs: Path) -> None:
        self._programs = programs
        self.uid = uid
        self.place = Path(f"/dev/shm/lockstep-{uid}")
        identity = {} if uid == os.geteuid() else {"user": uid, "group": uid, "extra_groups": []}
        environment = {"PATH": os.environ["PATH"]}
        self._as = dict(identity, cwd="/", env=environment, stdin=subprocess.DEVNULL, text=True)

    def run(self, program: Path, *arguments: str) -> str:
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        done = subprocess.run([self._programs / program.name, *arguments], **self._as, **pipes)
        return done.stdout + done.stderr

    @contextlib.contextmanager
    def daemon(self, program: Path, *arguments: str):
        process = subprocess.Popen([self._programs / program.name, *arguments], **self._as)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)

    def publish(self) -> None:
        """Publishes in a process of this user, which imports nothing any more."""
        abi.load()
        child = multiprocessing.get_context("fork").Process(target=self._publish)
        child.start()
        child.join(60)
        assert child.exitcode == 0

    def _publish(self) -> None:
        if self.uid != os.geteuid():
            os.setgroups([])
            os.setgid(self.uid)
            os.setuid(self.uid)
        for name in [name for name in os.environ if name.startswith("LOCKSTEP_")]:
            del os.environ[name]
        with lockstep.Publisher.from_tensors(WEIGHTS, model=MODEL, on_agent_host=True) as publisher:
            publisher.publish()


@pytest.fixture
def programs():
    directory = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir=roomy_directory()))
    directory.chmod(0o755)
    for program in (TRAINER_AGENT, RAAS_RECEIVER, LOCKSTEPCTL):
        shutil.copy2(program, directory)
    yield directory
    shutil.rmtree(directory)


def test_each_user_of_a_host_has_daemons_of_his_own_without_an_option(programs):
    users = [User(uid, programs) for uid in USERS]
    with contextlib.ExitStack() as running:
        for user in users:
            assert not user.place.exists(), f"{user.place} is there; remove it"
            running.callback(shutil.rmtree, user.place, ignore_errors=True)
            running.enter_context(user.daemon(TRAINER_AGENT))
            wait_until((user.place / "agent/export.sock").exists, "the agent listens")
            running.enter_context(user.daemon(RAAS_RECEIVER, "--model", MODEL))
        for user in users:
            user.publish()
            replica = user.place / "receiver/replicas" / MODEL
            wait_until((replica / "v1").exists, f"the receiver of user {user.uid} has the version")
            assert stat.S_IMODE(user.place.stat().st_mode) == 0o700
            assert f"\n{MODEL} " in user.run(LOCKSTEPCTL, "status")
            assert json.loads(user.run(LOCKSTEPCTL, "--json", "pull"))["to"]["version"] == 1


@pytest.mark.parametrize("program", [TRAINER_AGENT, RAAS_RECEIVER], ids=lambda program: program.name)
def test_a_start_that_fails_leaves_nothing_that_stops_the_next_user(tmp_path, program):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"127.0.0.1:{taken.getsockname()[1]}"
        memory = tmp_path / "memory"
        options = {
            TRAINER_AGENT: ["--socket", tmp_path / "sockets/export.sock", "--segment-dir", memory],
            RAAS_RECEIVER: ["--model", MODEL, "--root", memory, "--control-socket", tmp_path / "sockets/control.sock"],
        }[program]
        failed = subprocess.run([program, *options, "--listen", port], capture_output=True, text=True)
    assert failed.returncode == 69 and f"cannot listen on {port}" in failed.stderr
    assert not memory.exists() and not [path for path in tmp_path.rglob("*") if not path.is_dir()]


@pytest.mark.parametrize("program", [TRAINER_AGENT, RAAS_RECEIVER], ids=lambda program: program.name)
def test_a_place_that_others_may_write_to_is_refused(tmp_path, program):
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(0o777)
    environment = {**os.environ, "LOCKSTEP_RUNTIME_DIR": str(place)}
    model = ["--model", MODEL] if program == RAAS_RECEIVER else []
    failed = subprocess.run([program, *model], env=environment, capture_output=True, text=True)
    assert failed.returncode == 77 and "others could replace the daemons' sockets" in failed.stderr


def test_replicas_alone_in_a_users_place_keep_it_open_to_him_alone(tmp_path):
    environment = {**os.environ, "LOCKSTEP_RUNTIME_DIR": f"{tmp_path}/place/"}
    options = ["--model", MODEL, "--control-socket", "none", "--listen", "127.0.0.1:0"]
    receiver = subprocess.Popen([RAAS_RECEIVER, *options], env=environment, stderr=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "place/receiver/replicas" / MODEL).exists, "it has its replicas there")
        assert [stat.S_IMODE((tmp_path / path).stat().st_mode) for path in ("place", "place/receiver")] == [0o700] * 2
    finally:
        receiver.terminate()
        receiver.wait(60)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The directory of this user's daemons."""
    monkeypatch.setattr(places, "own", lambda: str(tmp_path))
    monkeypatch.delenv("LOCKSTEP_RUNTIME_DIR", raising=False)
    monkeypatch.setitem(places._HOST, "agent", str(tmp_path / "host"))
    monkeypatch.setitem(places._HOST, "receiver", str(tmp_path / "none"))
    tmp_path.chmod(0o700)
    for name in ("host", "agent", "receiver/replicas"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_what_a_killed_daemon_left_does_not_hide_the_hosts(own):
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(own / "agent/control.sock"))
        assert places.socket("agent", "export.sock") == str(own / "host/export.sock")
        listening.listen()
        assert places.socket("agent", "export.sock") == str(own / "agent/export.sock")


def test_replicas_in_a_place_that_others_may_write_to_are_refused(own):
    assert places.replicas() == str(own / "receiver/replicas")
    own.chmod(0o770)
    with pytest.raises(lockstep.PermissionDeniedError, match="is open to other users"):
        places.replicas()
