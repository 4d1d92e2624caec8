"""A program with an engine's packages, in a process of its own: those that run tests must not import them. For vllm_process.py
and sglang_process.py."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]

_ANSWER_S = 300  # the first one is after all imports, on a machine that may be busy


class EngineProgram:
    """A program of this directory that answers requests (json_program.py), and can import what is in ``packages``.

    Args:
        environment: variables beside those of this process, from a directory that is the program's own.
    """

    def __init__(
        self, name: str, packages: "Iterable[Path]", environment: "Callable[[str], Mapping[str, str]]"
    ) -> None:
        self._errors = tempfile.TemporaryFile(mode="w+")
        self._directory = tempfile.TemporaryDirectory(prefix="lockstep-engine-")
        common = {
            "PYTHONPATH": os.pathsep.join(map(str, packages)),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(name))],
            env={**os.environ, **common, **environment(self._directory.name)},
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

    def tensors(self, do: str, **arguments: Any) -> "dict[str, torch.Tensor]":
        """Asks, and waits for the tensors that the program saves as ``output``."""
        output = Path(self._directory.name) / "tensors.safetensors"
        self.ask(do, output=output, **arguments)
        return load_file(output)

    def close(self) -> None:
        """Ends the process, which has nothing to lose."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()
        self._directory.cleanup()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-4000:]


def ask_all(programs: "list[EngineProgram]", do: str, **arguments: Any) -> "list[Any]":
    """All at once; their answers."""
    for program in programs:
        program.start(do, **arguments)
    return [program.answer() for program in programs]
