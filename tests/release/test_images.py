"""The images of both daemons, as deploy/images describes them and deploy/k8s/base runs them, without Docker.

Each daemon is process 1 of its own namespaces: a read-only root file system, no shell, no other user than the image's, the volumes
of its pod and nothing else that is writable. The two share a network, as the hosts of a cluster do.
"""

import errno
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from harness import LOCKSTEPCTL, RAAS_RECEIVER, ROOT, TRAINER_AGENT, Daemon, wait_until
from replicas import ToyModel, differing_tensor

import lockstep

IMAGES = ROOT / "deploy/images"
PODS = ROOT / "deploy/k8s/base"
NETWORK = "ip link set lo up; echo ready; exec cat"
# Has the root file system $0 with volumes, PLACE=DIRECTORY each up to "--", and becomes the command behind that.
CONTAINER = """
set -e
mount --bind "$0" "$0"
mount -t proc proc "$0/proc"
mount --bind /sys "$0/sys"  # glibc looks there for the CPUs; without it malloc sets errno, which gRPC takes for connect's
for device in null urandom; do mount --bind "/dev/$device" "$0/dev/$device"; done
while [ "$1" != -- ]; do mount --bind "${1#*=}" "$0${1%%=*}"; shift; done
mount -o remount,bind,ro "$0"
shift; exec "$@"
"""


