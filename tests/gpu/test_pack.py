"""tests/gpu/pack.sh with a Bazel made up for it: what it packs, and what it refuses. (.ci/run packs for real.)"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from gpu_last import ROOT

BAZEL = """#!/bin/bash
# "Builds" by copying a program; of two tests that are tagged gpu only one can be built.
case $1 in
  query) printf '//kernels:there_test\\n//export_plugin:incompatible_test\\n' ;;
  build)
    for path in trainer_agent/agent/trainer_agent raas_receiver/receiver/raas_receiver ctl/lockstepctl kernels/there_test \\
      export_plugin/liblockstep.so; do
      mkdir -p "$(dirname "bazel-bin/$path")"
      cp -f /bin/true "bazel-bin/$path"
    done
    [[ -z ${LARGE:-} ]] || head -c "$LARGE" /dev/urandom >bazel-bin/noise
    ;;
esac
"""
BUNDLE = """#!/bin/bash
# In the place of deploy/bundle: programs alone.
mkdir -p "$1/lib" "$1/program"
cp "${@:2}" "$1/program"
for program in "${@:2}"; do printf '#!/bin/sh\necho "%s $*"\n' "${program##*/}" >"$1/${program##*/}"; chmod +x "$1/${program##*/}"; done
[[ -z ${LINK:-} ]] || ln -s program "$1/link"
[[ ! -e bazel-bin/noise ]] || cp bazel-bin/noise "$1/lib"
"""


@pytest.fixture
def checkout(tmp_path):
    root = tmp_path / "checkout"
    for name in ("tests/gpu", "python/lockstep", "tests/integration", "tests/pytest.ini"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, root / name)
    for folder in ("tests/engines", "tests/layouts"):
        (root / folder).mkdir()
        (root / folder / "one.py").write_text("1")
    (root / "deploy").mkdir()
    (root / "bin").mkdir()
    for path, text in (("deploy/bundle", BUNDLE), ("bin/bazel", BAZEL)):
        (root / path).write_text(text)
        (root / path).chmod(0o755)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "--quiet"], cwd=root, check=True)
    subprocess.run([*git, "add", "."], cwd=root, check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "one"], cwd=root, check=True)
    return root


def pack(checkout: Path, **environment: str) -> subprocess.CompletedProcess:
    path = f"{checkout / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        [checkout / "tests/gpu/pack.sh"],
        env={**os.environ, "PATH": path, **environment},
        capture_output=True,
        text=True,
    )


def test_a_pack_has_programs_library_tests_and_what_it_was_made_of(checkout):
    left = checkout / "bazel-bin/export_plugin/incompatible_test"  # by another build
    left.parent.mkdir(parents=True)
    shutil.copy("/bin/true", left)
    packed = pack(checkout)
    assert packed.returncode == 0, packed.stderr
    assert "bytes of at most 58720256" in packed.stdout
    directory = checkout / ".gpu"
    assert (directory / "cpp_tests").read_text() == "there_test\n"
    for name in ("trainer_agent/agent/trainer_agent", "raas_receiver/receiver/raas_receiver", "ctl/lockstepctl"):
        moved = directory.rename(checkout / "moved") / "bin" / name
        started = subprocess.run([moved, "one", "two words"], capture_output=True, text=True)
        assert started.stdout == f"{moved.name} one two words\n", started.stderr
        (checkout / "moved").rename(directory)
    for name in (
        "python/lockstep/liblockstep.so",
        "python/lockstep/VERSION",
        "tests/gpu/run.sh",
        "tests/gpu/test_gpu_publish.py",
        "tests/integration/harness.py",
        "tests/layouts/one.py",
        "tests/pytest.ini",
    ):
        assert (directory / name).is_file(), name
    assert '"digest"' in (directory / "sources.json").read_text()


def test_what_is_larger_than_may_be_carried_is_refused_and_removed(checkout):
    assert pack(checkout).returncode == 0
    packed = pack(checkout, LARGE=str(56 << 20))
    assert packed.returncode == 65
    assert "more than the 58720256" in packed.stderr and "noise" in packed.stderr
    assert not (checkout / ".gpu").exists()


def test_a_pack_with_a_link_is_refused_and_removed(checkout):
    packed = pack(checkout, LINK="1")
    assert packed.returncode == 65 and "symbolic links do not arrive everywhere: " in packed.stderr
    assert not (checkout / ".gpu").exists()


@pytest.mark.parametrize("fails", ["query", "build"])
def test_a_build_that_fails_leaves_no_pack_behind(checkout, fails):
    assert pack(checkout).returncode == 0
    bazel = checkout / "bin/bazel"
    bazel.write_text(bazel.read_text().replace("case $1 in", f"[[ $1 != {fails} ]] || exit 1\ncase $1 in"))
    assert pack(checkout).returncode != 0
    assert not (checkout / ".gpu").exists()
