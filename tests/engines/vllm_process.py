"""Programs with vLLM's packages: a process of its own, for vLLM must not be imported into the one that runs the tests."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = _ROOT / ".cache" / "vllm"


def vllm_environment(*packages: Path) -> "dict[str, str]":
    """The environment of a Python process that can import vLLM, and what is in ``packages``."""
    assert _PACKAGES.is_dir(), f"{_PACKAGES} is missing: tests/run.sh installs it"
    path = os.pathsep.join(map(str, [*packages, _PACKAGES]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


class VllmProgram:
    """A program of this directory that answers lines of JSON with lines of JSON."""

    def __init__(self, name: str, *packages: Path) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(name))],
            env=vllm_environment(*packages),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def ask(self, **request: Any) -> "dict[str, Any]":
        """The answer; AssertionError with what the program says if there is none, or an "error" in it."""
        try:
            self._process.stdin.write(json.dumps(request, default=str) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: there is no answer, which is told below
        line = self._process.stdout.readline()
        assert line, f"ended with {self._process.wait()}: {self._said()}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        """Ends the process, which has nothing to lose."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:]


class VllmLoader:
    """What vLLM's own loaders make of checkpoints."""

    def __init__(self) -> None:
        self._program = VllmProgram("vllm_loader.py")

    def parameters(
        self,
        checkpoint: Path,
        tensor: "tuple[int, int]" = (1, 0),
        data: "tuple[int, int]" = (1, 0),
        expert_parallel: bool = False,
    ) -> "dict[str, torch.Tensor]":
        """A rank's parameters by name. ``tensor``, ``data``: (size, rank)."""
        with tempfile.TemporaryDirectory(prefix="lockstep-vllm-") as directory:
            output = Path(directory) / "parameters.safetensors"
            self._program.ask(
                checkpoint=checkpoint, tensor=tensor, data=data, expert_parallel=expert_parallel, output=output
            )
            return load_file(output)

    def close(self) -> None:
        """Ends the process."""
        self._program.close()
