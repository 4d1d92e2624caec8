"""The part of an inference server that has the weights: control calls take turns at it.

`violations` lists what a driver must never bring a server to: what it would make tokens with is checked when it resumes.
"""

import threading

from served_model import ServedModel


class Died(Exception):
    """The engine is no more: its callers get no answer."""


class EngineCore:
    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.lock = threading.Lock()
        self.flushed = 0  # the load that the cache is of
        self.ended = False
        self.violations: "list[str]" = []
        self.on_death = lambda: None

    def call(self, task):
        """What `task()` returned. Died when the core ends before."""
        with self.lock:
            outcome = None if self.ended else task()
        if self.ended:
            raise Died
        return outcome

    def die(self, why: str) -> None:
        """As an exception does that is not caught: nothing is answered any more."""
        self.violations.append(f"died: {why}")
        self.ended = True
        self.on_death()

    def flush(self) -> None:
        self.flushed = self.model.load

    def resume(self) -> None:
        if self.model.mixed():
            self.violations.append("resumed with weights that are a mix")
        if self.flushed != self.model.load:
            self.violations.append("resumed with a cache that other weights computed")
