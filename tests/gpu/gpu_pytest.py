"""Runs the tests of a file, in one process until a test crashes it or hangs: that one has failed, and the next process runs
those behind it. gpu_pytest.py FILE. As a plugin of pytest it keeps what began and what came of it in $LOCKSTEP_GPU_BEGUN.
"""

import faulthandler
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEST_SECONDS = int(
    os.environ.get("LOCKSTEP_GPU_TEST_SECONDS", "50")
)  # of one test; then its stacks are printed and its process ends
ENDED = "ended"


def pytest_runtest_logstart(nodeid: str) -> None:
    _keep(f"began {nodeid}")
    faulthandler.dump_traceback_later(TEST_SECONDS, exit=True, file=sys.__stderr__)


def pytest_runtest_logreport(report: object) -> None:
    if report.failed or report.skipped or report.when == "call":
        _keep(f"{report.outcome} {report.nodeid}")


def pytest_runtest_logfinish(nodeid: str) -> None:
    faulthandler.cancel_dump_traceback_later()


def pytest_sessionfinish() -> None:
    _keep(ENDED)


def _keep(line: str) -> None:
    with open(os.environ["LOCKSTEP_GPU_BEGUN"], "a") as file:
        print(line, file=file)


def tests_in(lines: "list[str]", what: str) -> "list[str]":
    """Those of which it is said, once each, in order."""
    return list(dict.fromkeys(line.removeprefix(what + " ") for line in lines if line.startswith(what + " ")))


def run(file: Path, kept: Path) -> "tuple[list[str], list[str], int]":
    """All that was kept; tests in which a process ended; and the last process's status."""
    ended_in: "list[str]" = []
    while True:
        before = kept.read_text().splitlines()
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-c",
            ROOT / "tests/pytest.ini",
            f"--rootdir={ROOT}",
            "-v",
            "-rs",
            "-s",
        ]
        deselected = [f"--deselect={nodeid}" for nodeid in tests_in(before, "began")]
        environment = {**os.environ, "LOCKSTEP_GPU_BEGUN": str(kept)}
        status = subprocess.run([*command, "-p", "gpu_pytest", *deselected, file], env=environment).returncode
        lines = kept.read_text().splitlines()
        new = lines[len(before) :]
        if ENDED in new or not new:  # or it could not even begin
            return lines, ended_in, status
        ended_in.append(new[-1].partition(" ")[2])
        print(f"the process ended with status {status} in {ended_in[-1]}", flush=True)


def main() -> int:
    with tempfile.NamedTemporaryFile() as kept:
        lines, ended_in, status = run(Path(sys.argv[1]), Path(kept.name))
    failed, skipped = tests_in(lines, "failed"), tests_in(lines, "skipped")
    passed = [name for name in tests_in(lines, "passed") if name not in failed and name not in ended_in]
    parts = [f"{len(passed)} passed", f"{len(failed)} failed", f"{len(skipped)} not run"]
    if ended_in:
        parts.append(f"{len(ended_in)} crashed or took longer than {TEST_SECONDS} s")
    named = [name.rpartition("::")[2] for name in [*failed, *ended_in]]
    print(", ".join(parts) + (": " + ", ".join(named) if named else ""), flush=True)
    nothing_left = 5
    fine = status == 0 or (status == nothing_left and lines)
    return 0 if passed and fine and not failed and not ended_in else 1


if __name__ == "__main__":
    sys.exit(main())
