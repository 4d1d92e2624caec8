"""lockstep.ensure_agent() and ensure_receiver(): one daemon for all callers, and its end."""

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from ensure_process import MODEL, EnsureProcess, tensors
from harness import RAAS_RECEIVER, TRAINER_AGENT, roomy_directory, wait_until
from replicas import ToyModel, differing_tensor

import lockstep
from lockstep.core.places import listener
from lockstep.daemons._process import Process

A_WHILE_S = 1.5  # in which a daemon looks for its owners more than once


class Home:
    """A runtime directory of the test's own, for all processes that it starts."""

    def __init__(self, path: Path) -> None:
        self.runtime = path / "runtime"
        self.programs = path / "programs"
        self.programs.mkdir()
        for program in (TRAINER_AGENT, RAAS_RECEIVER):
            (self.programs / program.name).symlink_to(program)

    def replace(self, program: Path, script: str) -> None:
        """Puts a shell script in the program's place; $PROGRAM is the real one."""
        path = self.programs / program.name
        path.unlink()
        path.write_text(f"#!/bin/sh\nPROGRAM={program}\n{script}\n")
        path.chmod(0o755)

    def restore(self, program: Path) -> None:
        (self.programs / program.name).unlink()
        (self.programs / program.name).symlink_to(program)

    def kill_all(self) -> None:
        for control in self.runtime.glob("*/control.sock"):
            pid = listener(str(control))
            if pid is not None:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def home(monkeypatch):
    path = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir=roomy_directory()))
    home = Home(path)
    monkeypatch.setenv("LOCKSTEP_RUNTIME_DIR", str(home.runtime))
    monkeypatch.setenv("LOCKSTEP_PROGRAMS", str(home.programs))
    yield home
    home.kill_all()
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def process():
    """Makes processes; they are ended whatever happens."""
    with contextlib.ExitStack() as all_processes:
        yield lambda: all_processes.enter_context(EnsureProcess())


def ended(pid: int) -> bool:
    """Whether it runs no more, waited for or not."""
    with Process(pid) as process:
        return process.ended(0)


def publish(agent, version: int = 1, model: "ToyModel | None" = None) -> "dict[str, np.ndarray]":
    model = model or ToyModel(blocks=4)
    with lockstep.Publisher.in_place(model.tensors, model=MODEL, socket=agent.socket, call_timeout=60) as publisher:
        publisher.publish(version=version, tensors=model.tensors)
    return model.tensors


def test_eight_processes_at_once_get_one_agent_and_publish_one_version_through_it(home, process):
    processes = [process() for _ in range(8)]
    for each in processes:
        each.send("ensure", options={"threads": 2, "end_with_owner": True})
    pids = {each.answer()["pid"] for each in processes}
    assert len(pids) == 1
    for rank, each in enumerate(processes):
        each.send("publish", rank=rank, ranks=8)
    assert [each.answer() for each in processes] == [{}] * 8
    agent = lockstep.ensure_agent(threads=2, end_with_owner=True)
    assert {agent.pid} == pids
    assert Path(agent.log).read_text().count('"listening"') == 1
    receiver = lockstep.ensure_receiver(agent.control, MODEL, threads=2, end_with_owner=True)
    wait_until(lambda: Path(receiver.current(MODEL)).exists(), "the version is there")
    assert differing_tensor(Path(receiver.current(MODEL), "model.safetensors"), tensors(8)) is None


def test_an_owner_that_asks_again_and_again_keeps_one_descriptor(home, process):
    asking = process()
    options = {"threads": 2, "end_with_owner": True}
    assert len({asking.call("ensure", options=options)["pid"] for _ in range(3)}) == 1
    descriptors = [os.readlink(descriptor) for descriptor in Path(f"/proc/{asking.process.pid}/fd").iterdir()]
    assert sum(path.endswith("/owners") for path in descriptors) == 1


def test_an_agent_ends_when_the_last_of_its_owners_was_killed_and_leaves_no_memory(home, process):
    first, second = process(), process()
    options = {"threads": 2, "end_with_owner": True}
    pid = first.call("ensure", options=options)["pid"]
    assert second.call("ensure", options=options)["pid"] == pid
    first.kill()
    time.sleep(A_WHILE_S)
    assert not ended(pid)
    second.call("publish", rank=0, ranks=1)
    second.kill()
    wait_until(lambda: ended(pid), "the agent ends")
    place = home.runtime / "agent"
    assert '"owners_gone"' in (place / "log").read_text() and '"stopped"' in (place / "log").read_text()
    assert not (place / "segments").exists() or not any((place / "segments").iterdir())


def test_a_forked_child_of_its_owner_does_not_keep_an_agent(home, process):
    owner = process()
    pid = owner.call("ensure", options={"end_with_owner": True})["pid"]
    child = owner.call("fork")["pid"]
    try:
        owner.process.kill()
        wait_until(lambda: ended(pid), "the agent ends")
        assert not ended(child)
    finally:
        os.kill(child, signal.SIGKILL)


