"""A daemon's command line, and what the program itself makes of it."""

import re
import subprocess
from dataclasses import dataclass
from typing import Mapping, Sequence, Union

from lockstep import programs
from lockstep.core.errors import BadDataError, IoError

Option = Union[str, int, float, bool, None, Sequence[str]]


@dataclass(frozen=True)
class Command:
    """``name`` of the program, and its options: ``{"lane_listen": "127.0.0.1:0"}``. A list is an option that is given
    several times; None and "" leave an option at its default."""

    name: str
    options: "Mapping[str, Option]"

    def words(self) -> "list[str]":
        """What is executed."""
        flags = []
        for key, value in self.options.items():
            for each in [value] if isinstance(value, (str, int, float, type(None))) else value:
                if each is None or each == "":
                    continue
                text = str(each).lower() if isinstance(each, bool) else str(each)
                flags.append(f"--{key.replace('_', '-')}={text}")
        return [programs.find(self.name), *flags]

    def description(self) -> "dict[str, str]":
        """By which two daemons that were started alike are known: the program's version, and its whole configuration,
        from flags, environment and files, a key each. BadDataError: the options are none of the program's."""
        configuration = self._asked("--print-config").splitlines()
        pairs = (line.rpartition("  # ")[0].partition(" = ") for line in configuration)
        return {"version": self._asked("--version").strip(), **{key: value for key, _, value in pairs}}

    def known(self) -> "list[str]":
        """The names of the options that the program has."""
        return [flag.replace("-", "_") for flag in re.findall(r"^  --([a-z-]+)", self._asked("--help"), re.MULTILINE)]

    def _asked(self, question: str) -> str:
        program, *flags = self.words()
        try:
            result = subprocess.run(
                [program, question, *flags], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/"
            )
        except OSError as error:
            raise IoError(f"{program}: {error.strerror}") from error
        if result.returncode != 0:
            raise BadDataError(result.stderr.strip() or f"{program} {question} ended with {result.returncode}")
        return result.stdout
