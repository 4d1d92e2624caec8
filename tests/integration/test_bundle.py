"""The wheel's programs and library on hosts that are not this one: other distributions, and environments that mean others."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import harness
import pytest
from harness import ROOT, wait_until
from replicas import ToyModel

pytestmark = pytest.mark.nightly
# Debian 11, with glibc 2.31, and 13, with 2.41; what is installed there beside a minimum.
RELEASES = {"bullseye": [], "trixie": ["--include=python3"]}
DISTRIBUTIONS = ROOT / ".cache/debian"  # as debootstrap made them
# Starts a command of the second argument's directory in the first one's file system. The mounts end with the command.
INSIDE = """
mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && mkdir -p "$0$1" && mount --bind "$1" "$0$1" || exit
root=$0; shift; exec chroot "$root" "$@"
"""
TRAINER = """
import ctypes, sys, lockstep
class Array:
    def __init__(self, first):
        self.memory = (ctypes.c_uint8 * 1000000)(first)
        address = ctypes.addressof(self.memory)
        self.__array_interface__ = {"data": (address, False), "shape": (1000000,), "typestr": "|u1", "version": 3}
with lockstep.Publisher.in_place({"weight": Array(0)}, model="actor", socket=sys.argv[1]) as publisher:
    for version in (1, 2):
        publisher.publish(version, tensors={"weight": Array(version)})
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wheel")
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "deploy/wheel.sh", directory], env=environment, check=True, stdout=subprocess.DEVNULL)
    return next(directory.glob("*.whl"))


@pytest.fixture
def package(wheel, cluster, monkeypatch):
    """The wheel, installed below the cluster's directory; its daemons are those of the cluster."""
    target = cluster.directory / "package"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    subprocess.run([*pip, "--target", target, wheel], check=True)
    for name in ("trainer_agent", "raas_receiver", "lockstepctl"):
        monkeypatch.setattr(harness, name.upper(), target / "lockstep/programs" / name)
    return target


def debian(release: str) -> Path:
    """The root of a Debian of that release, made once. Skips the test where none can be made or entered."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("only root makes and enters another distribution, where it may mount")
    root = DISTRIBUTIONS / release
    if not root.exists():
        made = root.with_suffix(".new")
        shutil.rmtree(made, ignore_errors=True)
        made.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["debootstrap", "--variant=minbase", *RELEASES[release], release, made], check=True)
        made.rename(root)
    return root


def host_that_means_others(root: Path) -> None:
    """Has modules in nsswitch.conf that are not there, and a library that is preloaded into every program."""
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files nosuch\nhosts: nosuch files dns\n")
    (root / "etc/ld.so.preload").write_text("/lib/x86_64-linux-gnu/libutil.so.1\n")


def inside(root: Path, directory: Path) -> "list[str]":
    return ["unshare", "--mount", "sh", "-c", INSIDE, str(root), str(directory)]


def libraries_of(process: int) -> "set[Path]":
    """Files that the process has mapped as libraries."""
    mappings = Path(f"/proc/{process}/maps").read_text().splitlines()
    return {Path(mapping[mapping.index("/") :]) for mapping in mappings if ".so" in mapping}


def test_what_a_host_preloads_and_where_it_has_libraries_reaches_hooks_and_no_daemon(cluster, package):
    model = ToyModel(blocks=2)
    elsewhere = cluster.directory / "libraries"
    elsewhere.mkdir()
    (elsewhere / "libgrpc.so.29").write_text("of another distribution\n")
    preloaded = next(Path("/lib").glob("*-linux-gnu/libutil.so.1"))
    found, new = cluster.directory / "environment", cluster.directory / "environment.new"
    host = {"LD_LIBRARY_PATH": str(elsewhere), "LD_PRELOAD": str(preloaded)}
    agent = cluster.agent()
    receiver = cluster.receiver(agent, start=False, engine=f"hook:env >{new} && mv {new} {found}")
    receiver.prefix = ["env", *(f"{name}={value}" for name, value in host.items())]
    receiver.start()
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        wait_until(found.exists, "the hook has run")
    seen = dict(line.split("=", 1) for line in found.read_text().splitlines() if "=" in line)
    assert {name: seen.get(name) for name in host} == host
    assert not [name for name in seen if name.startswith("LOCKSTEP_HOST_")]
    assert {path.parent for path in libraries_of(receiver.process.pid)} == {package / "lockstep/programs/lib"}


def test_a_daemon_is_the_process_that_was_started_and_has_its_programs_name(cluster, package):
    agent = cluster.agent()
    process = Path(f"/proc/{agent.process.pid}")
    assert (process / "comm").read_text() == "trainer_agent\n"
    assert (process / "exe").readlink().name == "trainer_agent"
    assert agent.stop() == 0


def test_a_program_starts_by_a_link_and_from_where_its_directory_was_moved(cluster, package):
    (package / "lockstep/programs").rename(cluster.directory / "moved here")
    link = cluster.directory / "ctl"
    link.symlink_to("moved here/lockstepctl")
    refused = subprocess.run([link, "nonsense"], capture_output=True, text=True)
    assert refused.returncode == 64 and refused.stderr.startswith("lockstepctl: usage: "), refused


@pytest.mark.parametrize("release", RELEASES)
def test_full_pulls_and_deltas_inside_another_release_of_debian(cluster, package, release):
    root = debian(release)
    host_that_means_others(root)
    model = ToyModel()
    agent = cluster.agent(start=False)
    port = agent.address.rpartition(":")[2]
    agent.command[agent.command.index(agent.address)] = f"localhost:{port}"
    receiver = cluster.receiver(f"localhost:{port}", start=False)
    for daemon in (agent, receiver):
        daemon.prefix = inside(root, cluster.directory)
        daemon.start()
    with receiver.recorded_syncs() as syncs, agent.publisher(model.tensors) as publisher:
        for version in (1, 2):
            model.reach(publisher, version, receiver)
    assert [sync["mode"] for sync in syncs] == ["full", "delta"]
    assert receiver.ctl("verify").returncode == 0
    for daemon in (agent, receiver):
        assert {path.parent.parts[-3:] for path in libraries_of(daemon.process.pid)} == {
            ("lockstep", "programs", "lib")
        }


def test_a_trainer_on_debian_13_publishes_with_the_wheels_library(cluster, package):
    root = debian("trixie")
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    trainer = [*inside(root, cluster.directory), "env", f"PYTHONPATH={package}", "python3", "-c", TRAINER, agent.socket]
    subprocess.run(trainer, check=True, timeout=120)
    receiver.ask("pull")
    assert receiver.file().read_bytes().endswith(bytes([2]) + bytes(999_999))
