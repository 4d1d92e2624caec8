"""Which modules of the package import which: core nothing of it, export and engine core, daemons where programs are, the
package itself and integrations all."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "lockstep"
ALLOWED = {
    "": {"control", "core", "daemons", "export", "engine", "receipts"},
    "core": {"core"},
    "programs": {"core"},
    "control": {"core", "programs"},
    "receipts": {"control", "core"},
    "daemons": {"core", "daemons", "programs"},
    "export": {"core", "export"},
    "engine": {"core", "engine"},
    "integrations": {"", "control", "core", "daemons", "export", "engine", "integrations"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PACKAGE.rglob("*.py")}


def subpackage(module: str) -> str:
    """The "core" of "lockstep.core.errors"; "" for the package itself."""
    return module.split(".")[1] if "." in module else ""


def imports_of(module: str) -> "set[str]":
    """The modules of the package that ``module`` imports, anywhere in its code."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in submodules}
    return {name for name in found if name.split(".")[0] == "lockstep"}


IMPORTS = {module: imports_of(module) for module in MODULES}


def test_every_import_is_of_a_module_that_is_there():
    assert {name for names in IMPORTS.values() for name in names} <= set(MODULES)


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_what_its_side_may(module):
    for name in IMPORTS[module]:
        assert subpackage(name) in ALLOWED[subpackage(module)], f"{module} imports {name}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_private_modules_are_imported_by_their_own_subpackage_only(module):
    for name in IMPORTS[module]:
        private = name.rpartition(".")[2].startswith("_")
        assert not private or subpackage(name) == subpackage(module), f"{module} imports {name}"


def test_no_modules_import_each_other_in_a_circle():
    done: "set[str]" = set()

    def visit(module: str, path: "tuple[str, ...]") -> None:
        assert module not in path, " -> ".join((*path, module))
        if module not in done:
            for name in sorted(IMPORTS[module]):
                visit(name, (*path, module))
            done.add(module)

    for module in sorted(MODULES):
        visit(module, ())


def test_importing_the_package_imports_neither_pytorch_nor_numpy():
    program = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import lockstep; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    modules = result.stdout.split()
    assert "lockstep.export" in modules
    assert not {"torch", "numpy", "lockstep.engine"} & set(modules)
