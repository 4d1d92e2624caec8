"""Real daemons as processes, for tests: below one temporary directory, on ports of their own, and always ended.

cluster.agent() and cluster.receiver(agent) start a daemon and wait until it listens; keyword arguments are its flags.
The system chooses the ports. An agent that is started again keeps its gRPC port, for receivers know it.

A test compares what a replica's file holds with the trainer's own arrays; that is the judge of every claim, not what
the daemons say of themselves.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from ports import ReservedPort
from replicas import differing_tensor

import lockstep

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("LOCKSTEP_TEST_BIN", ROOT / "bazel-bin"))  # elsewhere: a copy, a sanitizer's build
TRAINER_AGENT = BIN / "trainer_agent/agent/trainer_agent"
RAAS_RECEIVER = BIN / "raas_receiver/receiver/raas_receiver"
LOCKSTEPCTL = BIN / "ctl/lockstepctl"

MODEL = "actor"
LOG_TAIL_LINES = 40


def wait_until(condition, what: str, timeout_s: float = 60, interval_s: float = 0.02):
    """The first true value of `condition()`; fails the test, naming `what`, when none comes in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
        time.sleep(interval_s)


def roomy_directory() -> str:
    """Memory where there is enough of it: containers often have a /dev/shm of 64 MiB. $LOCKSTEP_TEST_SHARED: a directory of
    /dev/shm, which its owner empties when a test could not."""
    shared = Path(os.environ.get("LOCKSTEP_TEST_SHARED", "/dev/shm"))
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free > 2 << 30 else tempfile.gettempdir()


def flags_of(options: "dict[str, object]") -> "list[str]":
    """{"lanes": 4, "follow": False, "print_config": None} as a command line; None makes a bare flag, a list several."""
    arguments = []
    for name, values in options.items():
        for value in values if isinstance(values, list) else [values]:
            arguments.append("--" + name.replace("_", "-"))
            if value is not None:
                arguments.append(str(value).lower() if isinstance(value, bool) else str(value))
    return arguments


class Daemon:
    """A process with its log in a file. `stop` and `kill` may be called at any time, also twice."""

    prefix: "list[str]" = []  # of its commands, lockstepctl's too: what puts them into a namespace, say

    def __init__(self, name: str, command: "list[object]", log: Path) -> None:
        self.name = name
        self.command = [str(argument) for argument in command]
        self.log_path = log
        self.process = None

    def start(self) -> None:
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *self.command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self, timeout_s: float = 60) -> int:
        """SIGTERM, and the exit status."""
        self.signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait()

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def log_tail(self) -> str:
        return "\n".join(self.log().splitlines()[-LOG_TAIL_LINES:])


class Served(Daemon):
    """A daemon that lockstepctl can talk to. Where it listens is known once it does."""

    role = ""  # "--agent" or "--receiver"
    address = ""
    credentials: "dict[str, object]" = {}  # lockstepctl's options of TLS

    def __init__(self, name: str, command: "list[object]", directory: Path) -> None:
        self.address_file = directory / "addresses.json"
        super().__init__(name, [*command, "--address-file", self.address_file], directory / "daemon.log")

    def ctl_command(self, *arguments: object) -> "list[str]":
        command = [*self.prefix, LOCKSTEPCTL, self.role, self.address, *flags_of(self.credentials), *arguments]
        return [str(part) for part in command]

    def ctl(self, *arguments: object, timeout_ms: int = 60_000) -> subprocess.CompletedProcess:
        command = self.ctl_command("--timeout", f"{timeout_ms}ms", *arguments)
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    def ask(self, *arguments: object) -> dict:
        """What lockstepctl --json prints. Fails the test when it does not succeed."""
        result = self.ctl("--json", *arguments)
        assert result.returncode == 0, f"lockstepctl {arguments}: {result.returncode}: {result.stderr}"
        return json.loads(result.stdout)

    def answers(self) -> bool:
        return self.ctl("--json", "status").returncode == 0

    def start(self) -> None:
        self.address_file.unlink(missing_ok=True)  # a killed daemon leaves it
        super().start()
        self.wait_until_listening()

    def wait_until_listening(self) -> None:
        def listens() -> bool:
            assert self.running(), f"{self.name} ended with {self.process.returncode}: {self.log_tail()}"
            return self.address_file.exists()

        wait_until(listens, f"{self.name} listens")
        self.addresses = json.loads(self.address_file.read_text())
        self.address = self.addresses.get("grpc") or f"unix:{self.addresses['control']}"

    def model_status(self, model: str = MODEL) -> dict:
        return next(entry for entry in self.ask("status")["models"] if entry["name"] == model)


