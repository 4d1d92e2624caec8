"""The README's quickstart, pasted where there is nothing but the wheel."""

import os
import re
import subprocess
import sys

from harness import ROOT

QUICKSTART = re.compile(r"^## Quickstart$.*?^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_quickstart_prints_what_the_readme_says(tmp_path):
    build = [ROOT / "deploy/wheel.sh", tmp_path / "dist"]
    subprocess.run(build, env={**os.environ, "PYTHON": sys.executable}, check=True, timeout=600)
    readme = (ROOT / "README.md").read_text()
    pasted = QUICKSTART.search(readme).group(1)
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment.pop("PYTHONPATH", None)
    result = subprocess.run(
        ["bash", "-e"], input=pasted, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
    said = re.search(r"and last `(.*?)`", readme, re.MULTILINE).group(1)
    lines = result.stdout.splitlines()
    assert "version 3" in lines[0] and lines[-1] == said
    digests = [line.split()[0] for line in lines if re.match(r"[0-9a-f]{32} ", line)]
    assert len(digests) == 3 and len(set(digests)) == 1
    assert '{"ts":' not in result.stderr  # daemons log to files