def test_an_agent_outlives_the_killed_process_that_started_it_and_is_found_again(home, process):
    starter = process()
    pid = starter.call("ensure", options={})["pid"]
    starter.kill()
    time.sleep(A_WHILE_S)
    agent = lockstep.ensure_agent()
    assert agent.pid == pid
    publish(agent)


def test_an_agent_is_neither_its_starters_child_nor_in_its_session(home):
    agent = lockstep.ensure_agent()
    status = Path(f"/proc/{agent.pid}/status").read_text()
    assert f"\nPPid:\t{os.getpid()}\n" not in status
    assert os.getsid(agent.pid) == agent.pid


def test_a_caller_that_comes_while_a_daemon_ends_for_want_of_owners_waits_for_it_and_gets_another(home):
    place = home.runtime / "agent"
    lockstep.ensure_agent().stop()
    agents = []
    with open(place / "lock") as life, open(place / "owners", "w") as owners:
        fcntl.flock(life, fcntl.LOCK_EX)  # as a daemon has them that has seen its last owner
        fcntl.flock(owners, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: agents.append(lockstep.ensure_agent(end_with_owner=True)))
        waiting.start()
        waiting.join(A_WHILE_S)
        assert agents == [] and waiting.is_alive()
    waiting.join()
    publish(agents[0])


def test_what_a_killed_agent_left_is_replaced_and_its_model_found_again(home):
    agent = lockstep.ensure_agent()
    publish(agent)
    os.kill(agent.pid, signal.SIGKILL)
    wait_until(lambda: ended(agent.pid), "it is killed")
    assert Path(agent.socket).exists() and (home.runtime / "agent/addresses.json").exists()
    again = lockstep.ensure_agent()
    assert again.pid != agent.pid
    wait_until(lambda: '"version_recovered"' in Path(again.log).read_text(), "the version is found again")
    agent.stop()  # is of the one that was killed
    publish(again)


def test_an_owned_agent_keeps_its_versions_through_a_sigkill_in_segments_with_names(home):
    options = {"segments": "tmpfs", "end_with_owner": True}
    agent = lockstep.ensure_agent(**options)
    model = ToyModel(blocks=4)
    publish(agent, model=model)
    os.kill(agent.pid, signal.SIGKILL)
    wait_until(lambda: ended(agent.pid), "it is killed")
    again = lockstep.ensure_agent(**options)
    receiver = lockstep.ensure_receiver(again.control, MODEL, end_with_owner=True)
    wait_until(lambda: Path(receiver.current(MODEL)).exists(), "the version is there")
    assert differing_tensor(Path(receiver.current(MODEL), "model.safetensors"), model.tensors) is None


def test_stop_ends_a_daemon_for_all_callers_and_the_next_call_starts_another(home):
    agent = lockstep.ensure_agent()
    lockstep.ensure_agent().stop()
    assert ended(agent.pid)
    agent.stop()
    assert lockstep.ensure_agent().pid != agent.pid


def test_agents_of_two_names_live_side_by_side(home):
    one, two = lockstep.ensure_agent(name="one"), lockstep.ensure_agent(name="two")
    assert one.pid != two.pid and one.socket != two.socket
    assert lockstep.ensure_agent(name="one") == one


def test_a_daemon_that_was_started_otherwise_is_an_error_with_each_difference_and_what_to_do(home):
    agent = lockstep.ensure_agent(retain_bytes="1GiB", listen="127.0.0.1:0")
    with pytest.raises(lockstep.StateError) as refused:
        lockstep.ensure_agent(retain_bytes="2GiB")
    text = str(refused.value)
    assert f'its listen is "127.0.0.1:0", not ""; its retain_bytes is {1 << 30}, not {2 << 30}. ' in text
    assert f"kill {agent.pid}" in text and "another name" in text
    with pytest.raises(lockstep.StateError, match='its owners is "", not ".*/owners"'):
        lockstep.ensure_agent(retain_bytes="1GiB", listen="127.0.0.1:0", end_with_owner=True)


def test_a_daemon_of_another_version_is_an_error_that_names_both(home):
    lockstep.ensure_agent()
    home.replace(TRAINER_AGENT, 'if [ "$1" = --version ]; then echo trainer_agent 9.9.9; else exec $PROGRAM "$@"; fi')
    with pytest.raises(
        lockstep.StateError, match=r"its version is trainer_agent 0\.\S+ .*, not trainer_agent 9\.9\.9\."
    ):
        lockstep.ensure_agent()


def test_a_receiver_in_the_place_of_an_agent_is_an_error_that_names_both(home):
    lockstep.ensure_agent(name="mine")
    with pytest.raises(lockstep.StateError, match="its version is trainer_agent .*, not raas_receiver "):
        lockstep.ensure_receiver("unix:/nowhere", MODEL, name="mine")


