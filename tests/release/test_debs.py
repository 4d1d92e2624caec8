"""What deploy/release.sh makes; and of that the package, on Debian 12 and 13: installed, run, upgraded, removed, purged."""

import json
import os
import subprocess
import tarfile

import pytest
from builds import PROGRAMS, RELEASE, next_build
from debian import SUITES, Debian
from harness import ROOT, wait_until
from replicas import ToyModel, differing_tensor

import lockstep

USER_FILES = ("passwd", "group", "shadow", "gshadow")
# Compressed less than a release, which takes a tenth of the time.
QUICKLY = {
    "DPKG_DEB_COMPRESSOR_TYPE": "gzip",
    "DPKG_DEB_COMPRESSOR_LEVEL": "1",
}


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """What deploy/release.sh makes."""
    directory = tmp_path_factory.mktemp("release") / "dist"
    made = [ROOT / "deploy/release.sh", "--no-cuda", directory]
    subprocess.run(made, env={**os.environ, **QUICKLY}, check=True, stdout=subprocess.DEVNULL)
    return directory


@pytest.fixture(scope="module")
def package(release):
    [package] = release.glob("*.deb")
    return package


@pytest.fixture(scope="module")
def next_package(tmp_path_factory):
    directory = tmp_path_factory.mktemp("next")
    subprocess.run([ROOT / "deploy/bundle", directory / "bundle", *map(next_build, PROGRAMS)], check=True)
    made = [ROOT / "deploy/deb.sh", directory / "bundle", directory]
    subprocess.run(made, env={**os.environ, **QUICKLY}, check=True, stdout=subprocess.DEVNULL)
    [package] = directory.glob("*.deb")
    return package


def test_a_release_is_whole_and_its_checksums_are_right(release):
    version = (ROOT / "VERSION").read_text().strip()
    images = [f"lockstep-{name}-{version}" for name in ("raas-receiver", "trainer-agent")]
    wanted = [f"CHANGELOG-{version}.md", "SHA256SUMS", *(name + end for name in images for end in (".json", ".tar.gz"))]
    wanted += [f"lockstep_{version}-1_amd64.deb", f"lockstep_rl-{version}-py3-none-manylinux_2_34_x86_64.whl"]
    assert sorted(path.name for path in release.iterdir()) == sorted(wanted)
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=release, check=True)
    assert len((release / "SHA256SUMS").read_text().splitlines()) == len(wanted) - 1
    changes = (release / f"CHANGELOG-{version}.md").read_text()
    assert (
        changes.startswith(f"## {version}")
        and changes.count("\n## ") == 0
        and changes in (ROOT / "CHANGELOG.md").read_text()
    )
    for image in images:
        with tarfile.open(release / f"{image}.tar.gz") as root:
            files = {member.name: member for member in root}
        [program] = json.loads((release / f"{image}.json").read_text())["Entrypoint"]
        assert files[f"./usr/bin/{program}"].mode == 0o755 and {member.uid for member in files.values()} == {0}


def test_lintian_finds_nothing_but_what_an_override_gives_a_reason_for(package):
    command = ["lintian", "--allow-root", "--fail-on", "error,warning", package]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert (checked.returncode, checked.stdout) == (0, ""), checked.stdout
    overrides = (ROOT / "deploy/deb/lintian-overrides").read_text().split("#")[1:]
    assert all("\nlockstep: " in part for part in overrides)


@pytest.mark.parametrize("suite", SUITES)
def test_installed_upgraded_and_purged(cluster, place, suite, package, next_package):
    model = ToyModel()
    replica = cluster.directory / "shm/lockstep-receiver/actor/current/model.safetensors"
    config = place / "root/etc/lockstep/raas_receiver.toml"

    def synced() -> bool:
        return replica.exists() and differing_tensor(replica, model.tensors) is None

    with Debian(cluster, place, suite) as debian:
        files = debian.files()
        users = {name: (debian.root / "etc" / name).read_text() for name in USER_FILES}
        debian.install(package)
        agent, receiver = debian.start("trainer-agent"), debian.start("raas-receiver")
        socket = debian.root / "run/trainer-agent/export.sock"
        with lockstep.Publisher.in_place(model.tensors, model="actor", socket=socket) as publisher:
            publisher.publish(version=1, tensors=model.step())
            wait_until(synced, "the replica is synced")

            # Files of the package are where a user looks for them.
            listed = debian.run("dpkg", "--listfiles", "lockstep").split()
            for path in (
                "man/man8/trainer_agent.8.gz",
                "bash-completion/completions/lockstepctl",
                "doc/lockstep/copyright",
            ):
                assert f"/usr/share/{path}" in listed
            assert debian.run("id", "-nG", "lockstep").split() == ["lockstep"]

            # A later release keeps what an operator wrote, and continues with the weights in memory.
            edited = config.read_text() + "# as this site has it\n"
            config.write_text(edited)
            debian.install(next_package)
            assert config.read_text() == edited
            for daemon, unit in ((agent, "trainer-agent"), (receiver, "raas-receiver")):
                assert daemon.stop() == 0
                debian.start(unit)
                assert json.loads(debian.status(unit))["build"]["version"] == RELEASE
            publisher.publish(version=2, tensors=model.step())
            wait_until(synced, "the replica is synced by the next release")
        for daemon in cluster.daemons[2:]:
            assert daemon.stop() == 0

        debian.run("dpkg", "--remove", "lockstep")
        assert not (debian.root / "usr/lib/lockstep").exists() and config.read_text() == edited
        debian.run("mv", "/dev/shm/lockstep", "/dev/shm/other")
        debian.run("mkdir", "/dev/shm/lockstep")  # of root
        debian.run("dpkg", "--purge", "lockstep")
        debian.run("rmdir", "/dev/shm/lockstep")
        debian.run("rm", "-r", "/dev/shm/other")
        assert debian.files() == files
        assert {name: (debian.root / "etc" / name).read_text() for name in USER_FILES} == users
