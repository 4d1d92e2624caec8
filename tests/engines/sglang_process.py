"""Programs with SGLang's packages, and with its models as a GPU has them (sglang_model.py)."""

from pathlib import Path

import torch
from engine_program import ROOT, EngineProgram

_PACKAGES = ROOT / ".cache" / "sglang"
_STAND_INS = Path(__file__).parent / "real_sglang" / "packages"


class SglangProgram(EngineProgram):
    """A program of this directory that can import SGLang.

    Args:
        models: the package of models that SGLang imports at once, and others only when asked for; empty: it imports all.
    """

    def __init__(self, name: str, *packages: Path, models: str = "") -> None:
        assert _PACKAGES.is_dir(), f"{_PACKAGES} is missing: tests/run.sh installs it"
        super().__init__(
            name,
            [*packages, _STAND_INS, _PACKAGES, ROOT / "python"],
            lambda directory: {"SGLANG_EXTERNAL_MODEL_PACKAGE": models, "SGLANG_CACHE_DIR": directory},
        )


class SglangLoader:
    """What SGLang's own loaders make of checkpoints, as a rank.

    Its functions take:
        tensor: (size, rank).
        expert_shares: experts are spread over as many.
        fused: where SGLang can have shared experts behind the others, in one stack, it has.
    """

    def __init__(self) -> None:
        self._program = SglangProgram("sglang_loader.py", models="placed_models")

    def parameters(
        self, checkpoint: Path, tensor: "tuple[int, int]" = (1, 0), expert_shares: int = 1, fused: bool = False
    ) -> "dict[str, torch.Tensor]":
        """By name."""
        return self._program.tensors(
            "load", checkpoint=checkpoint, tensor=tensor, expert_shares=expert_shares, fused=fused
        )

    def differences(
        self, checkpoint: Path, tensor: "tuple[int, int]" = (1, 0), expert_shares: int = 1, fused: bool = False
    ) -> "list[str]":
        """Where carrying out a recording of the loader gives other bits than the loader."""
        return self._program.ask(
            "differences", checkpoint=checkpoint, tensor=tensor, expert_shares=expert_shares, fused=fused
        )

    def close(self) -> None:
        """Ends the process."""
        self._program.close()
