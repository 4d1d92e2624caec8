"""Programs with vLLM's packages, in processes of their own: those that run tests must not import them."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from real_server import install_package
from safetensors.torch import load_file

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = _ROOT / ".cache" / "vllm"

_ANSWER_S = 300  # the first one is after all imports, on a machine that may be busy


class VllmProgram:
    """A program of this directory that answers requests (json_program.py), and can import what is in ``packages``."""

    def __init__(self, name: str, *packages: Path) -> None:
        assert _PACKAGES.is_dir(), f"{_PACKAGES} is missing: tests/run.sh installs it"
        self._errors = tempfile.TemporaryFile(mode="w+")
        self._cache = tempfile.TemporaryDirectory(prefix="lockstep-vllm-")
        environment = {
            "PYTHONPATH": os.pathsep.join(map(str, [*packages, _PACKAGES])),
            "VLLM_TARGET_DEVICE": "cpu",  # the wheel is the one for GPUs
            "VLLM_CACHE_ROOT": self._cache.name,
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(name))],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def start(self, do: str, **arguments: Any) -> None:
        """Asks, without waiting for the answer."""
        with contextlib.suppress(BrokenPipeError):  # it has ended, and answer() says so
            self._process.stdin.write(json.dumps({"do": do, **arguments}, default=str) + "\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        """To the oldest request without one. AssertionError has the program's traceback, or its last lines."""
        ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER_S)
        assert ready, f"no answer within {_ANSWER_S} s: {self._said()}"
        line = self._process.stdout.readline()
        assert line, f"ended with {self._process.wait()}: {self._said()}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def ask(self, do: str, **arguments: Any) -> Any:
        """Asks, and waits for the answer."""
        self.start(do, **arguments)
        return self.answer()

    def close(self) -> None:
        """Ends the process, which has nothing to lose."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()
        self._cache.cleanup()

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
            place = {"tensor": tensor, "data": data, "expert_parallel": expert_parallel}
            self._program.ask("load", checkpoint=checkpoint, output=output, **place)
            return load_file(output)

    def close(self) -> None:
        """Ends the process."""
        self._program.close()


def vllm_rank(directory: Path) -> VllmProgram:
    """A rank of vLLM with our package installed into ``directory``."""
    return VllmProgram("vllm_rank.py", *install_package(directory))


def ask_all(ranks: "list[VllmProgram]", do: str, **arguments: Any) -> "list[Any]":
    """All ranks at once; their answers."""
    for rank in ranks:
        rank.start(do, **arguments)
    return [rank.answer() for rank in ranks]
