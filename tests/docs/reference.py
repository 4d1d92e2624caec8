"""Writes the pages of reference that are made from the code: docs/reference/options.md from the programs' manual pages,
docs/reference/python.md from docstrings, docs/scale.md from formulas.

    .cache/venv/bin/python tests/docs/reference.py

test_docs.py compares what it would write with what is there.
"""

import inspect
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Callable, Iterator

import scale

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "bazel-bin"
PROGRAMS = [
    BIN / "trainer_agent/agent/trainer_agent",
    BIN / "raas_receiver/receiver/raas_receiver",
    BIN / "ctl/lockstepctl",
]
MODULES = ["lockstep", "lockstep.engine", "lockstep.control"]

sys.path.insert(0, str(ROOT / "python"))


def plain(troff: str) -> str:
    """A line of a manual page as text."""
    return re.sub(r"\\f[BIR]|\\&", "", troff).replace("\\-", "-").replace("\\e", "\\")


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")


def options() -> str:
    """docs/reference/options.md."""
    page = ["# Options", "", "Every option of the three programs, as their `--help` and `--man` have it.", ""]
    for program in PROGRAMS:
        page += list(manual(subprocess.run([program, "--man"], capture_output=True, text=True, check=True).stdout))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(page)).rstrip() + "\n"


@cache
def commands(program: str) -> "list[str]":
    """A program's commands, as "log verify"."""
    [path] = [path for path in PROGRAMS if path.name == program]
    page = subprocess.run([path, "--man"], capture_output=True, text=True, check=True).stdout
    return [plain(command) for command in re.findall(r"^\.SS (.+)$", page, re.MULTILINE)]


def manual(page: str) -> "Iterator[str]":
    """A program's page: a heading, then for the program and each command what it is and a table of options."""
    for request, rest, lines in blocks(page):
        text = " ".join(plain(line) for line in lines)
        if request == ".TH":
            yield from ("", f"## {rest.split()[0].lower()}", "")
        elif request == ".SS":
            yield from ("", f"### lockstepctl {plain(rest)}", "", text, "")
        elif rest == "NAME":
            yield text.partition(" - ")[2].rstrip(".") + "."
        elif request == ".PP":
            yield from ("", text, "")
        elif request == "table":
            yield from ("", "| option | meaning |", "|---|---|")
        elif request == ".TP":
            yield f"| `{cell(plain(lines[0]))}` | {cell(plain(lines[1]))} |"


def blocks(page: str) -> "Iterator[tuple[str, str, list[str]]]":
    """Each request that begins something, with what follows on its line and the lines below."""
    parts = re.split(r"^(\.(?:TH|SH|SS|PP|TP))\b ?", page, flags=re.MULTILINE)[1:]
    in_table = False
    for request, body in zip(parts[::2], parts[1::2]):
        rest, *lines = body.rstrip("\n").split("\n")
        if request == ".TP" and not in_table:
            yield ("table", "", [])
        in_table = request == ".TP"
        yield (request, rest, lines)


def python() -> str:
    """docs/reference/python.md."""
    page = [
        "# Python",
        "",
        "Every public name of the package, with the first paragraph of its docstring. `help(lockstep.Publisher.publish)` has the",
        "arguments, their units, and what is raised. `lockstep.engine` needs PyTorch; `import lockstep` does not.",
    ]
    seen: "set[int]" = set()
    for name in MODULES:
        module = __import__(name, fromlist=["_"])
        members = {public: getattr(module, public) for public in sorted(module.__all__, key=str.lower)}
        new = {
            public: member
            for public, member in members.items()
            if id(member) not in seen and callable(member) and not inspect.ismodule(member)
        }
        seen |= {id(member) for member in new.values()}
        page += ["", f"## {name}", "", "| | |", "|---|---|"]
        page += [row(public, member) for public, member in new.items()]
        for public, member in new.items():
            rows = list(methods(public, member)) if inspect.isclass(member) else []
            if rows:
                page += ["", f"### {name}.{public}", "", "| | |", "|---|---|", *rows]
    return "\n".join(page) + "\n"


def methods(name: str, value: type) -> "Iterator[str]":
    if issubclass(value, Exception):
        return
    if "__init__" in vars(value) and not hasattr(value, "__dataclass_fields__"):
        yield row(name, vars(value)["__init__"], "a new one; its arguments are in the docstring of the class")
    for method, member in inspect.getmembers_static(value):
        function = getattr(member, "__func__", member)
        if (
            not method.startswith("_")
            and (isinstance(member, property) or inspect.isfunction(function))
            and function.__doc__
        ):
            yield row(f".{method}", function)


def row(name: str, value: Any, meaning: str = "") -> str:
    call = name
    if inspect.isfunction(value):
        parameters = [
            p.replace(annotation=p.empty)
            for p in inspect.signature(value).parameters.values()
            if p.name not in ("self", "cls")
        ]
        call += str(inspect.Signature(parameters))
    first = (inspect.getdoc(value) or "").partition("\n\n")[0]
    return f"| `{call}` | {meaning or cell(' '.join(first.split())).replace('``', '`')} |"


PAGES: "dict[str, Callable[[], str]]" = {
    "docs/reference/options.md": options,
    "docs/reference/python.md": python,
    "docs/scale.md": scale.page,
}


def main() -> None:
    for name, make in PAGES.items():
        (ROOT / name).write_text(make())


if __name__ == "__main__":
    main()
