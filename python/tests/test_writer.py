"""What a rank writes into its own memory: the bytes that a write batch names, and no other."""

import contextlib
import random
import struct
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from write_batches import batch, sealed

from lockstep.core.errors import ProtocolError
from lockstep.core.gpu_memory import GpuMemory
from lockstep.engine import _devices, _writer
from lockstep.engine._memory import Place
from lockstep.engine._writer import Writer

CPU = torch.device("cpu")
FILL = 0xEE


class Memories:
    """Memories of these sizes, some bytes apart in one tensor, and what they should be."""

    def __init__(self, *sizes: int, begin: int = 64, apart: int = 24) -> None:
        self.held = torch.full((begin + sum(sizes) + apart * len(sizes),), FILL, dtype=torch.uint8)
        self.expected = bytearray([FILL]) * len(self.held)
        self.begins = []
        for size in sizes:
            self.begins.append(begin)
            begin += size + apart
        base = self.held.data_ptr()
        self.places = [Place(CPU, base + begin, size) for begin, size in zip(self.begins, sizes)]
        self.writer = Writer(self.places)

    def expect(self, memory: int, offset: int, new: bytes) -> None:
        at = self.begins[memory] + offset
        self.expected[at : at + len(new)] = new

    def are_as_expected(self) -> bool:
        return self.held.numpy().tobytes() == bytes(self.expected)

    def refusal(self, content: bytes) -> str:
        """Of a write batch; nothing was written."""
        with pytest.raises(ProtocolError) as refused:
            self.writer.stage(sealed(content))
        self.writer.write()
        assert self.are_as_expected()
        return str(refused.value)


def test_a_writer_that_is_made_in_inference_mode_writes_in_another_thread():
    with torch.inference_mode():
        memories = Memories(64)
    memories.writer.stage(sealed(batch([(0, 2, 0, (8,), b"ab")])))
    with ThreadPoolExecutor(1) as thread:
        thread.submit(memories.writer.write).result()
    memories.expect(0, 8, b"ab")
    assert memories.are_as_expected()


def test_units_of_every_width_go_to_their_places_in_every_memory():
    memories = Memories(4096, 512)
    runs = []
    for memory, unit, base, at in ((0, 8, 64, (0, 16)), (1, 4, 4, (8, 0)), (0, 2, 0, (2, 6, 4090)), (1, 1, 100, (3,))):
        values = [bytes([16 * unit + number] * unit) for number in range(len(at))]
        runs.append((memory, unit, base, at, b"".join(values)))
        for offset, value in zip(at, values):
            memories.expect(memory, base + offset, value)
    memories.writer.stage(sealed(batch(runs)))
    assert memories.held.eq(FILL).all()  # before it is told to write
    memories.writer.write()
    assert memories.are_as_expected()


def test_units_at_places_that_no_element_has_are_written_all_the_same():
    memories = Memories(256, begin=61)
    memories.writer.stage(sealed(batch([(0, 4, 0, (0, 9, 252), b"abcdefghijkl")])))
    for offset, value in ((0, b"abcd"), (9, b"efgh"), (252, b"ijkl")):
        memories.expect(0, offset, value)
    memories.writer.write()
    assert memories.are_as_expected()


def test_rows_are_copied_and_zeroed_whatever_their_alignment():
    memories = Memories(4096)
    memories.writer.stage(
        sealed(
            batch(
                copies=[((0, 0, 2, 16, 64), bytes(range(32))), ((0, 301, 3, 5, 7), b"abcdefghijklmno")],
                zeros=[(0, 2048, 2, 8, 256), (0, 1001, 1, 3, 0)],
            )
        )
    )
    memories.expect(0, 0, bytes(range(16)))
    memories.expect(0, 64, bytes(range(16, 32)))
    for row in range(3):
        memories.expect(0, 301 + 7 * row, b"abcdefghijklmno"[5 * row : 5 * row + 5])
    for offset, size in ((2048, 8), (2304, 8), (1001, 3)):
        memories.expect(0, offset, bytes(size))
    memories.writer.write()
    assert memories.are_as_expected()