def assembled(program: str, context: Path, root: Path) -> dict:
    command = [IMAGES / "assemble.py", IMAGES / f"{program}.Dockerfile", context, root, "VERSION=1.2.3"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """What a build of the images is given."""
    directory = tmp_path_factory.mktemp("context") / "bundle"
    subprocess.run([ROOT / "deploy/bundle", directory, TRAINER_AGENT, RAAS_RECEIVER, LOCKSTEPCTL], check=True)
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", directory / "certificates.pem")
    return directory


@pytest.fixture
def network(cluster, place):
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", NETWORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "ready\n"
    yield holder.pid
    for daemon in cluster.daemons:
        if daemon.running():
            daemon.kill()
    holder.communicate()


class Container(Daemon):
    """A sidecar of a pod of deploy/k8s/base, with a directory for each of its volumes."""

    def __init__(self, cluster, place: Path, network: int, context: Path, program: str, manifest: str) -> None:
        [pod] = yaml.safe_load_all((PODS / manifest).read_text())
        [self.sidecar] = pod["spec"]["template"]["spec"]["initContainers"]
        self.root = place / program
        self.image = assembled(program, context, self.root)
        self.volumes = {}
        for mount in self.sidecar["volumeMounts"]:
            volume = place / "volumes" / mount["name"]
            (self.root / mount["mountPath"][1:]).mkdir(parents=True, exist_ok=True)
            volume.mkdir(parents=True)
            os.chown(volume, *map(int, self.image["User"].split(":")))
            self.volumes[mount["mountPath"]] = volume
        shutil.copy(PODS / f"{program}.toml", self.volumes["/etc/lockstep"])
        # What a runtime of containers adds.
        for directory in ("proc", "sys", "dev"):
            (self.root / directory).mkdir()
        for device in ("null", "urandom"):
            (self.root / "dev" / device).touch()
        (self.root / "etc/hosts").write_text("127.0.0.1 trainer-0.trainer\n")

        super().__init__(
            program, [*self.image["Entrypoint"], *self.sidecar["args"]], cluster.directory / f"{program}.log"
        )
        enter = ["nsenter", f"--target={network}", "--net", "unshare", "--mount", "--pid", "--fork", "--kill-child"]
        volumes = [f"{inside}={volume}" for inside, volume in self.volumes.items()]
        become = ["env", "-i", *self.image["Env"], "setpriv", "--no-new-privs", "/usr/sbin/chroot"]
        user = f"--userspec={self.image['User']}"
        self.prefix = [*enter, "sh", "-c", CONTAINER, str(self.root), *volumes, "--", *become, user, str(self.root)]
        cluster.daemons.append(self)

    def start(self) -> None:
        super().start()
        ours = f"/proc/{self.process.pid}/task/{self.process.pid}/children"

        def begun() -> bool:
            assert self.running(), self.log_tail()
            return (
                bool(Path(ours).read_text())
                and (Path("/proc") / str(self.pid()) / "comm").read_text() == f"{self.name}\n"
            )

        wait_until(begun, f"{self.name} has begun")

    def pid(self) -> int:
        """Of the daemon, in this system's numbers."""
        [child] = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(child)

    def view(self) -> Path:
        return Path(f"/proc/{self.pid()}/root")

    def run(self, *command: str) -> int:
        """The exit status of a command that the runtime starts in the container, without a shell."""
        user, group = self.image["User"].split(":")
        enter = ["nsenter", f"--target={self.pid()}", "--mount", "--net", "--pid", "--root", "--wd"]
        environment = dict(entry.split("=", 1) for entry in self.image["Env"])
        return subprocess.run([*enter, f"--setuid={user}", f"--setgid={group}", *command], env=environment).returncode

    def stop(self, timeout_s: float = 60) -> int:
        os.kill(self.pid(), signal.SIGTERM)
        return self.process.wait(timeout_s)


def test_a_receiver_in_one_image_follows_an_agent_in_the_other(cluster, place, network, context):
    model = ToyModel()
    agent = Container(cluster, place, network, context, "trainer_agent", "trainer.yaml")
    receiver = Container(cluster, place, network, context, "raas_receiver", "inference.yaml")
    for container in (agent, receiver):
        assert container.image["Labels"]["org.opencontainers.image.title"] == container.sidecar["image"]
        container.start()
        check = container.image["Healthcheck"]["Test"][1:]
        wait_until(lambda: container.running() and container.run(*check) == 0, f"{container.name} is healthy")
        status = dict(line.split(":", 1) for line in (container.view() / "proc/1/status").read_text().splitlines())
        assert status["Uid"].split() == [container.image["User"].partition(":")[0]] * 4
        assert (int(status["CapEff"], 16), int(status["NoNewPrivs"])) == (0, 1)
    probe, readiness = (receiver.sidecar[name]["exec"]["command"] for name in ("livenessProbe", "readinessProbe"))
    assert receiver.run(*probe) == 0
    ready = ["lockstepctl", "--agent", "127.0.0.1:7702", "--quiet", "health", "trainer-agent-readiness"]
    assert agent.run(*ready) != 0

    replica = receiver.volumes["/replicas"] / "lockstep/actor/current/model.safetensors"
    socket = agent.volumes["/run/trainer-agent"] / "export.sock"
    with lockstep.Publisher.in_place(model.tensors, model="actor", socket=socket) as publisher:
        for version in (1, 2):
            publisher.publish(version=version, tensors=model.step())
            synced = lambda: replica.exists() and differing_tensor(replica, model.tensors) is None  # noqa: E731
            wait_until(synced, f"version {version} is in the other image")
    assert agent.run(*ready) == 0
    assert receiver.run(*readiness) != 0  # no engine serves a version

    for container in (agent, receiver):
        for directory in ("", "etc", "lib", "run", "usr/bin"):
            with pytest.raises(OSError) as failed:
                (container.view() / directory / "written").write_text("")
            assert failed.value.errno == errno.EROFS
        assert not {path.name for path in container.root.rglob("*")} & {"sh", "bash", "dash", "busybox"}
        assert container.stop() == 0


@pytest.mark.parametrize(
    "line, refusal",
    [
        ("RUN apt-get update", "does not know RUN"),
        ("FROM debian", "begins with scratch"),
        ("USER root", "not root's"),
        ("USER 0:0", "not root's"),
        ("ENTRYPOINT trainer_agent", "has no shell"),
    ],
)
def test_a_dockerfile_that_says_more_is_refused(line, refusal, tmp_path):
    (tmp_path / "Dockerfile").write_text(f"{'' if 'FROM' in line else 'FROM scratch'}\n{line}\n")
    command = [IMAGES / "assemble.py", tmp_path / "Dockerfile", tmp_path, tmp_path / "root"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 1 and refusal in refused.stderr
