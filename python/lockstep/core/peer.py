"""What this package says of itself, in the line of common/peer/peer.h: an engine's rank to a receiver."""

from pathlib import Path

__all__ = ["LINE", "RELEASE"]

RELEASE = Path(__file__).resolve().parents[1].joinpath("VERSION").read_text().strip()

LINE = f"engine_rank/{RELEASE} protocol=1"
