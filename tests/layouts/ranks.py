"""Ranks as forked processes that run a test's functions.

    with Ranks(topology) as ranks:         # of a trainer; Ranks(8): eight processes that do not know of one another
        ranks.call(build, "llama")         # build(rank, "llama") on every rank; a list of what it returned
        ranks.start(publish, 2)            # the same without waiting
        ranks.kill(1)
        ranks.answers(only=[0])

`rank` is a Rank, which keeps what a function leaves on it for the next one.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from topologies import Topology


class Rank(SimpleNamespace):
    """One rank, inside its process: `number`, `topology`, and whatever the test's functions keep."""


class Ranks:
    """All ranks of one trainer, joined to one world, or processes on their own.

    Args:
        topology: how many there are, and Megatron's groups; a number: they join nothing.
        prepare: called in each process with the rank's number before it joins (namespaces, environment).
        timeout_s: how long an answer may take.
        start: "spawn" where the caller has used CUDA, which no forked process can; functions must be importable then.
    """

    def __init__(
        self,
        topology: "Topology | int",
        prepare: "Callable[[int], None] | None" = None,
        timeout_s: float = 60,
        start: str = "fork",
    ) -> None:
        self._timeout_s = timeout_s
        self._cleanup = contextlib.ExitStack()
        folder = self._cleanup.enter_context(tempfile.TemporaryDirectory())
        self.processes: "list[Any]" = []
        self._pipes: "list[Any]" = []
        context = multiprocessing.get_context(start)
        for number in range(topology if isinstance(topology, int) else topology.world):
            here, there = context.Pipe()
            self._pipes.append(here)
            arguments = (number, topology, f"file://{folder}/store", prepare, there, list(self._pipes))
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
        self._cleanup.callback(self._end)
        try:
            self.answers()
        except BaseException:
            self.close()
            raise

    def call(
        self, function: "Callable[..., Any]", *arguments: Any, only: "Iterable[int] | None" = None, **options: Any
    ) -> "list[Any]":
        """function(rank, *arguments, **options) on those ranks, all at once; what they returned, in order."""
        self.start(function, *arguments, only=only, **options)
        return self.answers(only)

    def start(
        self, function: "Callable[..., Any]", *arguments: Any, only: "Iterable[int] | None" = None, **options: Any
    ) -> None:
        """The same without waiting for the answers."""
        for number in self._numbers(only):
            self._pipes[number].send((function, arguments, options))

    def answers(self, only: "Iterable[int] | None" = None) -> "list[Any]":
        """One answer of each of those ranks. AssertionError shows the first failure as it happened on its rank."""
        waiting = {self._pipes[number]: number for number in self._numbers(only)}
        answers: "dict[int, Any]" = {}
        while waiting:
            ready = multiprocessing.connection.wait(list(waiting), self._timeout_s)
            assert ready, f"ranks {sorted(waiting.values())} did not answer in {self._timeout_s:g} s"
            for pipe in ready:
                number = waiting.pop(pipe)
                answers[number] = _received(pipe, number)
        return [answers[number] for number in sorted(answers)]

    def kill(self, number: int) -> None:
        """SIGKILL, and waits until the process is gone."""
        os.kill(self.processes[number].pid, signal.SIGKILL)
        self.processes[number].join()

    def close(self) -> None:
        """Ends all ranks, whatever they are doing."""
        self._cleanup.close()

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _numbers(self, only: "Iterable[int] | None") -> "list[int]":
        return list(range(len(self._pipes)) if only is None else only)

    def _end(self) -> None:
        for process in self.processes:
            process.kill()
        for process, pipe in zip(self.processes, self._pipes):
            process.join()
            pipe.close()


def _received(pipe: Any, number: int) -> Any:
    try:
        fine, value = pickle.loads(pipe.recv_bytes())
    except EOFError:
        raise AssertionError(f"rank {number} ended without an answer") from None
    assert fine, f"rank {number} failed:\n{value}"
    return value


def _serve(
    number: int,
    topology: "Topology | int",
    init_method: str,
    prepare: "Callable[[int], None] | None",
    pipe: Any,
    not_mine: "list[Any]",
) -> None:
    for other in not_mine:
        other.close()
    torch.set_num_threads(1)
    rank = Rank(number=number, topology=topology)

    def joined(rank: Rank) -> None:
        if prepare is not None:
            prepare(number)
        if not isinstance(topology, int):
            from topologies import join  # brings all of Megatron

            join(topology, number, init_method)

    function, arguments, options = joined, (), {}
    while True:
        try:
            answer = (True, function(rank, *arguments, **options))
        except BaseException:
            answer = (False, traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))  # not send(): that would pass tensors by shared memory
        try:
            function, arguments, options = pipe.recv()
        except EOFError:
            os._exit(0)