class Agent(Served):
    role = "--agent"

    def __init__(self, directory: Path, options: "dict[str, object]") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._port = ReservedPort()
        self.address = self._port.address
        self.socket = directory / "export.sock"
        self.segment_dir = Path(str(options.pop("segment_dir", directory / "segments")))
        options = {
            "socket": self.socket,
            "listen": self.address,
            "lane_listen": "127.0.0.1:0",
            "local_socket": "none",  # lanes have the faults and the figures; test_local_pull.py is about the other path
            "segment_dir": self.segment_dir,
            "threads": 2,
            **options,
        }
        super().__init__("trainer_agent", [TRAINER_AGENT, *flags_of(options)], directory)

    def publisher(self, tensors, model: str = MODEL, **options) -> lockstep.Publisher:
        options.setdefault("reconnect_timeout", 20)
        options.setdefault("call_timeout", 30)
        return lockstep.Publisher.in_place(tensors, model=model, socket=self.socket, **options)

    def wait_for(self, version: int, model: str = MODEL) -> None:
        """Until it serves `version`, which publish() does not wait for."""
        wait_until(lambda: self.model_status(model)["newest_version"] == version, f"version {version} is served")


class Receiver(Served):
    role = "--receiver"

    def __init__(self, directory: Path, name: str, source, models, options: "dict[str, object]") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.root = Path(str(options.pop("root", directory / "root")))
        models = [part for model in models for part in ("--model", model)]
        options = {"source": source, "name": name, "root": self.root, "listen": "127.0.0.1:0", "threads": 2, **options}
        options.setdefault("control_socket", directory / "control.sock")
        options.setdefault("state_dir", directory / "state")
        super().__init__(name, [RAAS_RECEIVER, *models, *flags_of(options)], directory)

    def published(self, model: str = MODEL) -> Path:
        return self.root / model / "current"

    def file(self, model: str = MODEL) -> Path:
        adapter = self.published(model) / "adapter_model.safetensors"
        return adapter if adapter.exists() else self.published(model) / "model.safetensors"

    def wait_for(self, tensors, model: str = MODEL, timeout_s: float = 60) -> None:
        """Until the published file holds exactly `tensors`, bit for bit."""
        last = "nothing is published"

        def equal() -> bool:
            nonlocal last
            assert self.running(), f"{self.name} ended with {self.process.returncode}"
            if self.file(model).exists():
                last = differing_tensor(self.file(model), tensors)
            return last is None

        try:
            wait_until(equal, f"{self.name} publishes {model}", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; {last}") from None

    @contextlib.contextmanager
    def recorded_syncs(self):
        """A list that holds, after the block, one dict per sync of MODEL that happened inside it."""
        command = self.ctl_command("--json", "watch", MODEL)
        records: "list[dict]" = []
        already = 1 if self.model_status()["syncs"] else 0  # every new watcher is sent the newest sync before
        with tempfile.TemporaryFile("a+") as output:  # the watcher writes at the end, wherever this reads

            def printed() -> "list[dict]":
                output.seek(0)
                return [json.loads(line) for line in output if line.endswith("\n")]

            watcher = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
            try:
                if already:
                    wait_until(printed, "the newest sync is printed")
                else:
                    for _ in range(
                        3
                    ):  # each takes as long as the watcher takes to connect, however busy the machine is
                        self.model_status()
                yield records
                held = self.model_status()["held"]
                wait_until(lambda: printed()[already:] and printed()[-1]["to"] == held, "the last sync is printed")
            finally:
                watcher.kill()
                watcher.wait()
            records += printed()[already:]


class Cluster:
    """Every daemon of one test, below one directory in memory."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir=roomy_directory()))
        self.daemons: "list[Daemon]" = []
        self._cleanups = contextlib.ExitStack()

    def agent(self, start: bool = True, *, name: str = "agent", **options) -> Agent:
        return self._add(Agent(self.directory / name, options), start)

    def receiver(self, agent, *, name: "str | None" = None, models=(MODEL,), start: bool = True, **options) -> Receiver:
        name = name or f"receiver-{len(self.daemons)}"
        if isinstance(agent, list) and all(isinstance(each, Agent) for each in agent):  # each has a part
            agent = "+".join(each.address for each in agent)
        source = agent.address if isinstance(agent, Agent) else agent
        return self._add(Receiver(self.directory / name, name, source, models, options), start)

    def _add(self, daemon, start: bool):
        self.daemons.append(daemon)
        if start:
            daemon.start()
        return daemon

    def small_tmpfs(self, name: str, megabytes: int) -> Path:
        """A tmpfs that fills up soon. Skips the test where mounting is not allowed."""
        path = self.directory / name
        path.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0755", "lockstep-test", str(path)]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("mounting a tmpfs is not allowed here")
        self._cleanups.callback(subprocess.run, ["umount", "-l", str(path)], check=False)
        return path

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def close(self) -> None:
        for daemon in reversed(self.daemons):
            if daemon.running():
                daemon.kill()
        self._cleanups.close()
        shutil.rmtree(self.directory, ignore_errors=True)
