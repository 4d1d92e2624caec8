"""The README's quickstart, pasted where there is nothing but the wheel."""

import os
import re
import subprocess
import sys

from harness import ROOT

QUICKSTART = re.compile(r"^## Quickstart$.*?^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
# The quickstart's ports are the defaults. In a network of its own they are free.
ALONE = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]


def test_the_quickstart_prints_what_the_readme_says(tmp_path):
    build = [ROOT / "deploy/wheel.sh", tmp_path / "dist"]
    subprocess.run(build, env={**os.environ, "PYTHON": sys.executable}, check=True, timeout=600)
    readme = (ROOT / "README.md").read_text()
    pasted = QUICKSTART.search(readme).group(1)
    # What needs other people's servers comes first and runs outside.
    install, _, run = pasted.partition("\nexport D=")
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONPATH", None)
    subprocess.run(["bash", "-e"], input=install, cwd=tmp_path, env=environment, check=True, text=True, timeout=600)
    environment["PATH"] = f"{tmp_path / '.cache/quickstart/bin'}:{environment['PATH']}"  # as the block's first half did
    script = "ip link set lo up\nset -e\nexport D=" + run
    result = subprocess.run(
        [*ALONE, "bash"], input=script, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr
    said = re.search(r"the last command prints `(.*?)`", readme, re.MULTILINE).group(1)
    assert result.stdout.splitlines()[-1] == said
    logged = [line for line in result.stderr.splitlines() if not line.startswith('{"ts":')]  # daemons log there
    assert not logged
