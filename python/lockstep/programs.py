"""Where Lockstep's programs are: the daemons, and ``lockstepctl``."""

import os
import sys
from pathlib import Path
from typing import Iterator

from lockstep.core.errors import NotFoundError

__all__ = ["find"]

_BUILT = {
    "trainer_agent": "trainer_agent/agent/trainer_agent",
    "raas_receiver": "raas_receiver/receiver/raas_receiver",
    "lockstepctl": "ctl/lockstepctl",
}


def find(name: str) -> str:
    """The path of "trainer_agent", "raas_receiver" or "lockstepctl": in the directory $LOCKSTEP_PROGRAMS where that is
    set, else in this package, or in the ``bazel-bin`` of the checkout that the package lies in. NotFoundError lists the
    places that were tried."""
    tried = list(_candidates(name))
    path = next((path for path in tried if path.is_file()), None)
    if path is None:
        raise NotFoundError(
            f"{name} is not at {' or '.join(map(str, tried))}; install the wheel, which has it inside, build it with "
            f"'bazel build //{_BUILT[name].replace(f'/{name}', f':{name}')}', or set LOCKSTEP_PROGRAMS to its directory"
        )
    return str(path)


def main() -> None:
    """The wheel's commands: becomes the program of this command's name, the same process, for signals and supervisors."""
    name = os.path.basename(sys.argv[0])
    os.execv(find(name), [name, *sys.argv[1:]])


def _candidates(name: str) -> "Iterator[Path]":
    if os.environ.get("LOCKSTEP_PROGRAMS"):
        yield Path(os.environ["LOCKSTEP_PROGRAMS"]).absolute() / name
        return
    package = Path(__file__).resolve().parent
    yield package / "programs" / name
    for directory in package.parents:
        if (directory / "WORKSPACE").exists():
            yield directory / "bazel-bin" / _BUILT[name]
