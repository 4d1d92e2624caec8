"""Programs with vLLM's packages."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from engine_program import ROOT, EngineProgram
from real_server import install_package

_PACKAGES = ROOT / ".cache" / "vllm"


class VllmProgram(EngineProgram):
    """A program of this directory that can import vLLM, and what is in ``packages``."""

    def __init__(self, name: str, *packages: Path) -> None:
        assert _PACKAGES.is_dir(), f"{_PACKAGES} is missing: tests/run.sh installs it"
        super().__init__(
            name,
            [*packages, _PACKAGES, ROOT / "tests/layouts"],
            lambda directory: {
                "VLLM_TARGET_DEVICE": "cpu",  # the wheel is the one for GPUs
                "VLLM_CACHE_ROOT": directory,
                "VLLM_LOGGING_LEVEL": "ERROR",
                "VLLM_NO_USAGE_STATS": "1",
            },
        )


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
        whole_tower: bool = False,
    ) -> "dict[str, torch.Tensor]":
        """A rank's parameters by name (vllm_model.py). ``tensor``, ``data``: (size, rank)."""
        return self._program.tensors(
            "load",
            checkpoint=checkpoint,
            tensor=tensor,
            data=data,
            expert_parallel=expert_parallel,
            whole_tower=whole_tower,
        )

    def close(self) -> None:
        """Ends the process."""
        self._program.close()


def attach(stack: ExitStack, rank: VllmProgram, start: Path, socket: Path, model: str, place: "dict[str, Any]") -> None:
    """A rank builds the checkpoint in ``start``, and follows ``model`` in place until the stack ends."""
    rank.ask("load_plugins")
    rank.ask("build", checkpoint=start, **place)
    rank.ask("load", checkpoint=start)
    rank.ask("create_engine", backend="lockstep")
    rank.ask("init", init_info={"socket": str(socket), "model": model})
    stack.callback(rank.ask, "shut_down")


def vllm_rank(directory: Path) -> VllmProgram:
    """A rank of vLLM with our package installed into ``directory``."""
    return VllmProgram("vllm_rank.py", *install_package(directory))
