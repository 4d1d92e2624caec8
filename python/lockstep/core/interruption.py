"""What ends a call of the library that waits: signals whose handlers raise, and each Ctrl-C that was noted."""

from typing import Generator, List

from lockstep.core import abi
from lockstep.core.delayed_interrupt import interrupts_noted


class Interruption:
    """Gives the library ``callback``, which it asks while it waits for the agent; handlers of signals run there.

    Calls to ``raise_pending`` and of the library happen one at a time.
    """

    def __init__(self) -> None:
        self._raised: "List[BaseException]" = []
        answers = _answers(self._raised)
        next(answers)
        self.callback = abi.INTERRUPTED(answers.send)

    def end_call(self, error: BaseException) -> None:
        """Ends the call that the library is in, a commit too, which then raises ``error``."""
        self._raised[:] = [error, error]

    def count(self) -> int:
        """How often the call was interrupted: what the library is answered."""
        return _count(self._raised)

    def raise_pending(self) -> None:
        """Raises what a handler raised first while the library waited, once."""
        if self._raised:
            first = self._raised[0]
            self._raised.clear()
            raise first


def _count(raised: "List[BaseException]") -> int:
    return len(raised) + interrupts_noted()


def _answers(raised: "List[BaseException]") -> "Generator[int, object, None]":
    """A generator, since a handler may run before the first line of a function, where nothing can catch what it
    raises, and ctypes drops that; a generator goes on inside its ``try``."""
    while True:
        try:
            while True:
                yield _count(raised)
        except GeneratorExit:
            return
        except BaseException as error:
            raised.append(error)
