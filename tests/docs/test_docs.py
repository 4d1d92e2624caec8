"""What the documents say of the code is so: pages made from it are fresh, and each listing's programs, options, keys, names and
keywords are there. test_listings.py, test_setups.py and test_quickstart.py run what can be run here."""

import ast
import importlib
import inspect
import re
import shlex
import subprocess
from functools import cache
from pathlib import Path

import prose
import pytest
import reference
import tomllib

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {program.name: program for program in reference.PROGRAMS}
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
# Of the shell, and of what a reader has installed.
ASSIGNMENT = re.compile(r"^(export )?[A-Z_]+=")


def blocks(*languages: str) -> "list[pytest.param]":
    found = []
    for page in prose.pages():
        for number, (indent, language, text) in enumerate(BLOCK.findall((ROOT / page).read_text())):
            if language in languages:
                found.append(pytest.param(re.sub(f"^{indent}", "", text, flags=re.MULTILINE), id=f"{page}-{number}"))
    return found


@pytest.mark.parametrize("page", reference.PAGES)
def test_a_page_that_is_made_from_the_code_is_what_the_code_says(page):
    assert (ROOT / page).read_text() == reference.PAGES[page](), ".cache/venv/bin/python tests/docs/reference.py"


@cache
def help_of(program: str, *command: str) -> str:
    """What --help says of it; "" for what is no command."""
    ran = subprocess.run([PROGRAMS[program], *command, "--help"], capture_output=True, text=True)
    return ran.stdout if ran.returncode == 0 else ""


@cache
def flags_of(program: str, *command: str) -> "frozenset[str]":
    shown = help_of(program) + (help_of(program, *command) if command else "")
    return frozenset(re.findall(r"(?<![\w-])--[a-z][a-z-]*", shown))


@pytest.mark.parametrize("script", blocks("sh", "bash", "console"))
def test_a_listing_for_a_shell_has_programs_options_and_scripts_that_there_are(script):
    syntax = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert syntax.returncode == 0, syntax.stderr
    for line in re.sub(r"\\\n", " ", script).splitlines():
        for command in re.split(r"\s(?:&&|\|\||[|;&])(?:\s|$)", line):
            check_command(words_of(command))


def words_of(command: str) -> "list[str]":
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # a string over several lines
        words = command.split()
    while words and (ASSIGNMENT.match(words[0]) or words[0] in ("export", "sudo", "exec", "if", "do", "then", "!")):
        words.pop(0)
    return words


def check_command(words: "list[str]") -> None:
    if not words:
        return
    program = words[0].rpartition("/")[2]
    if re.match(r"(\./)?(deploy|tests|bazel|ctl)/", words[0]):
        assert (ROOT / words[0]).exists(), words[0]
    if program not in PROGRAMS:
        return
    path: "list[str]" = []
    for word in words[1:]:
        if " ".join([*path, word]) in reference.commands(program):
            path.append(word)
    flags = flags_of(program, *path)
    for word in words[1:]:
        if word.startswith("--"):
            assert word.partition("=")[0] in flags, f"{program} has no {word}"


@pytest.mark.parametrize("text", blocks("toml"))
def test_a_listing_of_configuration_is_taken_by_its_daemon(text, tmp_path):
    tables = re.split(r"^(?=# \w+\.toml)", text, flags=re.MULTILINE)
    for table in filter(str.strip, tables):
        parsed = tomllib.loads(table)
        named = re.match(r"# (\w+)\.toml", table)
        keys = [re.sub("_", "-", key) for key in parsed]
        if named and named[1] in PROGRAMS:
            daemons = [named[1]]
        else:
            daemons = [
                name for name in PROGRAMS if name != "lockstepctl" and all(f"--{key}" in flags_of(name) for key in keys)
            ]
        assert daemons or {"allow", "deny"} & parsed.keys(), f"no daemon has all of {keys}"
        for daemon in daemons:
            (tmp_path / "file.toml").write_text(table)
            ran = subprocess.run(
                [PROGRAMS[daemon], "--config", tmp_path / "file.toml", "--print-config"], capture_output=True, text=True
            )
            assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("text", blocks("python"))
def test_a_listing_in_python_calls_what_there_is_by_keywords_that_it_takes(text):
    for node in ast.walk(ast.parse(text)):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").startswith("lockstep")
            and "integrations" not in node.module
        ):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)
        if isinstance(node, ast.Attribute) and named(node).startswith("lockstep."):
            found(named(node))
        if isinstance(node, ast.Call) and named(node.func).startswith("lockstep."):
            check_call(node)


def named(node: ast.AST) -> str:
    """ "a.b.c" of a chain of attributes; "" of anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = named(node.value)
        return f"{before}.{node.attr}" if before else ""
    return ""


def found(name: str) -> object:
    value: object = importlib.import_module("lockstep")
    for part in name.split(".")[1:]:
        if part == "integrations":
            return None
        value = getattr(value, part)
    return value


def check_call(node: ast.Call) -> None:
    function = found(named(node.func))
    if not callable(function):
        return
    signature = inspect.signature(function)
    takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    for keyword in node.keywords:
        if keyword.arg and not takes_any:
            assert keyword.arg in signature.parameters, f"{named(node.func)} takes no {keyword.arg}"


@pytest.mark.parametrize("page", prose.pages())
def test_an_option_of_a_daemon_that_a_page_names_is_there(page):
    """In `code`, where a daemon or lockstepctl is named in the same piece of code."""
    for code in re.findall(r"`([^`\n]+)`", prose.without_code((ROOT / page).read_text())):
        words = code.split()
        program = words[0] if words and words[0] in PROGRAMS else ""
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", code) if program else []:
            known = flags_of(program).union(*(flags_of(program, *each.split()) for each in reference.commands(program)))
            assert flag in known, f"{code}: {program} has no {flag}"
