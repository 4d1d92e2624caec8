"""What ends a call of the library that waits: a signal whose handler raises, or a Ctrl-C that was noted."""

from typing import Generator, List

from lockstep.core import abi
from lockstep.core.delayed_interrupt import interrupt_noted


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
        """Ends the call that the library is in, which then raises ``error``."""
        self._raised[:] = [error]

    def raise_pending(self) -> None:
        """Raises what a handler raised while the library waited, once."""
        if self._raised:
            raise self._raised.pop()


def _answers(raised: "List[BaseException]") -> "Generator[bool, object, None]":
    """A generator, since a handler may run before the first line of a function, where nothing can catch what it
    raises, and ctypes drops that; a generator goes on inside its ``try``."""
    while True:
        try:
            while True:
                yield bool(raised) or interrupt_noted()
        except GeneratorExit:
            return
        except BaseException as error:
            raised[:] = [error]
