"""Which version an engine has."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Served:
    """A version as a rank has it: run (32 hex digits) and number."""

    run: str
    version: int
