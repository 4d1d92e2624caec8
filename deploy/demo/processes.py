"""The demo's processes: an agent, a trainer and the receivers, each with its command line and what it prints."""

import json
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from failure import EX_UNAVAILABLE, DemoFailed

MODEL = "actor"


def flags(**values):
    """Of a command line: socket="x" is --socket x, and lane_listen is --lane-listen."""
    return [word for name, value in values.items() for word in ("--" + name.replace("_", "-"), value)]


class Binaries:
    TARGETS = (
        "//trainer_agent/agent:trainer_agent",
        "//raas_receiver/receiver:raas_receiver",
        "//ctl:lockstepctl",
        "//export_plugin:liblockstep.so",
    )

    def __init__(self, root):
        paths = [root / "bazel-bin" / target.lstrip("/").replace(":", "/") for target in self.TARGETS]
        self.agent, self.receiver, self.ctl, _ = paths
        self._paths = paths

    def check(self):
        for path in self._paths:
            if not path.exists():
                raise DemoFailed(EX_UNAVAILABLE, f"{path} is not there: run deploy/demo.sh without --no-build")


class Daemon:
    """A process that listens, and names its address in a file as soon as it does. It may be killed and started again."""

    def __init__(self, workspace, name):
        self._workspace = workspace
        self._name = name
        self._address_file = workspace.path / f"{name}.addresses.json"
        self.address = None
        self.process = None

    def _start(self, command, timeout_s):
        self._address_file.unlink(missing_ok=True)  # that of a daemon that was killed
        self.process = self._workspace.start(self._name, [*command, "--address-file", self._address_file])
        self._workspace.wait_until(
            self._address_file.exists, timeout_s, [self.process], lambda: f"{self._name} does not listen"
        )
        self.address = json.loads(self._address_file.read_text())["grpc"]

    def kill(self):
        self._workspace.expect_end(self.process)
        self.process.kill()
        self.process = None


def reserved_port():
    """A bound socket that never listens: no other process gets its port, and a daemon (which sets SO_REUSEADDR, too) may
    listen there again and again."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 0))
    return one


class Agent(Daemon):
    def __init__(self, workspace, binaries):
        super().__init__(workspace, "agent")
        self._port = reserved_port()  # receivers know it: a new agent listens there, too
        self.address = "127.0.0.1:%d" % self._port.getsockname()[1]
        self.socket = workspace.path / "export.sock"
        segments = workspace.path / "segments"
        self._command = [
            binaries.agent,
            *flags(socket=self.socket, listen=self.address, lane_listen="127.0.0.1:0", segment_dir=segments),
        ]

    def start(self, timeout_s):
        self._start(self._command, timeout_s)


@dataclass(frozen=True)
class Published:
    """A line of trainer.py: one version."""

    version: int
    changed_elements: int
    density: float
    step_ms: float
    blocked_ms: float
    sha256: str | None


class Trainer:
    def __init__(self, workspace, training, steps, agent):
        self._workspace = workspace
        self.versions = []
        program = [sys.executable, Path(__file__).with_name("trainer.py")]
        command = [*program, *training, *flags(socket=agent.socket, model=MODEL, steps=steps)]
        self.process = workspace.start("trainer", command, on_line=self._on_line, has_stdin=True)

    def _on_line(self, line):
        fields = json.loads(line)
        version = Published(**{name: fields.get(name) for name in Published.__annotations__})
        self._workspace.update(lambda: self.versions.append(version))

    @property
    def newest(self):
        return self.versions[-1].version if self.versions else 0

    def step(self):
        self.process.send_line()

    def wait_for(self, version, timeout_s):
        self._workspace.wait_until(
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
    pause_ms: float
    error: str


def parse_sync(receiver, line):
    fields = json.loads(line)
    return Sync(
        receiver=receiver,
        version=fields["to"]["version"],
        mode=fields["mode"],
        changed_elements=fields["changed_elements"],
        payload_bytes=fields["payload_bytes"],
        publish_to_commit_ms=fields["publish_to_commit_us"] / 1000,
        verified=fields["verified"],
        pause_ms=fields["pause_us"] / 1000,
        error=fields["error"],
    )


class Receiver(Daemon):
    """One raas_receiver, and the `lockstepctl watch` that shows its syncs. It may be killed and start again on what it
    left. `options` are more of its command line."""

    def __init__(self, workspace, binaries, letter, agent_address, **options):
        super().__init__(workspace, f"receiver-{letter}")
        self.letter = letter
        self.syncs = []
        self.failures = []
        self._binaries = binaries
        self._watch = None
        root = workspace.path / f"replicas-{letter}"
        self.published_file = root / MODEL / "current" / "model.safetensors"
        self._command = [
            binaries.receiver,
            *flags(name=letter, source=agent_address, model=MODEL, root=root, listen="127.0.0.1:0"),
            *flags(control_socket=workspace.path / f"control-{letter}.sock", **options),
        ]

    @property
    def alive(self):
        return self.process is not None

    @property
    def version(self):
        return self.syncs[-1].version if self.syncs else 0

    def standing(self):
        """For the message when it is late."""
        error = f", its last sync failed: {self.failures[-1].error}" if self.failures else ""
        return f"it holds {self.version or 'nothing'}{error}"

    def start(self, timeout_s):
        self._start(self._command, timeout_s)
        watch = [self._binaries.ctl, "--receiver", self.address, "--json", "watch"]
        self._watch = self._workspace.start(f"watch-{self.letter}", watch, on_line=self._on_line)

    def kill(self):
        self._workspace.expect_end(self._watch)
        super().kill()
        self._watch.kill()

    def _on_line(self, line):
        sync = parse_sync(self.letter, line)
        known = self.failures if sync.error else self.syncs
        self._workspace.update(lambda: known.append(sync))
