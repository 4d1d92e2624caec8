"""One receiver for all engines of a host: eight servers of two kinds, four written in place and four that load the
directory. What happens to four of them is nothing to the others."""

import time

import pytest
from conformance_server import ConformanceServer
from engine_ranks import Job, differences, fall_asleep, leave, paused_at_writes, refusal, start, wake
from harness import MODEL, wait_until
from ports import ReservedPort
from ranks import Ranks
from slicing import places
from tiny_trainer import Trainer

import lockstep

KIND = {"a": "sglang", "b": "vllm", "c": "sglang", "d": "vllm"}  # of the engines x-a to x-d
LATE_S = 2.0


class Host:
    """A trainer with its agent, eight servers, a rank in each of four, and their receiver."""

    def __init__(self, cluster, ranks: Ranks) -> None:
        self.ranks, self.socket = ranks, cluster.directory / "engine.sock"
        self.agent = cluster.agent()
        self.trainer = Trainer("llama", cluster.directory / "checkpoints", self.agent.socket, MODEL)
        self.checkpoints = {}
        self.publish(1)
        self.servers = {}
        self.ports = {f"{way}-{which}": ReservedPort() for way in ("place", "load") for which in KIND}
        for name in self.ports:
            self.start(name)
        self.receiver = cluster.receiver(
            self.agent,
            config=self.write_config(cluster.directory / "receiver.toml"),
            engine_socket=self.socket,
            engine_attempts=1,
            engine_timeout="10s",
            engine_late_after=f"{LATE_S:g}s",
        )
        for process, which in enumerate(KIND):
            self.attach(process, f"place-{which}")

    def write_config(self, path):
        tables = [
            f'[[engine]]\nname = "{name}"\nkind = "{KIND[name[-1]]}"\nurl = "http://{port.address}"\n'
            f'load = "{"in-place" if name.startswith("place") else "directory"}"\n'
            for name, port in self.ports.items()
        ]
        path.write_text("\n".join(tables))
        return path

    def start(self, name: str) -> None:
        self.servers[name] = ConformanceServer(KIND[name[-1]], self.checkpoints[1], self.ports[name].number)

    def attach(self, process: int, name: str) -> None:
        config = self.trainer.config
        job = Job(name, 0, 1, places(1)[0], config, self.socket, MODEL, server=self.servers[name].url)
        start(self.ranks, job, self.checkpoints[1], process)

    def publish(self, version: int) -> None:
        self.trainer.step()
        self.checkpoints[version] = self.trainer.publish(version)

    def serves(self, name: str, version: int) -> bool:
        state = self.servers[name].state()
        return not state["paused"] and not state["mixed"] and state["weight_version"].endswith(f"-{version}")

    def await_served(self, names: "list[str]", version: int) -> float:
        begun = time.monotonic()
        wait_until(lambda: all(self.serves(name, version) for name in names), f"{names} serve version {version}")
        return time.monotonic() - begun

    def close(self) -> None:
        self.trainer.close()
        for server in self.servers.values():
            server.close()


@pytest.fixture
def host(cluster):
    with Ranks(len(KIND)) as ranks:
        host = Host(cluster, ranks)
        yield host
        host.close()


