"""Which readers are inside a Gate, in whichever threads, tasks and generators they come and leave."""

import asyncio
import contextvars
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Iterator

import pytest
from helpers import in_background, wait_until

import lockstep
from lockstep.engine import Served
from lockstep.engine._gate import Gate

V1, V2 = Served("ab" * 16, 1), Served("ab" * 16, 2)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    gate.open(V1)
    yield gate
    gate.close()


def stream(gate: Gate, timeout: float = 0.1) -> "Iterator[Served]":
    """An answer in two parts, read inside."""
    with gate.reading(timeout) as served:
        yield served
        yield served


def shutting(gate: Gate) -> threading.Thread:
    """A writer that waits for those inside."""
    writer = in_background(gate.shut)
    wait_until(lambda: gate.served is None, "the gate is shut")
    return writer


def still_waits(writer: threading.Thread) -> bool:
    time.sleep(0.05)
    return writer.is_alive()


def is_through(writer: threading.Thread) -> bool:
    writer.join(60)
    return not writer.is_alive()


def test_the_writer_waits_for_the_last_of_two_generators_that_left_in_the_order_they_came(gate):
    first, second = stream(gate), stream(gate)
    assert (next(first), next(second)) == (V1, V1)
    first.close()
    writer = shutting(gate)
    assert still_waits(writer)
    second.close()
    assert is_through(writer)


def test_the_writer_waits_for_every_one_of_the_tasks_of_one_thread(gate):
    async def read(leave: asyncio.Event) -> None:
        with gate.reading(60):
            await leave.wait()

    async def main() -> None:
        leave = [asyncio.Event(), asyncio.Event()]
        tasks = [asyncio.create_task(read(event)) for event in leave]
        await asyncio.sleep(0.01)
        leave[0].set()
        await tasks[0]
        writer = await asyncio.to_thread(shutting, gate)
        assert await asyncio.to_thread(still_waits, writer)
        leave[1].set()
        await tasks[1]
        assert await asyncio.to_thread(is_through, writer)

    asyncio.run(main())


def test_a_new_task_waits_while_another_one_of_its_thread_is_inside_and_the_writer_waits(gate):
    async def read() -> Served:
        async with gate.reading(0.05) as served:
            return served

    async def main() -> None:
        leave = asyncio.Event()

        async def stay() -> None:
            with gate.reading(60):
                await leave.wait()

        staying = asyncio.create_task(stay())
        await asyncio.sleep(0.01)
        writer = await asyncio.to_thread(shutting, gate)
        with pytest.raises(lockstep.DeadlineError, match="was not served within"):
            await asyncio.create_task(read())
        leave.set()
        await staying
        assert await asyncio.to_thread(is_through, writer)

    asyncio.run(main())


@pytest.mark.parametrize("context", ["the thread's", "a copy for each step"])
def test_a_reader_that_leaves_in_another_thread_has_left_in_both(gate, context):
    def step(function, *arguments):
        if context == "the thread's":
            return function(*arguments)
        return contextvars.copy_context().run(function, *arguments)

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        answer = stream(gate)
        assert one.submit(step, next, answer).result() == V1
        writer = shutting(gate)
        assert still_waits(writer)
        other.submit(step, answer.close).result()
        assert is_through(writer)
        for thread in (one, other):
            with pytest.raises(lockstep.DeadlineError, match="was not served within"):
                thread.submit(step, next, stream(gate)).result()
        gate.open(V2)
        again = stream(gate)
        assert one.submit(step, next, again).result() == V2
        writer = shutting(gate)
        assert still_waits(writer)
        one.submit(step, again.close).result()
        assert is_through(writer)


def test_a_nested_reader_passes_the_waiting_writer_also_in_to_thread_and_is_waited_for(gate):
    nested = stream(gate)

    async def main() -> threading.Thread:
        with gate.reading(60):
            writer = await asyncio.to_thread(shutting, gate)
            assert await asyncio.to_thread(next, nested) == V1
            assert still_waits(writer)
        return writer

    writer = asyncio.run(main())
    assert still_waits(writer)
    nested.close()
    assert is_through(writer)


def test_a_task_that_outlives_the_reader_that_made_it_waits_like_any_other(gate):
    async def read() -> None:
        async with gate.reading(0.05):
            pass

    async def main() -> None:
        with gate.reading(60):
            context = contextvars.copy_context()
        gate.shut()
        with pytest.raises(lockstep.DeadlineError, match="was not served within"):
            await asyncio.create_task(read(), context=context)

    asyncio.run(main())


def test_tasks_that_wait_let_those_inside_leave(gate):
    """Blocking, the second would stop the loop that the first needs to leave."""

    async def inside(leave: asyncio.Event) -> None:
        with gate.reading(60):
            await leave.wait()

    async def late() -> Served:
        async with gate.reading(60) as served:
            return served

    async def main() -> Served:
        leave = asyncio.Event()
        first = asyncio.create_task(inside(leave))
        await asyncio.sleep(0.01)
        writer = await asyncio.to_thread(shutting, gate)
        second = asyncio.create_task(late())
        await asyncio.sleep(0.05)
        assert not second.done()
        with pytest.raises(lockstep.StateError, match="async with follower.serving"):
            await blocking()
        leave.set()
        await first
        assert await asyncio.to_thread(is_through, writer)
        gate.open(V2)
        return await second

    async def blocking() -> None:
        await asyncio.create_task(read())

    async def read() -> None:
        with gate.reading(60):
            pass

    assert asyncio.run(main()) == V2


def test_a_task_waits_no_longer_than_it_says_and_leaves_nothing_behind(gate):
    async def read(timeout: "float | None") -> Served:
        async with gate.reading(timeout) as served:
            return served

    async def main() -> None:
        assert await read(None) == V1
        gate.shut()
        with pytest.raises(lockstep.DeadlineError, match="was not served within 0.05 s; nothing is"):
            await read(0.05)
        cancelled = asyncio.create_task(read(None))
        await asyncio.sleep(0.01)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        refused = asyncio.create_task(read(None))
        await asyncio.sleep(0.01)
        gate.refuse("no such model")
        with pytest.raises(lockstep.StateError, match="no such model"):
            await refused

    asyncio.run(main())
    assert gate.readers == 0 and not gate._wakers


def test_a_writer_that_gives_up_waits_no_longer_for_those_inside(gate):
    with gate.reading(60):
        with pytest.raises(lockstep.StateError, match="1 of its readers did not leave"):
            gate.shut(given_up=lambda: True)
        assert gate.served is None


def test_a_reader_of_one_gate_is_no_reader_of_another(gate):
    shut = Gate()
    with gate.reading(60), pytest.raises(lockstep.DeadlineError, match="was not served within"):
        with shut.reading(0.05):
            pass


def test_a_writer_whose_gate_was_closed_with_readers_inside_gets_an_error(gate):
    with gate.reading(60):
        gate.close()
        with pytest.raises(lockstep.StateError, match="closed"):
            gate.shut()


def test_the_next_version_is_waited_for_of_whichever_run(gate):
    gate.open(Served("ab" * 16, 40))
    before = gate.wait_for(1, timeout=60)
    with pytest.raises(lockstep.DeadlineError, match="version 40 is"):
        gate.wait_for(None, timeout=0.05, after=before)
    next_run = Served("cd" * 16, 1)
    assert before.version == 40 and threading.Timer(0.05, gate.open, [next_run]).start() is None
    assert gate.wait_for(None, timeout=60, after=before) == next_run
    with pytest.raises(lockstep.DeadlineError, match="version 1 is"):
        gate.wait_for(2, timeout=0.05, after=before)