def test_many_units_are_written_by_several_threads(monkeypatch):
    monkeypatch.setattr(_writer, "_AT_ONCE", 100)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    memories = Memories(8192)
    places = random.Random(3).sample(range(0, 8192, 2), 1001)
    values = [struct.pack("<H", number) for number in range(len(places))]
    memories.writer.stage(sealed(batch([(0, 2, 0, places, b"".join(values))])))
    for offset, value in zip(places, values):
        memories.expect(0, offset, value)
    memories.writer.write()
    assert memories.are_as_expected()


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ((0, 2, 0, (0, 255), b"abcd"), "run 0 has 2 bytes for byte 255 of memory 0, which has 256"),
        ((0, 8, 256, (0,), bytes(8)), "run 0 has 8 bytes for byte 256 of memory 0, which has 256"),
        ((0, 1, 0, (0xFFFFFFFF,), b"a"), "run 0 has 1 bytes for byte 4294967295 of memory 0"),
        ((1, 4, 60, (1,), b"abcd"), "run 0 has 4 bytes for byte 61 of memory 1, which has 64"),
    ],
)
def test_a_unit_that_leaves_its_memory_is_refused_before_anything_is_written(run, said):
    assert said in Memories(256, 64).refusal(batch([run]))


def test_of_many_runs_the_one_that_leaves_its_memory_is_named():
    fine = (0, 2, 0, (0, 2, 4), b"abcdef")
    said = Memories(256).refusal(batch([(0, 4, 0, (8,), b"abcd"), fine, (0, 2, 250, (4, 6), b"abcd"), fine]))
    assert "run 2 has 2 bytes for byte 256 of memory 0" in said


def test_of_a_refused_batch_nothing_is_staged_and_what_was_before_stays():
    memories = Memories(64)
    memories.writer.stage(sealed(batch([(0, 1, 0, (0,), b"a")])))
    with pytest.raises(ProtocolError):
        memories.writer.stage(sealed(batch([(0, 1, 0, (1,), b"b"), (0, 1, 0, (64,), b"c")])))
    memories.expect(0, 0, b"a")
    memories.writer.write()
    assert memories.are_as_expected()


def test_what_is_dropped_or_written_is_not_written_again():
    memories = Memories(64)
    memories.writer.stage(sealed(batch([(0, 1, 0, (0,), b"a")])))
    memories.writer.drop()
    memories.writer.write()
    assert memories.are_as_expected()
    memories.writer.stage(sealed(batch([(0, 1, 0, (0,), b"a")])))
    memories.writer.write()
    memories.held[:] = FILL
    memories.writer.write()
    assert memories.are_as_expected()


def test_lists_that_were_written_take_memory_until_they_are_tidied_or_the_next_are_staged():
    memories = Memories(64)
    writer = memories.writer
    for give_back in (writer.release, lambda: writer.stage(sealed(batch())), writer.drop):
        writer.stage(sealed(batch([(0, 1, 0, (0,), b"a")])))
        index = weakref.ref(writer._staged[-1][1].scatters[0].index)
        writer.write()
        assert index() is not None
        give_back()
        assert index() is None


def test_comparing_says_whether_all_rows_are_there_and_writes_nothing():
    memories = Memories(256)
    memories.held[64:72] = torch.arange(8, dtype=torch.uint8)
    memories.held[100:103] = 0
    for content, equal in (
        (batch(copies=[((0, 0, 1, 8, 0), bytes(range(8)))], zeros=[(0, 36, 1, 3, 0)]), True),
        (batch(copies=[((0, 0, 1, 8, 0), bytes(range(1, 9)))], zeros=[(0, 36, 1, 3, 0)]), False),
        (batch(copies=[((0, 0, 1, 8, 0), bytes(range(8)))], zeros=[(0, 36, 1, 4, 0)]), False),
    ):
        before = memories.held.clone()
        memories.writer.stage(sealed(content))
        assert memories.writer.compare() is equal
        assert torch.equal(before, memories.held)
    assert memories.writer.compare()  # nothing is staged any more
    memories.writer.stage(sealed(batch([(0, 1, 0, (0,), b"a")])))
    with pytest.raises(ProtocolError, match="has runs"):
        memories.writer.compare()


def test_what_is_staged_is_bounded_and_what_was_written_or_dropped_does_not_count(monkeypatch):
    content = batch([(0, 1, 0, (0,), b"a")])
    monkeypatch.setattr(_writer, "_STAGED_BESIDES", 2 * len(content))
    monkeypatch.setattr(_writer, "_STAGED_TO_MEMORY", 0)
    memories = Memories(64)
    for end in (memories.writer.write, memories.writer.drop, lambda: None):
        memories.writer.stage(sealed(content))
        memories.writer.stage(sealed(content))
        end()
    with pytest.raises(ProtocolError, match=f"{2 * len(content)} bytes are staged already; {len(content)} more exceed"):
        memories.writer.stage(sealed(content))


