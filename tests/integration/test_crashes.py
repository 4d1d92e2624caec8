"""Processes that are killed or asked to stop, at any moment."""

import random
import resource
import signal
import threading
import time

import pytest
from harness import wait_until
from replicas import BLOCK, ToyModel, data_hash, differing_tensor, tensors_hash

SEGMENTS = pytest.mark.parametrize("segments", ["tmpfs", "memfd"])


def restart_soon(agent) -> threading.Thread:
    """Kills the agent and starts it again from another thread, while the caller's publisher waits in a call."""
    agent.kill()
    thread = threading.Thread(target=lambda: (time.sleep(0.3), agent.start()))
    thread.start()
    return thread


def modes(syncs) -> "list[str]":
    return [sync["mode"] for sync in syncs if not sync.get("error")]


@SEGMENTS
def test_an_agent_killed_between_versions_goes_on_and_no_receiver_needs_a_full_pull(cluster, segments):
    model = ToyModel()
    agent = cluster.agent(segments=segments)
    receivers = [cluster.receiver(agent), cluster.receiver(agent)]
    with receivers[0].recorded_syncs() as first, receivers[1].recorded_syncs() as second:
        with agent.publisher(model.tensors) as publisher:
            run = publisher.run
            for version in range(1, 7):
                if version == 4:
                    restarting = restart_soon(agent)
                publisher.publish(version=version, tensors=model.step())
                for receiver in receivers:
                    receiver.wait_for(model.tensors)
            restarting.join()
            assert publisher.run == run
    for syncs in (first, second):
        assert modes(syncs)[0] == "full"
        assert set(modes(syncs)[1:]) <= {"delta", "chain", "up_to_date"}, modes(syncs)
    assert receivers[0].model_status()["held"] == {"run": run, "version": 6}


@SEGMENTS
@pytest.mark.parametrize("moment", ["after-begin", "half-written", "before-commit"])
def test_an_agent_killed_while_a_version_is_written_gets_that_version(cluster, segments, moment):
    model = ToyModel()
    names = list(model.tensors)
    agent = cluster.agent(segments=segments)
    receiver = cluster.receiver(agent)
    with receiver.recorded_syncs() as syncs, agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, receiver)
        model.step()
        publisher.begin(2)
        written = {"after-begin": 0, "half-written": len(names) // 2, "before-commit": len(names)}[moment]
        for name in names[:written]:
            publisher.write(name, model.tensors[name])
        restarting = restart_soon(agent)
        for name in names[written:]:
            publisher.write(name, model.tensors[name])
        publisher.commit()
        restarting.join()
        receiver.wait_for(model.tensors)
        model.reach(publisher, 3, receiver)
    assert modes(syncs)[0] == "full" and "full" not in modes(syncs)[1:]


class SteadyPublisher(threading.Thread):
    """Publishes versions without rest from a thread, and remembers the hash of each. `paused` stands still."""

    def __init__(self, publisher, model: ToyModel) -> None:
        super().__init__()
        self.publisher = publisher
        self.model = model
        self.version = 0
        self.hashes: "set[str]" = set()
        self.paused = threading.Lock()
        self._stopping = False

    def run(self) -> None:
        while not self._stopping:
            with self.paused:
                self.version += 1
                tensors = self.model.step()
                self.hashes.add(tensors_hash(tensors))
                self.publisher.publish(version=self.version, tensors=tensors)
            time.sleep(0.01)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exception):
        self._stopping = True
        self.join()


def test_a_receiver_killed_at_any_moment_always_leaves_and_regains_a_whole_version(cluster):
    model = ToyModel(blocks=12)
    randomness = random.Random(11)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher, SteadyPublisher(publisher, model) as steady:
        wait_until(receiver.file().exists, "a first version is published")
        for round_number in range(20):
            time.sleep(randomness.uniform(0, 0.15))
            receiver.kill()
            assert data_hash(receiver.file()) in steady.hashes, (
                f"round {round_number}: a version that was not published"
            )
            receiver.start()
            with steady.paused:
                receiver.wait_for(model.tensors)


def test_receivers_go_on_with_deltas_when_agent_and_receiver_were_killed_at_once(cluster):
    model = ToyModel()
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, receiver)
        agent.kill()
        receiver.kill()
        receiver.start()
        agent.start()
        with receiver.recorded_syncs() as syncs:
            model.reach(publisher, 2, receiver)
    assert set(modes(syncs)) <= {"delta", "up_to_date"}


def test_an_agent_that_lost_its_trainer_too_serves_what_it_had_or_says_that_it_has_nothing(cluster):
    model = ToyModel(blocks=8)
    agent = cluster.agent()
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        agent.kill()
    agent.start()
    late = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, late)


def test_segments_of_dead_runs_are_removed(cluster):
    model = ToyModel(blocks=8)
    agent = cluster.agent()
    image_bytes = 8 * BLOCK
    for _ in range(4):
        with agent.publisher(model.tensors) as publisher:
            publisher.publish(version=1, tensors=model.step())
            agent.kill()
        agent.start()
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        held = sum(file.stat().st_size for file in agent.segment_dir.rglob("*") if file.is_file())
    assert held < 3 * image_bytes, f"{held} bytes of segments for two slots of {image_bytes}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_both_daemons_drain_and_end_with_0_when_told_to_stop(cluster, number):
    model = ToyModel(blocks=4)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        model.reach(publisher, 1, receiver)
        for daemon in (receiver, agent):
            daemon.signal(number)
            assert daemon.process.wait(60) == 0, daemon.name
    assert differing_tensor(receiver.file(), model.tensors) is None


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_both_daemons_log_a_signal_that_is_not_for_them_and_go_on(cluster, name):
    """Slurm and PyTorch Lightning send their requeue signals to every process of a step."""
    agent = cluster.agent()
    for daemon in (agent, cluster.receiver(agent)):
        daemon.signal(signal.Signals[name])
        line = f'"signal_ignored","signal":"{name}"'
        wait_until(lambda log=daemon.log, line=line: line in log(), f"{daemon.name} logs it")
        assert daemon.running() and daemon.answers()


def test_a_receiver_beyond_its_limit_of_a_files_size_says_so_and_goes_on(cluster):
    model = ToyModel(blocks=8)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    before = resource.prlimit(receiver.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(receiver.process.pid, resource.RLIMIT_FSIZE, (BLOCK, before[1]))
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        wait_until(lambda: "File too large" in receiver.model_status()["last_error"], "the receiver says so")
        resource.prlimit(receiver.process.pid, resource.RLIMIT_FSIZE, before)
        receiver.wait_for(model.tensors)


def test_both_daemons_drain_in_the_midst_of_their_work(cluster):
    model = ToyModel(blocks=40)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors, reconnect_timeout=0.3) as publisher:
        for version in range(1, 4):
            publisher.publish(version=version, tensors=model.step(density=0.5))
        assert agent.stop() == 0
        assert receiver.stop() == 0
    if receiver.file().exists():
        data_hash(receiver.file())
