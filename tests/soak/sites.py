"""The parts of a soak: two sites, each a trainer, its agent and the receivers that follow it, with their engines.

The far site's receivers reach their agent by TLS over links that break; the near one's are on its host: a unix socket,
and the agent's memory. A Place is where a receiver lives: its root, engine and links stay, its processes come and go.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from checker import Tail
from credentials import Ca
from harness import MODEL, Agent, Cluster, Daemon, wait_until
from links import Link
from ports import ReservedPort
from safetensors.numpy import save_file
from trainer import Model

HERE = Path(__file__).resolve().parent
ENGINES = {"far": ("none", "hook", "sglang", "vllm", "none"), "near": ("in-place", "hook", "none")}
EVERY_S = 6  # ten versions a minute
KEPT_BYTES = 4 << 20
# Short, so that a hang is noticed within a soak; heaps small, so that what grows is seen.
LOGS = {"log_level": "debug", "log_format": "json"}
RECEIVER = {"threads": 1, "lanes": 2, "keep_delta_bytes": KEPT_BYTES, "drain_timeout": "5s", **LOGS}
WITH_ENGINE = {"engine_timeout": "2s", "engine_load_timeout": "3s", "engine_attempts": 2}
AGENT = {"retain_bytes": 2 * KEPT_BYTES, **LOGS}


def disk(cluster: Cluster, name: str, megabytes: int) -> "tuple[Path, bool]":
    """A directory, and whether it is a file system of its own, which can be filled."""
    try:
        return cluster.small_tmpfs(name, megabytes), True
    except pytest.skip.Exception:
        return cluster.directory / name, False


class Engine(Daemon):
    """The stand-in of one place; `served` is the newest version that it was given since it has weights."""

    def __init__(self, directory: Path, kind: str, megabytes: int) -> None:
        self.kind = kind
        directory.mkdir()
        self.given, self.fault_file = directory / "given", directory / "fault"
        self.given.touch()
        self.tail = Tail(self.given)
        self.served = 0
        self.port = ReservedPort()
        self.socket = directory / "engine.sock"
        command = ["in-place", self.given, self.socket, megabytes]
        if self.over_http:  # what it starts with: tensors of these names
            save_file(dict(Model(0, megabytes).tensors), directory / "model.safetensors")
            command = ["http", self.given, self.kind, self.port.number, directory]
        super().__init__(kind, [sys.executable, HERE / "engine.py", *command], directory / "engine.log")

    @property
    def over_http(self) -> bool:
        return self.kind in ("sglang", "vllm")

    def options(self) -> "dict[str, object]":
        if self.kind == "hook":
            hook = [sys.executable, HERE / "engine.py", "hook", self.given, self.fault_file]
            return {**WITH_ENGINE, "engine": "hook:" + " ".join(map(str, hook))}
        if self.kind == "in-place":
            return {**WITH_ENGINE, "engine_load": "in-place", "engine_socket": self.socket}
        return {**WITH_ENGINE, "engine": f"{self.kind}:http://{self.port.address}"}

    def start(self) -> None:
        if self.kind != "hook":  # which the receiver starts
            super().start()

    def killed(self):
        """Answers what starts it again."""
        self.kill()
        with self.given.open("a") as given:
            given.write('{"version": 0}\n')
        return self.start

    def look(self) -> None:
        for entry in self.tail.entries():
            version = entry.get("version", self.served)
            self.served = max(self.served, version) if version else 0


class Place:
    """Where a receiver lives."""

    def __init__(self, site: "Site", name: str, kind: str, number: int) -> None:
        self.site, self.name, self.places = site, name, [self]
        cluster = site.cluster
        self.root, self.has_disk = disk(cluster, f"{name}-root", 5 * site.megabytes)
        self.engine = None if kind == "none" else Engine(cluster.directory / f"{name}-engine", kind, site.megabytes)
        self.links: "dict[str, Link]" = {}
        agent, options = f"unix:{site.agent.addresses['control']}", {"listen": ""}
        if site.ca:
            # Each receiver calls its agent by a host of its own, which the agent names for lanes, too.
            host = f"127.0.0.{10 + number}"
            lanes = Link(site.lanes.address, host, site.lanes.number)
            self.links = {"control": Link(site.agent.address, host), "lanes": lanes}
            agent = self.links["control"].address
            options = {**site.ca.daemon(name), "tls_server_name": "spiffe://test/agent"}
        if self.engine:
            options |= self.engine.options()
            cluster.daemons.append(self.engine)
            self.engine.start()
        self.receiver = cluster.receiver(agent, name=name, start=False, root=self.root, **RECEIVER, **options)
        self.shown = 0
        self.fault = ""  # what is wrong with it now, or being got over
        self.calm_since = 0.0

    @property
    def current(self) -> Path:
        return self.root / MODEL / "current"

    @property
    def has(self) -> int:
        """The newest version that has come all the way."""
        return min(self.shown, self.engine.served) if self.engine else self.shown

    def for_checker(self) -> "dict[str, str]":
        given = self.engine.given if self.engine else "/dev/null"
        return {"name": self.name, "root": str(self.root / MODEL), "truth": str(self.site.truth), "given": str(given)}

    def look(self) -> None:
        try:
            self.shown = int(os.readlink(self.current)[1:].partition("-")[0])
        except OSError:
            self.shown = 0
        if self.engine:
            self.engine.look()


class Site:
    """A trainer, its agent, and the places of its receivers."""

    def __init__(self, cluster: Cluster, name: str, seed: int, megabytes: int, engines: "tuple[str, ...]") -> None:
        self.cluster, self.name, self.seed, self.megabytes = cluster, name, seed, megabytes
        self.directory = cluster.directory / name
        self.directory.mkdir()
        self.ca = Ca(self.directory / "ca") if name == "far" else None
        self.lanes = ReservedPort()
        self.segments, self.has_disk = disk(cluster, f"{name}-segments", 5 * megabytes)
        options = {**AGENT, "segment_dir": self.segments / "segments", "lane_listen": self.lanes.address}
        if self.ca:
            self.ca.allow(("agent", "receiver"), ("far-*", "receiver"))
            options |= self.ca.daemon("agent")
        else:
            options["local_socket"] = self.directory / "pull.sock"
        self.agent = Agent(self.directory, options)
        self.agent.name = f"{name}'s agent"
        cluster.daemons.append(self.agent)
        self.agent.start()
        self.places = [Place(self, f"{name}-{number}", kind, number) for number, kind in enumerate(engines)]
        self.truth, self.published = self.directory / "truth", Tail(self.directory / "published")
        self.versions: "dict[int, float]" = {}  # those published, and when that began
        self.run: "str | None" = None

    @property
    def newest(self) -> int:
        return max(self.versions, default=0)

    def look(self) -> None:
        for entry in self.published.entries():
            self.versions[entry["version"]] = entry["begun"]
            self.run = entry["run"]

    def start_trainer(self, same_run: bool = True) -> None:
        tried = Tail(self.truth).entries()
        options = {
            "socket": str(self.agent.socket),
            "truth": str(self.truth),
            "published": str(self.published.path),
            "seed": self.seed,
            "megabytes": self.megabytes,
            "every_s": EVERY_S,
            "version": 1 + max((entry["version"] for entry in tried), default=0),
            "run": self.run if same_run else None,
        }
        command = [sys.executable, HERE / "trainer.py", json.dumps(options)]
        self.trainer = Daemon("trainer", command, self.directory / "trainer.log")
        self.cluster.daemons.append(self.trainer)
        self.trainer.start()

    def killed_trainer(self, same_run: bool):
        """Answers what starts another."""
        self.trainer.kill()
        return lambda: self.start_trainer(same_run)

    def start(self) -> None:
        """With a first version everywhere."""
        self.start_trainer()
        for place in self.places:
            place.receiver.start()

        def there() -> bool:
            self.look()
            for place in self.places:
                place.look()
            return self.newest > 0 and all(place.has > 0 for place in self.places)

        wait_until(there, f"a first version is everywhere at the {self.name} site", 60)

    def close(self) -> None:
        for link in (link for place in self.places for link in place.links.values()):
            link.close()
