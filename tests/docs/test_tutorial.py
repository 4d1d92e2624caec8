"""docs/tutorial.md: its blocks are pasted in order into one shell that has the wheel, and print what the page shows."""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from harness import ROOT
from test_listings import run_alone

PAGE = "docs/tutorial.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```\n+(?:^```\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
# What is another number each time, and how a page's and a run's become the same.
VARIES = {
    r"PID=\d+": "PID=N",
    r"/dev/shm/lockstep-\d+/": "/dev/shm/lockstep-UID/",
    r"loss \d\.\d\d,": "loss N,",
    r"\d+\.\d% of": "N% of",
    r"\d+ KiB sent": "N KiB sent",
    r"\b[0-9a-f]{12,32}\b(-dirty)?": "HEX",
    r" \d+ s ": " N s ",
    r"\d+\.\d MiB +0 ": "N MiB 0 ",  # RETAINED, before PULLS
    r" +": " ",  # columns are as wide as what is in them
}
ALONE = """
set -eo pipefail
mount -t tmpfs none /run; mount -t tmpfs none /dev/shm
mount --bind hosts /etc/hosts
echo laptop > /proc/sys/kernel/hostname
ip link set lo up
unset PYTHONPATH LOCKSTEP_RUNTIME_DIR
"""


def same(text: str) -> "list[str]":
    for pattern, name in VARIES.items():
        text = re.sub(pattern, name, text)
    return text.splitlines()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A directory with dist/ and the examples, and with a virtual environment to which pip needs to add only the wheel:
    the packages of the tests are the ones that a user installs."""
    build = [ROOT / "deploy/wheel.sh", tmp_path / "dist"]
    subprocess.run(build, env={**os.environ, "PYTHON": sys.executable}, check=True, timeout=600)
    (tmp_path / "hosts").write_text("127.0.0.1 localhost laptop\n::1 localhost laptop\n")
    (tmp_path / "python").symlink_to(ROOT / "python")
    venv = tmp_path / ".cache/tutorial"
    packages = venv / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "of_the_tests.pth").write_text(sysconfig.get_path("purelib"))
    (venv / "bin").mkdir()
    for command, module in {"pip": "pip", "torchrun": "torch.distributed.run"}.items():
        (venv / "bin" / command).write_text(f'#!/bin/sh\nexec python -m {module} "$@"\n')
        (venv / "bin" / command).chmod(0o755)
    return tmp_path


def test_each_block_prints_what_the_page_shows(checkout):
    blocks = BLOCK.findall((ROOT / PAGE).read_text())
    marks = [f"--- after block {number} ---" for number in range(len(blocks))]
    pasted = "".join(f"{script}\necho '{mark}'\n" for (script, _), mark in zip(blocks, marks))
    offline = {"PIP_NO_INDEX": 1, "PIP_DISABLE_PIP_VERSION_CHECK": 1}
    ran = run_alone(ALONE + pasted, checkout, timeout_s=600, **offline)
    assert ran.returncode == 0, ran.stdout[-6000:]
    said = ran.stdout
    for (script, shown), mark in zip(blocks, marks):
        printed, _, said = said.partition(mark + "\n")
        assert same(printed) == same(shown), script
    figure = (checkout / ".cache/tutorial/density.svg").read_text()
    lines = re.findall(r'<path d="(M[^"]*)" clip-path', figure)
    assert [line.count("L") for line in lines] == [38, 38], "a point for each delta"
