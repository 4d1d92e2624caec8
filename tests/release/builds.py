"""Builds of a later release, which tests/release/BUILD links: for tests of upgrades."""

from pathlib import Path

from harness import BIN, LOCKSTEPCTL, RAAS_RECEIVER, TRAINER_AGENT

PROGRAMS = (TRAINER_AGENT, RAAS_RECEIVER, LOCKSTEPCTL)
RELEASE = "99.0.0"  # what they say they are


def next_build(program: Path, build: str = "next") -> Path:
    """`build`: "next" speaks this release's protocol, "next_protocol" the one after it."""
    return BIN / f"tests/release/{build}/{program.name}"
