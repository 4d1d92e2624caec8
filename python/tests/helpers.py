"""Waiting, threads, a follower that serves, and what is in a module."""

import threading
import time
from typing import Any, Callable

import torch


def wait_until(condition: "Callable[[], Any]", what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timed out: {what}"
        time.sleep(0.005)


def in_background(function: "Callable[[], Any]") -> threading.Thread:
    """A thread that runs ``function``; its ``result`` is what that returned."""
    thread = threading.Thread(target=lambda: setattr(thread, "result", function()), daemon=True)
    thread.start()
    return thread


def values(module: torch.nn.Module) -> "set[float]":
    return {value for tensor in module.state_dict().values() for value in tensor.flatten().tolist()}


def serving(receiver, follow, module, **options):
    """A follower and its rank; it serves version 1, all ones."""
    follower = follow(module, **options)
    rank = receiver.accept()
    rank.attached()
    rank.commit(1, 1.0)
    return follower, rank
