"""Where Bazel finds what a vendor installed: CUDA's libraries lie in a folder of another name with each installer."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def bazel(tmp_path_factory):
    """A Bazel of its own: another CUDA_HOME would have the checkout's configure its repositories again."""
    base = tmp_path_factory.mktemp("bazel")

    def run(*arguments, **environment):
        command = ["bazel", f"--output_base={base}", *arguments]
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300
        )

    yield run
    run("shutdown")


@pytest.mark.parametrize("folder", ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"])
def test_the_toolkits_libraries_are_looked_for_where_its_installer_has_them(bazel, tmp_path, folder):
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cuda_runtime_api.h").touch()
    (tmp_path / folder).mkdir(parents=True)
    asked = bazel("query", "@cuda//:cuda", "--output=build", CUDA_HOME=str(tmp_path))
    assert asked.returncode == 0, asked.stderr
    assert f'"-L{tmp_path / folder}"' in asked.stdout
    assert asked.stdout.count('"-L') == 1
