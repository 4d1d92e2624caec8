"""Keywords of functions that hand options on: an unknown one is an error of the function that its user called."""

import difflib
import functools
import inspect
from typing import Any, Callable, Collection, TypeVar, cast

_Function = TypeVar("_Function", bound="Callable[..., Any]")


def takes(options: type) -> "Callable[[_Function], _Function]":
    """Makes a function whose ``**options`` are the keys of a TypedDict refuse all other keywords."""

    def decorate(function: _Function) -> _Function:
        known = inspect.signature(function).parameters.keys() | options.__annotations__.keys()

        @functools.wraps(function)
        def checked(*arguments: Any, **keywords: Any) -> Any:
            refuse_unknown(function.__qualname__, keywords, known)
            return function(*arguments, **keywords)

        return cast(_Function, checked)

    return decorate


def refuse_unknown(function: str, given: "Collection[str]", known: "Collection[str]") -> None:
    """TypeError in Python's words, with the known keyword that is closest to the unknown one."""
    for name in given:
        if name not in known:
            near = "".join(f". Did you mean {close!r}?" for close in difflib.get_close_matches(name, known, 1))
            called = function.replace(".__init__", "")
            raise TypeError(f"{called}() got an unexpected keyword argument {name!r}{near}")