def test_a_daemon_that_fails_at_its_start_shows_its_log_and_not_that_of_the_one_before(home):
    lockstep.ensure_agent(threads=3).stop()
    with pytest.raises(lockstep.UnavailableError) as failed:
        lockstep.ensure_agent(listen="0.0.0.0:0")
    text = str(failed.value)
    assert str(home.runtime / "agent/log") in text
    assert "0.0.0.0:0 is not a loopback address" in text and "allow-insecure-network" in text
    assert "listening" not in text


def test_a_long_log_is_moved_away_by_the_next_call_and_its_daemon_goes_on_writing(home):
    first = lockstep.ensure_agent()
    log = home.runtime / "agent" / "log"
    with open(log, "ab") as file:
        file.write(b"x" * (17 << 20))
    size = log.stat().st_size
    second = lockstep.ensure_agent()
    assert second.pid == first.pid
    assert (log.parent / "log.1").stat().st_size == size and log.stat().st_size < 1 << 20
    publish(second)
    wait_until(lambda: b"version_committed" in log.read_bytes(), "the daemon writes to the log that is there")


def test_a_daemon_that_does_not_listen_in_time_is_killed(home):
    stuck = home.programs / "stuck"
    home.replace(
        TRAINER_AGENT,
        f'case $1 in --version|--print-config) exec $PROGRAM "$@";; esac; echo $$ > {stuck}; exec sleep 600',
    )
    with pytest.raises(lockstep.DeadlineError, match="did not listen in time, and was killed"):
        lockstep.ensure_agent(timeout=3)
    wait_until(lambda: ended(int(stuck.read_text())), "it is killed")
    home.restore(TRAINER_AGENT)
    publish(lockstep.ensure_agent())


def test_a_value_that_the_program_does_not_take_is_refused_in_its_words(home):
    with pytest.raises(lockstep.BadDataError, match="trainer_agent: .*--"):
        lockstep.ensure_agent(threads="many")


def test_an_unknown_keyword_is_refused_with_the_nearest(home):
    refused = r"ensure_agent\(\) got an unexpected keyword argument 'retain_byte'. Did you mean 'retain_bytes'\?"
    with pytest.raises(TypeError, match=refused):
        lockstep.ensure_agent(retain_byte=1)
    with pytest.raises(TypeError, match=r"ensure_receiver\(\) .*'end_with_owners'. Did you mean 'end_with_owner'\?"):
        lockstep.ensure_receiver("unix:/nowhere.sock", MODEL, end_with_owners=True)


@pytest.mark.parametrize("name", ["", "a/b", "..", "n" * 65, 7])
def test_a_name_that_is_no_files_is_refused(home, name):
    with pytest.raises(lockstep.BadDataError, match="name is"):
        lockstep.ensure_agent(name=name)


def open_to_others(path: Path) -> None:
    path.mkdir()
    path.chmod(0o755)


def another_users(path: Path) -> None:
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)


def a_link(path: Path) -> None:
    path.with_name("elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.with_name("elsewhere"))


@pytest.mark.parametrize(
    "make, problem",
    [
        (open_to_others, "is open to other users"),
        pytest.param(
            another_users,
            "belongs to user 12345",
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory away"),
        ),
        (a_link, "is no directory, or a link"),
        (Path.touch, "is no directory, or a link"),
    ],
)
@pytest.mark.parametrize("below", ["", "agent"])
def test_a_runtime_directory_that_others_could_use_is_refused(home, make, problem, below):
    if below:
        home.runtime.mkdir(mode=0o700)
    make(home.runtime / below)
    with pytest.raises(lockstep.PermissionDeniedError, match=problem):
        lockstep.ensure_agent()


def test_a_receiver_pulls_from_an_agent_over_tcp_and_its_bytes_are_equal(home):
    agent = lockstep.ensure_agent(end_with_owner=True, listen="127.0.0.1:0")
    receiver = lockstep.ensure_receiver(agent.grpc, MODEL, end_with_owner=True)
    assert lockstep.ensure_receiver(agent.grpc, [MODEL], end_with_owner=True) == receiver
    model = ToyModel(blocks=4)
    file = Path(receiver.current(MODEL), "model.safetensors")
    with lockstep.Publisher.in_place(model.tensors, model=MODEL, socket=agent.socket) as publisher:
        for version in (1, 2, 3):
            publisher.publish(version=version, tensors=model.step(), label=f"step {version}")
            publisher.wait_served(f"step {version}", receivers=[receiver.name], timeout=60)
            assert differing_tensor(file, model.tensors) is None
    assert lockstep.published(receiver.replica(MODEL)).version == 3


def test_a_receiver_for_an_engine_in_place_has_its_socket(home):
    receiver = lockstep.ensure_receiver("unix:/nowhere", MODEL, engine_load="in-place", root=home.programs / "root")
    assert listener(receiver.engine_socket) == receiver.pid
    assert receiver.root == str(home.programs / "root")
