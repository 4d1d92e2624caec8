"""What a rank says of itself to a receiver, in the line of common/peer/peer.h."""

from pathlib import Path

__all__ = ["LINE", "RELEASE"]

RELEASE = Path(__file__).resolve().parents[1].joinpath("VERSION").read_text().strip()

LINE = f"engine_rank/{RELEASE} protocol=1-1"
