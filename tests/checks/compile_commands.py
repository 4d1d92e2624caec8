"""How each C++ source is compiled, as clang's tools take it, out of Bazel's own account of its actions.

compile_commands.py [TARGETS]      prints compile_commands.json; //... unless given
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GCC_ONLY = {"-fno-canonical-system-headers", "-Wunused-but-set-parameter", "-Wno-free-nonheap-object"}
# Clang 14 has coroutines in std, and does not say so in the way that libstdc++ and Asio ask.
COROUTINES = ["-D__cpp_impl_coroutine=201902L", "-DASIO_HAS_CO_AWAIT=1", "-DASIO_HAS_STD_COROUTINE=1"]
MISSING = ["-Wno-ignored-attributes"]  # it has not all of GCC's
LOCKS = ["-Wthread-safety"]  # common/base/mutex.h


def actions(targets: str) -> "list[dict[str, Any]]":
    query = ["bazel", "aquery", "--noshow_progress", "--ui_event_filters=-info", "--include_artifacts=false"]
    command = [*query, "--output=jsonproto", f'mnemonic("CppCompile", {targets})']
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)["actions"]


def entry(arguments: "list[str]", outputs: "dict[str, str]") -> "dict[str, Any]":
    """Our sources as they stand here: Bazel's own directory of links to them is made again by each of its builds."""
    source = arguments[arguments.index("-c") + 1]
    kept = [
        outputs.get(argument.split("/")[0], "") + argument for argument in arguments[1:] if argument not in GCC_ONLY
    ]
    return {"directory": str(ROOT), "file": source, "arguments": ["clang++", *kept, *COROUTINES, *MISSING, *LOCKS]}


def bazel_info(key: str) -> str:
    return subprocess.run(["bazel", "info", key], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def compile_commands(targets: str = "//...") -> "list[dict[str, Any]]":
    """An entry for each of our own sources; generated ones are left out."""
    outputs = {"bazel-out": bazel_info("execution_root") + "/", "external": bazel_info("output_base") + "/"}
    entries = {}
    for action in actions(targets):
        made = entry(action["arguments"], outputs)
        if (ROOT / made["file"]).exists() and not made["file"].startswith("bazel-out/"):
            entries[made["file"]] = made
    return [entries[name] for name in sorted(entries)]


if __name__ == "__main__":
    print(json.dumps(compile_commands(*sys.argv[1:]), indent=1))
