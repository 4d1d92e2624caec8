"""Handle: a publisher of the C ABI, which is opened once and closed once, and how it is called."""

import ctypes
import threading
import weakref
from typing import Any

from lockstep.core import abi
from lockstep.core.delayed_interrupt import delayed_interrupt
from lockstep.core.errors import Error, StateError, from_code
from lockstep.core.forked import FORKED, close_after_fork
from lockstep.core.interruption import Interruption


class Handle:
    """Calls of one handle happen one at a time; the end of the process closes it. In a process that is forked off it is
    closed."""

    def __init__(self) -> None:
        self._library = abi.load()
        self._lock = threading.RLock()
        self._handle: "ctypes.c_void_p | None" = None
        self._finalizer: "weakref.finalize[Any, Any] | None" = None
        self._closed = "is closed"
        self._interruption = Interruption()
        self._calling = False  # the library waits, perhaps in this thread: handlers of signals run there
        self._close_after_call = False
        close_after_fork(self)

    def close(self) -> None:
        """Leaves the agent; a version being written is aborted. Closing twice is fine. Where a signal's handler closes
        in the middle of a call, that call ends with StateError."""
        with self._lock, delayed_interrupt():
            if self._calling:
                self._close_after_call = True
                self._interruption.end_call(StateError("the publisher was closed meanwhile"))
            else:
                self._close()

    def _close(self) -> None:
        self._handle = None
        if self._finalizer is not None:
            self._finalizer()

    def _close_after_fork(self) -> None:
        self._lock = threading.RLock()
        self._handle = None
        self._closed = FORKED
        if self._finalizer is not None:
            self._finalizer.detach()  # another thread may have been in the middle of a call

    def _open(self, **options: Any) -> None:
        """``options``: fields of lockstep_options."""
        handle = ctypes.c_void_p()
        given = abi.COptions(
            abi_version=abi.ABI_VERSION,
            interrupted=self._interruption.callback,
            **options,
        )
        try:
            with delayed_interrupt():  # the finalizer must get the handle that the library opens
                code = self._library.lockstep_open(ctypes.byref(given), ctypes.byref(handle))
                if code == 0:
                    self._handle = handle
                    self._finalizer = weakref.finalize(self, self._library.lockstep_close, handle)
                self._interruption.raise_pending()
                if code != 0:
                    raise from_code(code, self._last_error(None))
        except BaseException:  # the caller has no handle to close
            self.close()
            raise

    def _call(self, function: str, *arguments: Any) -> None:
        with self._lock:
            self._raise(self._ask(function, *arguments))

    def _ask(self, function: str, *arguments: Any) -> "Error | None":
        """What the library answers. ``_raise`` of it ends the call."""
        with self._lock:
            if self._calling:
                raise StateError(f"{function}: a call is under way; a signal's handler may only close")
            handle = self._open_handle()
            self._calling = True
            try:
                code = getattr(self._library, f"lockstep_{function}")(handle, *arguments)
                return None if code == 0 else from_code(code, self._last_error(handle))
            finally:
                self._calling = False
                if self._close_after_call:
                    self._close()

    def _raise(self, error: "Error | None") -> None:
        self._interruption.raise_pending()
        if error is not None:
            raise error

    def _open_handle(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise StateError(f"the publisher {self._closed}")
        return self._handle

    def _last_error(self, handle: "ctypes.c_void_p | None") -> str:
        text: bytes = self._library.lockstep_last_error(handle)
        return text.decode(errors="replace")
