"""Keeps the results of Python test files: tests/run.sh runs a file again only when something that it may read changed.

    kept.py select             pytest's options that leave out each file with a kept result that holds
    kept.py report JUNIT.xml   writes these results as one report
    kept.py keep JUNIT.xml...  keeps the result of each file that has no failed case in these reports

A result holds while its digest is the same. That covers the test file, those that it imports, the programs that tests
start, and the rest of the checkout except other test files, what only Bazel reads (the programs have it), and documents
(they count if the test file names one). Results of files that ask Bazel or git, or read all sources, are never kept.
"""

import functools
import hashlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".cache/kept"
PROGRAMS = (
    "ctl/lockstepctl",
    "export_plugin/example/tensor_parallel_trainer",
    "export_plugin/liblockstep.so",
    "raas_receiver/receiver/raas_receiver",
    "tests/metrics/page",
    "tests/release/next/trainer_agent",  # the other programs there have the same in common
    "tests/trust/every_call",
    "tests/trust/many_pulls",
    "trainer_agent/agent/trainer_agent",
)
NEVER = ("tests/checks/", "tests/gpu/test_last.py", "tests/integration/test_logs.py", "tests/layering/")
ONLY_BAZEL_READS = (".cc", ".h", ".hpp", ".cu", "BUILD", ".bazelrc", ".bzl", "WORKSPACE")


def is_test(file: str) -> bool:
    return Path(file).name.startswith("test_") and file.endswith(".py")


@functools.cache
def checkout() -> "list[str]":
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({file for file in files if file and (ROOT / file).is_file()})


def digest_of(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).digest() if path.exists() else b""


@functools.cache
def common(documents: bool) -> bytes:
    """Over what every test may read."""
    digest = hashlib.sha256()
    for file in checkout():
        if not is_test(file) and not file.endswith(ONLY_BAZEL_READS) and (documents or not file.endswith(".md")):
            digest.update(file.encode() + b"\0" + digest_of(ROOT / file))
    for program in PROGRAMS:
        digest.update(digest_of(ROOT / "bazel-bin" / program))
    return digest.digest()


def with_imported(file: str) -> "list[str]":
    """The test file, and the test files that it imports, and so on."""
    found = [file]
    for at in found:
        names = re.findall(r"^(?:from|import) (test_\w+)", (ROOT / at).read_text(), re.MULTILINE)
        found += [other for other in checkout() if is_test(other) and Path(other).stem in names and other not in found]
    return found


def state(file: str) -> str:
    content = b"".join((ROOT / part).read_bytes() for part in with_imported(file))
    return hashlib.sha256(common(b".md" in content) + content).hexdigest()


def place(file: str) -> Path:
    return KEPT / (file.replace("/", ".") + ".xml")


def holding() -> "dict[str, ElementTree.Element]":
    """The results that hold, by file."""
    found = {}
    for file in filter(is_test, checkout()):
        if place(file).exists():
            result = ElementTree.parse(place(file)).getroot()
            if result.get("state") == state(file):
                found[file] = result
    return found


def file_of(case: ElementTree.Element) -> str:
    """pytest's classname is the file's path with dots, and a class's name behind it."""
    parts = (case.get("classname") or "").split(".")
    for count in range(len(parts), 0, -1):
        if (ROOT / ("/".join(parts[:count]) + ".py")).is_file():
            return "/".join(parts[:count]) + ".py"
    return ""


def is_whole(report: str) -> bool:
    try:
        return ElementTree.parse(report) is not None
    except (OSError, ElementTree.ParseError):
        return False


def keep(reports: "list[str]") -> None:
    results: "dict[str, ElementTree.Element]" = {}
    for report in filter(is_whole, reports):
        for case in ElementTree.parse(report).iter("testcase"):
            file = file_of(case)
            results.setdefault(file, ElementTree.Element("testsuite", state="")).append(case)
    KEPT.mkdir(parents=True, exist_ok=True)
    for file, result in results.items():
        failed = any(case.find(kind) is not None for case in result for kind in ("failure", "error"))
        if file and not failed and not file.startswith(NEVER):
            result.set("state", state(file))
            ElementTree.ElementTree(result).write(place(file))


def main(arguments: "list[str]") -> None:
    command, *files = arguments
    if command == "select":
        print("".join(f"--ignore={file}\n" for file in holding()), end="")
    elif command == "report":
        report = ElementTree.Element("testsuites")
        report.extend(holding().values())
        ElementTree.ElementTree(report).write(files[0])
    else:
        keep(files)


if __name__ == "__main__":
    main(sys.argv[1:])
