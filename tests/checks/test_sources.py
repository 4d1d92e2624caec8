"""What holds for all sources: types, lint, shell, and links of documents that lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def tracked(*patterns: str) -> "list[str]":
    listed = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def run(*command: str) -> None:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(command[:4])} ...\n{result.stdout}{result.stderr}"


def test_the_packages_types_are_right():
    run(sys.executable, "-m", "mypy", "--config-file", "python/pyproject.toml", "python/lockstep")


def test_python_has_no_lint():
    run(sys.executable, "-m", "ruff", "check", "--no-cache", "--config", "tests/ruff.toml", *tracked("*.py"))


def test_python_is_formatted():
    run(
        sys.executable, "-m", "ruff", "format", "--no-cache", "--check", "--config", "tests/ruff.toml", *tracked("*.py")
    )


def test_shell_scripts_have_no_lint():
    run("shellcheck", *tracked("*.sh", ".ci/run", "deploy/bundle"))


def test_every_fault_of_the_mutants_can_be_planted():
    run("tests/mutants.sh", "--check")


def anchor(heading: str) -> str:
    """As GitHub makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(document: Path) -> "set[str]":
    return {anchor(heading) for heading in HEADING.findall(FENCED.sub("", document.read_text()))}


def broken(document: Path) -> "list[str]":
    bad = []
    for link in LINK.findall(FENCED.sub("", document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, fragment = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (fragment and fragment not in anchors(target)):
            bad.append(link)
    return bad


@pytest.mark.parametrize("document", tracked("*.md"))
def test_links_lead_somewhere(document):
    assert broken(ROOT / document) == []


def test_no_document_is_an_island():
    """From the README every document can be reached."""
    seen, left = set(), [ROOT / "README.md"]
    while left:
        document = left.pop()
        if document in seen or document.suffix != ".md":
            continue
        seen.add(document)
        links = [
            link.partition("#")[0] for link in LINK.findall(document.read_text()) if not re.match(r"[a-z]+:", link)
        ]
        left += [(document.parent / link).resolve() for link in links if link]
    assert {ROOT / document for document in tracked("*.md")} - seen == set()


def test_security_names_tests_that_there_are():
    """By their target and case, or file and function."""
    page = (ROOT / "docs/reference/threats.md").read_text()
    sources = {Path(name).stem: (ROOT / name).read_text() for name in tracked("*_test.cc", "*/test_*.py")}
    rules = "".join((ROOT / name).read_text() for name in tracked("*BUILD"))
    targets = dict(re.findall(r'name = "(\w+)",\s*srcs = \["(\w+)\.cc"', rules))
    named = re.findall(r"`(\w+)(?:\.py)?`: ((?:\"[^\"]+\"|`\w+`)(?:, (?:\"[^\"]+\"|`\w+`))*)", page)
    assert len(named) > 60
    for target, cases in named:
        for case in re.findall(r"\"([^\"]+)\"|`(\w+)`", cases):
            source = sources[targets.get(target, target)]
            # A long case is on several lines.
            assert "".join(case) in re.sub(r'"\s*"', "", source), f"{target} has no {''.join(case)}"


def test_the_release_stands_in_one_place():
    release = (ROOT / "VERSION").read_text().strip()
    images = re.findall(
        r"newName: registry.example/lockstep/.*newTag: (\S+)}",
        (ROOT / "deploy/k8s/base/kustomization.yaml").read_text(),
    )
    assert images == [release, release]
    assert f"## {release}" in (ROOT / "CHANGELOG.md").read_text()
