"""A fresh Debian in a directory, for test_debs.py: what a package does there, and daemons under their units' command lines.

No systemd runs in it. One process holds its mounts and its network, so that it has a /dev/shm and a loopback of its own.
"""

import os
import subprocess
from pathlib import Path

from harness import ROOT, Cluster, Daemon, wait_until

ARCHIVES = ROOT / ".cache/debian"  # made once for a checkout
MIRROR = "http://deb.debian.org/debian"
ARCHIVE_SECONDS = 300
# What is installed beside a minimum: Debian 12 makes users by postinst's own way, Debian 13 by systemd-sysusers.
SUITES = {"bookworm": "passwd", "trixie": "passwd,systemd-standalone-sysusers"}
# Mounts what programs need below the directory $0, with $1 as /dev/shm, and holds the mounts until its input ends.
HOLDER = """
set -e
ip link set lo up
mount -t proc proc "$0/proc"
for device in null zero full random urandom; do
  : >> "$0/dev/$device"
  mount --bind "/dev/$device" "$0/dev/$device"
done
mount --bind "$1" "$0/dev/shm"
echo ready
exec cat
"""


def mirrors() -> "list[str]":
    """Where this machine has Debian's packages from, and Debian's own, for a mirror that lacks the suite or does not answer."""
    asked = ["apt-get", "indextargets", "--format=$(SITE)", "Created-By: Packages", "Origin: Debian", "Label: Debian"]
    sites = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    return [*(sites or [MIRROR])[:1], MIRROR]


def archive(suite: str) -> Path:
    path = ARCHIVES / f"{suite}.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(".new.tar")
        command = ["timeout", str(ARCHIVE_SECONDS), "mmdebstrap", "--quiet", "--variant=essential"]
        command += [f"--include={SUITES[suite]}", suite, made]
        statuses = {}
        for mirror in mirrors():
            statuses[mirror] = subprocess.run([*command, mirror], stdin=subprocess.DEVNULL).returncode
            if statuses[mirror] == 0:
                break
        assert 0 in statuses.values(), f"mmdebstrap ended with {statuses}; 124: not within {ARCHIVE_SECONDS} s"
        made.rename(path)
    return path


class Debian:
    """Of that suite, in that directory. Its daemons are among the cluster's."""

    def __init__(self, cluster: Cluster, place: Path, suite: str) -> None:
        self.cluster = cluster
        self.root = place / "root"
        self.shm = cluster.directory / "shm"
        for directory in (self.root, self.shm):
            directory.mkdir()
        subprocess.run(["tar", "-xf", archive(suite), "-C", self.root, "--exclude=./dev/*"], check=True)
        (self.root / "dev/shm").mkdir()
        self.shm.chmod(0o1777)
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "sh", "-c", HOLDER, self.root, self.shm],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout.readline() == "ready\n"

    def close(self) -> None:
        self.holder.communicate()

    def __enter__(self) -> "Debian":
        return self

    def __exit__(self, *exception: object) -> None:
        for daemon in self.cluster.daemons:
            if daemon.running():
                daemon.kill()
        self.close()

    def inside(self, *options: str) -> "list[str]":
        return ["nsenter", f"--target={self.holder.pid}", "--mount", "--net", "chroot", *options, str(self.root)]

    def run(self, *command: object, succeeds: bool = True) -> str:
        """What a command of root says."""
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
        words = [*self.inside(), *map(str, command)]
        ran = subprocess.run(words, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert ran.returncode == 0 or not succeeds, f"{command}: {ran.stdout}{ran.stderr}"
        return ran.stdout

    def install(self, package: Path) -> None:
        (self.root / "tmp" / package.name).write_bytes(package.read_bytes())
        self.run("dpkg", "--install", f"/tmp/{package.name}")
        (self.root / "tmp" / package.name).unlink()

    def start(self, unit: str) -> Daemon:
        """The unit's command, as its user, with the directories that systemd makes for it."""
        lines = (self.root / "usr/lib/systemd/system" / f"{unit}.service").read_text().splitlines()
        settings = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        user, group = settings["User"], settings["Group"]
        self.run("install", "-d", "-o", user, "-g", group, "-m", settings["RuntimeDirectoryMode"], f"/run/{unit}")
        environment = []
        if "StateDirectory" in settings:
            state = f"/var/lib/{settings['StateDirectory']}"
            self.run("install", "-d", "-o", user, "-g", group, "-m", settings["StateDirectoryMode"], state)
            environment = ["env", f"STATE_DIRECTORY={state}"]
        groups = [f"--groups={settings['SupplementaryGroups']}"] if "SupplementaryGroups" in settings else []
        command = [*environment, *settings["ExecStart"].split()]
        daemon = Daemon(unit, command, self.cluster.directory / f"{unit}.log")
        daemon.prefix = self.inside(f"--userspec={user}:{group}", *groups)
        self.cluster.daemons.append(daemon)
        daemon.start()

        def answers() -> bool:
            assert daemon.running(), daemon.log_tail()
            return bool(self.status(unit))

        wait_until(answers, f"{unit} answers")
        return daemon

    def status(self, unit: str) -> str:
        """As lockstepctl shows it; "" while the daemon does not answer."""
        role = "--receiver" if unit == "raas-receiver" else "--agent"
        ctl = ["lockstepctl", "--json", role, f"unix:/run/{unit}/control.sock", "status"]
        return self.run(*ctl, succeeds=False)

    def files(self) -> "set[str]":
        """The paths of all files but what dpkg and the tools of users note of their own work."""
        own = ("var/lib/dpkg/", "var/log/", "var/cache/", "etc/.pwd.lock", "proc/", "dev/shm/")
        own += tuple(f"etc/{name}-" for name in ("passwd", "group", "shadow", "gshadow", "subuid", "subgid"))
        found = set()
        for directory, names, files in os.walk(self.root):
            found |= {str((Path(directory) / name).relative_to(self.root)) for name in [*names, *files]}
        return {path for path in found if not path.startswith(own)} | {
            f"dev/shm/{path.name}" for path in self.shm.iterdir()
        }