# ---- a GPU, stood in for by the CPU ----


class Recorded(_devices.Cpu):
    """Says what is asked of the device."""

    def __init__(self, events: list, name: str) -> None:
        self.events, self.name = events, name

    def threads(self):
        return 1

    def _say(self, what: str) -> None:
        self.events.append((self.name, what))

    def warm(self):
        self._say("warm")

    def uploaded(self, content):
        self._say("upload")
        return super().uploaded(content).clone()

    def settle(self):
        self._say("settle")

    @contextlib.contextmanager
    def working(self):
        self._say("work")
        yield
        self._say("done")


@pytest.fixture
def on_gpus(monkeypatch):
    """Two memories, on two GPUs; what is asked of these, and the scatters, in their order."""
    memories, events = Memories(256, 256), []
    names = {torch.device("cuda", number): f"gpu {number}" for number in range(2)}
    monkeypatch.setattr(_writer, "device_of", lambda device: Recorded(events, names[device]))
    scatter = _writer._run_scatter
    monkeypatch.setattr(_writer, "_run_scatter", lambda *a: (events.append("scatter"), scatter(*a)))
    places = [Place(device, place.address, place.size) for device, place in zip(names, memories.places)]
    memories.writer = Writer(places)
    return memories, events


def test_uploads_are_done_before_staging_ends_and_writes_wait_for_what_the_engine_has_queued(on_gpus):
    memories, events = on_gpus
    assert events == [("gpu 0", "warm"), ("gpu 1", "warm")]
    events.clear()
    runs = [(0, 2, 0, (0, 2), b"abcd"), (0, 2, 8, (0,), b"ef"), (1, 2, 0, (4,), b"gh"), (0, 4, 0, (16,), b"ijkl")]
    memories.writer.stage(sealed(batch(runs, copies=[((1, 100, 1, 3, 0), b"xyz")])))
    staging = ["work", "upload", "done"]
    assert events == [(gpu, what) for gpu in ("gpu 0", "gpu 1") for what in staging]
    events.clear()
    memories.writer.write()
    first, second = (
        [("gpu 0", "settle"), ("gpu 0", "work"), "scatter", "scatter", ("gpu 0", "done")],
        [("gpu 1", "settle"), ("gpu 1", "work"), "scatter", ("gpu 1", "done")],
    )
    assert events == first + second  # one for each width and device, however many runs
    for memory, offset, value in ((0, 0, b"abcd"), (0, 8, b"ef"), (1, 4, b"gh"), (0, 16, b"ijkl"), (1, 100, b"xyz")):
        memories.expect(memory, offset, value)
    assert memories.are_as_expected()


def test_comparing_waits_for_what_the_engine_has_queued(on_gpus):
    memories, events = on_gpus
    memories.writer.stage(sealed(batch(zeros=[(0, 0, 1, 8, 0)])))
    events.clear()
    assert not memories.writer.compare()
    assert [what for _, what in events] == ["settle", "work", "done"] * 2


def test_a_gpu_is_worked_on_in_a_stream_of_its_own_which_is_waited_for_even_after_an_error(monkeypatch):
    events: list = []
    device = torch.device("cuda", 1)

    class Stream:
        def __init__(self, on):
            events.append(("made", on))

        def synchronize(self):
            events.append("waited")

    @contextlib.contextmanager
    def current(stream):
        events.append(("current", type(stream)))
        yield
        events.append("left")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", current)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda on: events.append(("settled", on)))
    gpu = _devices.device_of(device)
    gpu.settle()
    with gpu.working():
        events.append("body")
    assert events == [("made", device), ("settled", device), ("current", Stream), "body", "left", "waited"]
    with pytest.raises(RuntimeError), gpu.working():
        raise RuntimeError
    assert events[-1] == "waited"


def test_memory_that_pytorch_takes_as_a_gpus_is_a_range_of_bytes_that_may_be_written():
    assert GpuMemory(4096, 100).__cuda_array_interface__ == {
        "shape": (100,),
        "typestr": "|u1",
        "data": (4096, False),
        "version": 2,
    }
