"""The part of an inference server that makes tokens: one thread that takes tasks in turn and steps its requests.

A token is the digest of the weights that made it. `violations` lists what the server did and must never do, such as to
make a token from weights that are a mix, or with a cache that other weights computed.
"""

import queue
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field

from served_model import ServedModel


class Died(Exception):
    """The engine is no more: its callers get no answer."""


@dataclass
class Generation:
    """A request. `stuck` ones cannot be aborted; `cache` is what weights its key/value cache was computed with."""

    tokens_left: int
    stuck: bool = False
    tokens: "list[str]" = field(default_factory=list)
    cache: "str | None" = None
    finish_reason: str = ""
    done: threading.Event = field(default_factory=threading.Event)

    def finish(self, reason: str) -> None:
        self.finish_reason = reason
        self.done.set()


class EngineCore:
    def __init__(self, model: ServedModel, token_s: float) -> None:
        self.model = model
        self.token_s = token_s
        self.tasks: "queue.Queue" = queue.Queue()
        self.running: "list[Generation]" = []
        self.waiting: "list[Generation]" = []
        self.prefixes: "set[str]" = set()  # what weights the prefix cache was computed with
        self.stepping = True
        self.ended = False
        self.violations: "list[str]" = []
        self.on_death = lambda: None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def post(self, task) -> Future:
        """`task()` is called in the core's thread, after those before it. Its exception is the Future's."""
        future: Future = Future()
        self.tasks.put((task, future))
        return future

    def call(self, task):
        """What `task()` returned. Died when the core ends before."""
        future = self.post(task)
        while not self.ended:
            try:
                return future.result(timeout=0.1)
            except FutureTimeout:
                if future.done():
                    raise
        raise Died

    def die(self, why: str) -> None:
        """As an exception does that is not caught: nothing is answered any more."""
        self.violations.append(f"died: {why}")
        self.ended = True
        self.on_death()

    def end(self) -> None:
        self.ended = True
        self.tasks.put(None)

    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    def run(self) -> None:
        while not self.ended:
            active = self.stepping and self.busy()
            try:
                taken = self.tasks.get(timeout=self.token_s if active else 0.05)
            except queue.Empty:
                taken = None
            if taken is not None:
                task, future = taken
                try:
                    outcome = task()
                    if not self.ended:
                        future.set_result(outcome)
                except Exception as error:  # it is the caller's
                    future.set_exception(error)
            elif active:
                self.step()

    def step(self) -> None:
        self.running += self.waiting
        self.waiting = []
        weights = self.model.digest()
        if self.model.mixed():
            self.violations.append("tokens from weights that are a mix")
        for request in list(self.running):
            if request.cache is None:
                request.cache = next(iter(self.prefixes - {weights}), weights)
            if request.cache != weights:
                self.violations.append("a token whose cache was computed with other weights")
            request.tokens.append(weights)
            request.tokens_left -= 1
            if request.tokens_left <= 0:
                self.running.remove(request)
                self.prefixes.add(request.cache)
                request.finish("length")

    def retract(self) -> None:
        """Running requests wait again, without their cache."""
        for request in self.running:
            request.cache = None
        self.waiting = self.running + self.waiting
        self.running = []

    def abort(self) -> None:
        for request in [request for request in self.running + self.waiting if not request.stuck]:
            request.finish("abort")
        self.running = [request for request in self.running if request.stuck]
        self.waiting = [request for request in self.waiting if request.stuck]
