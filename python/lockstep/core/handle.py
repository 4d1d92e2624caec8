"""Handle: what Publisher and Exporter are over the C ABI, something opened once and closed once."""

import ctypes
import threading
import weakref
from typing import Any

from lockstep.core import abi
from lockstep.core.delayed_interrupt import delayed_interrupt
from lockstep.core.errors import StateError, from_code
from lockstep.core.forked import FORKED, close_after_fork
from lockstep.core.interruption import Interruption


class Handle:
    """Calls of one handle happen one at a time; leaving its ``with`` block, or the end of the process, closes it.
    In a process that is forked off it is closed.

    Subclasses give the names of their functions in the library.
    """

    _prefix = ""  # "lockstep_exporter_"
    _error_function = ""

    def __init__(self) -> None:
        self._library = abi.load()
        self._lock = threading.RLock()
        self._handle: "ctypes.c_void_p | None" = None
        self._finalizer: "weakref.finalize[Any, Any] | None" = None
        self._closed = "is closed"
        self._interruption = Interruption()
        close_after_fork(self)

    @property
    def committed_version(self) -> int:
        """The newest version this rank knows to be committed by all ranks; 0 for none.

        A rank that is done before others gets it with its next commit.
        """
        with self._lock:
            return int(self._function("committed_version")(self._open_handle()))

    def close(self) -> None:
        """Leaves the agent; a version being written is aborted. Closing twice is fine."""
        with self._lock, delayed_interrupt():
            self._handle = None
            if self._finalizer is not None:
                self._finalizer()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _close_after_fork(self) -> None:
        self._lock = threading.RLock()
        self._handle = None
        self._closed = FORKED
        if self._finalizer is not None:
            self._finalizer.detach()  # another thread may have been in the middle of a call

    def _open(self, options: Any) -> None:
        handle = ctypes.c_void_p()
        options.interrupted = self._interruption.callback
        with delayed_interrupt():  # what the library has opened is closed by somebody
            code = self._function("open")(ctypes.byref(options), ctypes.byref(handle))
            self._interruption.raise_pending()
            if code != 0:
                raise from_code(code, self._last_error(None))
            self._handle = handle
            self._finalizer = weakref.finalize(self, self._function("close"), handle)

    def _call(self, function: str, *arguments: Any) -> None:
        with self._lock:
            handle = self._open_handle()
            code = self._function(function)(handle, *arguments)
            self._interruption.raise_pending()
            if code != 0:
                raise from_code(code, self._last_error(handle))

    def _function(self, name: str) -> Any:
        return getattr(self._library, self._prefix + name)

    def _open_handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise StateError(f"the {type(self).__name__.lower()} {self._closed}")
        return self._handle

    def _last_error(self, handle: "ctypes.c_void_p | None") -> str:
        text: bytes = getattr(self._library, self._error_function)(handle)
        return text.decode(errors="replace")
