"""The commands trainer_agent, raas_receiver and lockstepctl of an installed wheel."""

import os
import sys
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"


def main() -> None:
    """Becomes the program of the wheel that has this command's name: the same process, for signals and supervisors."""
    name = os.path.basename(sys.argv[0])
    os.execv(PROGRAMS / name, [name, *sys.argv[1:]])