def test_engines_that_hang_refuse_sleep_or_die_hold_up_no_others_and_catch_up_with_the_newest_version(host):
    every = list(host.servers)
    host.await_served(every, 1)
    host.publish(2)
    usual = host.await_served(every, 2)

    host.servers["load-a"].fault("/pause_generation", "hang", times=1000)
    host.servers["place-a"].fault("/pause_generation", "status", times=1000)  # it refuses
    host.ranks.call(fall_asleep, only=[1])  # of place-b
    host.servers["load-b"].close()  # it is dead
    well = ["load-c", "load-d", "place-c", "place-d"]
    took = []
    for version in range(3, 11):
        host.publish(version)
        took.append(host.await_served(well, version))
    # Until an engine is late what it reads is not written over; each later attempt at it costs the others no more.
    held_up = [seconds for seconds in took if seconds > usual + 1]
    assert len(held_up) <= 3 and max(took) < LATE_S + 10 + usual, (usual, took)
    status = host.receiver.model_status()
    assert int(status["served_version"]) < 10 and status["last_error"]
    table = {engine["name"]: engine for engine in status["engines"]}
    assert list(table) == every
    for name, engine in table.items():
        assert engine["kind"] == KIND[name[-1]] and engine["url"] == host.servers[name].url
        assert engine["in_place"] == name.startswith("place")
        if name in well:
            assert engine["state"] == "serving" and int(engine["served"]["version"]) == 10, engine
            assert not engine["late"] and not engine["last_error"] and int(engine["last_pause_us"]) > 0
        else:
            assert engine["late"] == (name != "place-b") and int(engine["served"]["version"]) < 10, engine
    assert table["place-b"]["state"] == "asleep"
    assert "failing" in {table[name]["state"] for name in table if name not in well}
    shown = host.receiver.ctl("status").stdout
    assert "place-a" in shown and "late" in shown
    health = host.receiver.ctl("health", f"raas-receiver-engine/{MODEL}/load-c")
    assert health.returncode == 0, health.stdout
    assert host.receiver.ctl("health", f"raas-receiver-engine/{MODEL}").returncode != 0
    publisher = host.trainer.exporter
    publisher.wait_served(version=10, engines=4, timeout=60)
    publisher.wait_served(version=10, receivers=[f"{host.receiver.name}/{name}" for name in well], timeout=60)
    with pytest.raises(lockstep.DeadlineError, match='its engine "load-b" serves '):
        publisher.wait_served(version=10, engines=5, timeout=0.1)

    for name in ("load-a", "place-a"):
        host.servers[name].faults.clear()
    host.ranks.call(wake, only=[1])
    host.start("load-b")
    host.await_served(every, 10)
    wait_until(lambda: int(host.receiver.model_status()["served_version"]) == 10, "the status has it")
    processes = list(range(len(KIND)))
    assert host.ranks.call(differences, 10, host.checkpoints[10], only=processes) == [[]] * len(processes)
    assert all(all(paused) for paused in host.ranks.call(paused_at_writes, only=processes))
    assert [server.violations for server in host.servers.values()] == [[]] * len(every)
    verified = host.receiver.ctl("verify", "--engines")
    assert verified.returncode == 0 and "compared, too: 4" in verified.stdout, verified.stdout + verified.stderr
    copies = {path.stat().st_ino for path in host.receiver.root.rglob("*.safetensors")}
    assert len(copies) == 2  # of the model, for eight engines
    assert "engine_rank_lost" not in host.receiver.log()  # one slept, and woke
    loads = [path for name in every[:4] for path in host.servers[name].paths() if "update_weights" in path]
    assert loads == []


def test_servers_that_are_not_configured_join_by_their_ranks_and_may_come_back_on_another_port(cluster):
    socket = cluster.directory / "engine.sock"
    agent = cluster.agent()
    trainer = Trainer("llama", cluster.directory / "checkpoints", agent.socket, MODEL)
    checkpoint = trainer.publish(1)
    with Ranks(3) as ranks, ReservedPort() as first, ReservedPort() as second, ReservedPort() as other:
        receiver = cluster.receiver(
            agent,
            engine_socket=socket,
            engine_attempts=1,
            allow_engines=[first.number, f"{second.number}-{second.number}"],
        )

        def join(process: int, name: str, port: int, user: str = "", group: int = 0) -> None:
            url = f"http://{user}127.0.0.1:{port}"
            of = trainer.config, socket, MODEL
            job = Job(name, 0, 1, places(1)[0], *of, server=url, incarnation="one", comes_by_itself=True, group=group)
            start(ranks, job, checkpoint, process)

        def table() -> dict:
            return {engine["name"]: engine for engine in receiver.model_status()["engines"]}

        try:
            with ConformanceServer("vllm", checkpoint, first.number) as server:
                join(0, "rollout", first.number)
                assert ranks.call(differences, 1, checkpoint, only=[0]) == [[]]
                wait_until(lambda: table()["rollout"]["state"] == "serving", "it serves")
                assert (table()["rollout"]["kind"], table()["rollout"]["url"]) == ("vllm", server.url)
                join(1, "elsewhere", other.number, user="admin:s3cr3t@")
                [reason] = ranks.call(refusal, only=[1])
                assert "is none of this receiver's, and not one of those that may come by themselves" in reason
                assert f"http://***@127.0.0.1:{other.number}" in reason
                ranks.call(leave, only=[1])
                join(1, "imposter", first.number)
                [reason] = ranks.call(refusal, only=[1])
                assert "its server is that of engine rollout" in reason
                ranks.call(leave, only=[1])
                join(1, "rollout", first.number, group=1)  # a replica of the same server
                assert ranks.call(differences, 1, checkpoint, only=[1]) == [[]]
                assert ranks.call(paused_at_writes, only=[0, 1]) == [[True], [True]]
                assert [name for name in table() if name != "default"] == ["rollout"]
                ranks.call(leave, only=[0, 1])
                wait_until(lambda: not receiver.model_status()["rank_groups"], "its ranks have gone")
                assert server.violations == []
            assert "rollout" in table()  # it is remembered
            with ConformanceServer("vllm", checkpoint, second.number) as server:
                join(2, "rollout", second.number)
                trainer.step()
                checkpoint = trainer.publish(2)
                assert ranks.call(differences, 2, checkpoint, only=[2]) == [[]]
                wait_until(lambda: table()["rollout"]["state"] == "serving", "it serves")
                assert table()["rollout"]["url"] == server.url
                assert int(receiver.model_status()["served_version"]) == 2
                assert server.violations == []
        finally:
            trainer.close()
