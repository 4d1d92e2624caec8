"""The cast: an agent, a trainer and the receivers, each with its command line and what it says."""

import json
import socket
from dataclasses import dataclass, field

from failure import EX_UNAVAILABLE, DemoFailed

MODEL = "actor"


class Binaries:
    TARGETS = (
        "//trainer_agent/agent:trainer_agent",
        "//raas_receiver/receiver:raas_receiver",
        "//ctl:lockstepctl",
        "//deploy/demo_trainer:demo_trainer",
    )

    def __init__(self, root):
        paths = [root / "bazel-bin" / target.lstrip("/").replace(":", "/") for target in self.TARGETS]
        self.agent, self.receiver, self.ctl, self.trainer = paths
        self._paths = paths

    def check(self):
        for path in self._paths:
            if not path.exists():
                raise DemoFailed(EX_UNAVAILABLE, f"{path} is not there: run deploy/demo.sh without --no-build")


def free_addresses(count):
    """Addresses on the loopback that are free now; held all at once so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return ["127.0.0.1:%d" % one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def accepts_connections(address):
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=0.2).close()
        return True
    except OSError:
        return False


class Agent:
    def __init__(self, stage, binaries):
        self._stage = stage
        self._binaries = binaries
        self.socket = stage.path / "export.sock"
        self.address, self._lane_address = free_addresses(2)
        self.process = None

    def start(self, timeout_s):
        self.process = self._stage.start(
            "agent",
            [
                self._binaries.agent,
                "--socket",
                self.socket,
                "--listen",
                self.address,
                "--lane-listen",
                self._lane_address,
                "--segment-dir",
                self._stage.path / "segments",
            ],
        )
        self._stage.wait_until(
            lambda: accepts_connections(self.address),
            timeout_s,
            [self.process],
            lambda: f"the agent does not listen on {self.address}",
        )

    def kill(self):
        self._stage.retire(self.process)
        self.process.kill()


@dataclass(frozen=True)
class Published:
    """A line of demo_trainer: one version."""

    version: int
    changed_elements: int
    density: float
    step_ms: float
    blocked_ms: float
    sha256: str | None


class Trainer:
    def __init__(self, stage, binaries, model, steps, agent):
        self._stage = stage
        self.versions = []
        self.process = stage.start(
            "trainer",
            [
                binaries.trainer,
                *model.source_flags,
                "--socket",
                agent.socket,
                "--model",
                MODEL,
                "--steps",
                steps,
                "--paced",
            ],
            on_line=self._hear,
            has_stdin=True,
        )

    def _hear(self, line):
        said = json.loads(line)
        version = Published(
            said["version"],
            said["changed_elements"],
            said["density"],
            said["step_ms"],
            said["blocked_ms"],
            said.get("sha256"),
        )
        self._stage.tell(lambda: self.versions.append(version))

    @property
    def newest(self):
        return self.versions[-1].version if self.versions else 0

    def step(self):
        self.process.send_line()

    def wait_for(self, version, timeout_s):
        self._stage.wait_until(
            lambda: self.newest >= version,
            timeout_s,
            [self.process],
            lambda: f"the trainer has not published version {version}",
        )
        return self.versions[version - 1]


@dataclass(frozen=True)
class Sync:
    """A SyncRecord of `lockstepctl watch`."""

    receiver: str
    version: int
    mode: str
    changed_elements: int
    payload_bytes: int
    publish_to_commit_ms: float
    verified: bool
    error: str


def parse_sync(receiver, line):
    said = json.loads(line)
    return Sync(
        receiver=receiver,
        version=said["to"]["version"],
        mode=said["mode"],
        changed_elements=said["changed_elements"],
        payload_bytes=said["payload_bytes"],
        publish_to_commit_ms=said["publish_to_commit_us"] / 1000,
        verified=said["verified"],
        error=said["error"],
    )


@dataclass
class Receiver:
    """One raas_receiver, and the `lockstepctl watch` that listens to it. It may die and start again on what it left."""

    stage: object
    binaries: Binaries
    name: str
    agent_address: str
    assets: object
    syncs: list = field(default_factory=list)
    failures: list = field(default_factory=list)

    def __post_init__(self):
        self.root = self.stage.path / f"replicas-{self.name}"
        (self.address,) = free_addresses(1)
        self.process = None
        self._watch = None

    @property
    def alive(self):
        return self.process is not None

    @property
    def version(self):
        return self.syncs[-1].version if self.syncs else 0

    @property
    def published_file(self):
        return self.root / MODEL / "current" / "model.safetensors"

    def standing(self):
        """For the message when it is late."""
        error = f", its last sync failed: {self.failures[-1].error}" if self.failures else ""
        return f"it holds {self.version or 'nothing'}{error}"

    def start(self, timeout_s):
        self.process = self.stage.start(
            f"receiver-{self.name}",
            [
                self.binaries.receiver,
                "--name",
                self.name,
                "--agent",
                self.agent_address,
                "--model",
                MODEL,
                "--root",
                self.root,
                "--listen",
                self.address,
                "--assets",
                self.assets,
            ],
        )
        self.stage.wait_until(
            lambda: accepts_connections(self.address),
            timeout_s,
            [self.process],
            lambda: f"receiver {self.name} does not listen on {self.address}",
        )
        self._watch = self.stage.start(
            f"watch-{self.name}", [self.binaries.ctl, "--receiver", self.address, "--json", "watch"], on_line=self._hear
        )

    def kill(self):
        for process in (self._watch, self.process):
            self.stage.retire(process)
        self.process.kill()
        self._watch.kill()
        self.process = self._watch = None

    def _hear(self, line):
        sync = parse_sync(self.name, line)
        known = self.failures if sync.error else self.syncs
        self.stage.tell(lambda: known.append(sync))
