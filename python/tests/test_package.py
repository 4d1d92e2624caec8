"""The package as users install it, and how it finds the shared library."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep import programs
from lockstep.core import abi

PACKAGE = Path(__file__).resolve().parents[1]


@pytest.fixture
def fresh_lookup():
    abi.load.cache_clear()
    yield
    abi.load.cache_clear()


def test_the_library_of_the_checkout_is_found_and_has_the_packages_version(monkeypatch, fresh_lookup):
    monkeypatch.delenv("LOCKSTEP_LIBRARY", raising=False)
    assert lockstep.library_version() == lockstep.__version__


def test_a_missing_library_is_an_error_that_says_where_it_was_sought(monkeypatch, fresh_lookup):
    monkeypatch.setenv("LOCKSTEP_LIBRARY", "/nowhere/liblockstep.so")
    with pytest.raises(lockstep.NotFoundError, match="/nowhere/liblockstep.so.*bazel build"):
        lockstep.library_version()


def test_programs_are_those_of_a_directory_that_is_named_of_the_package_or_of_the_checkout(monkeypatch, tmp_path):
    monkeypatch.delenv("LOCKSTEP_PROGRAMS", raising=False)
    checkout, package, named = tmp_path / "bazel-bin/ctl", tmp_path / "lockstep/programs", tmp_path / "named"
    (tmp_path / "WORKSPACE").touch()
    monkeypatch.setattr(programs, "__file__", str(tmp_path / "lockstep/programs.py"))
    with pytest.raises(lockstep.NotFoundError) as missing:
        programs.find("lockstepctl")
    for said in (
        checkout / "lockstepctl",
        package / "lockstepctl",
        "the wheel",
        "LOCKSTEP_PROGRAMS",
        "//ctl:lockstepctl",
    ):
        assert str(said) in str(missing.value)
    for directory in (checkout, package, named):
        directory.mkdir(parents=True)
        (directory / "lockstepctl").touch()
        if directory == named:
            monkeypatch.setenv("LOCKSTEP_PROGRAMS", str(named))
        assert programs.find("lockstepctl") == str(directory / "lockstepctl")


@pytest.mark.parametrize(
    "tools, lacking",
    [
        ([], "has no pip"),
        (["pip"], "has no setuptools"),
        (["pip", "setuptools"], "has neither setuptools 70.1 nor wheel"),
    ],
    ids=["no-pip", "no-setuptools", "no-wheel"],
)
def test_an_interpreter_that_cannot_build_wheels_is_named_before_anything_is_built(tmp_path, tools, lacking):
    """An environment as venv makes it, with empty packages for those tools that it has."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    packages = next((tmp_path / "venv/lib").glob("python3*")) / "site-packages"
    for tool in tools:
        (packages / tool).mkdir()
        (packages / tool / "__init__.py").touch()
    python = tmp_path / "venv/bin/python3"
    environment = {**os.environ, "PYTHON": str(python), "PATH": "/usr/bin:/bin"}
    script = PACKAGE.parent / "deploy/wheel.sh"
    failed = subprocess.run([script, tmp_path / "dist"], capture_output=True, text=True, env=environment)
    assert failed.returncode == 69 and not (tmp_path / "dist").exists()
    assert failed.stderr.splitlines() == [
        f"wheel.sh: cannot build a wheel: {python} {lacking}; install Debian's python3-pip (with apt-get), "
        "or setuptools and wheel with pip"
    ]


def test_the_wheel_carries_its_library_and_programs_and_needs_nothing_else(tmp_path):
    script = PACKAGE.parent / "deploy/wheel.sh"
    environment = {**os.environ, "PYTHON": sys.executable}
    built = subprocess.run([script, tmp_path], check=True, capture_output=True, text=True, env=environment)
    wheel = Path(built.stdout.strip().splitlines()[-1])
    assert wheel.name == f"lockstep_rl-{lockstep.__version__}-py3-none-manylinux_2_34_x86_64.whl"
    assert wheel.stat().st_size < 60 << 20  # what package indexes take
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, str(wheel)], check=True)
    # -I -S: neither this environment's packages nor its variables.
    program = f"import sys; sys.path.append({str(target)!r}); import lockstep; print(lockstep.library_version())"
    result = subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == lockstep.__version__
    assert (target / "lockstep/engine/_follower.py").exists()
    for name in ("trainer_agent", "raas_receiver", "lockstepctl"):
        command = [target / "bin" / name, "--version"]
        said = subprocess.run(command, check=True, capture_output=True, text=True, env={"PYTHONPATH": str(target)})
        assert said.stdout.startswith(f"{name} {lockstep.__version__} ")
    entry_points = next(target.glob("lockstep_rl-*.dist-info/entry_points.txt")).read_text()
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        assert f"[{group}]\nlockstep = lockstep.engine." in entry_points
