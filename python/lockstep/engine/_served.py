"""Which version an engine has."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Served:
    """A version as a rank has it: run (32 hex digits) and number. ``label``: what its trainer calls it, "" for nothing
    or when that is not known; versions are equal whatever it is."""

    run: str
    version: int
    label: str = field(default="", compare=False)
