"""Programs with SGLang's packages, and with its models as a GPU has them (sglang_model.py)."""

from pathlib import Path

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
