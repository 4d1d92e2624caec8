"""Write batches that are none are refused, with what is wrong where (raas_receiver/engine/placement/writes/FORMAT.md)."""

import fcntl
import os
import random
import re
import struct
from pathlib import Path

import pytest
from write_batches import batch, sealed

from lockstep.core.errors import ProtocolError
from lockstep.engine._write_batch import Rows, Run, open_batch

FORMAT = Path(__file__).parents[2] / "raas_receiver/engine/placement/writes/FORMAT.md"
SIZES = (1024, (1 << 31) + 16)
RUN = struct.Struct("<IIQQ")
ROWS = struct.Struct("<IIQQQQ")
TABLES_AT = 64


def example() -> bytes:
    """FORMAT.md's."""
    content = bytearray()
    [block] = re.findall(r"```hex write_batch\n(.*?)```", FORMAT.read_text(), re.DOTALL)
    for line in block.splitlines():
        at, *numbers = line.split()
        content += bytes(int(at, 16) - len(content)) + bytes(int(number, 16) for number in numbers)
    return bytes(content)


def with_bytes(at: int, new: bytes) -> bytes:
    content = bytearray(example())
    content[at : at + len(new)] = new
    return bytes(content)


def refusal(content: bytes, sizes=SIZES, **options) -> str:
    with pytest.raises(ProtocolError) as refused:
        open_batch(sealed(content, **options), sizes)
    return str(refused.value)


def test_the_documents_example_is_what_it_says():
    opened = open_batch(sealed(example()), SIZES)
    assert opened.runs == [Run(1, 4, 1 << 31, 1), Run(0, 2, 0, 2)]
    copy, zeros = opened.rows
    assert copy[:5] == (0, 256, 2, 3, 16) and opened.content[copy.data : copy.data + 6].hex() == "a1a2a3b1b2b3"
    assert zeros == Rows(0, 512, 1, 8, 0, None)
    offsets = struct.unpack_from("<3I", opened.content, opened.offsets)
    assert offsets == (8, 6, 70) and opened.content[opened.values : opened.values + 8].hex() == "3333333311112222"


def test_tests_make_the_documents_example():
    runs = [(0, 2, 0, [6, 70], bytes.fromhex("11112222")), (1, 4, 1 << 31, [8], bytes.fromhex("33333333"))]
    copies = [((0, 256, 2, 3, 16), bytes.fromhex("a1a2a3b1b2b3"))]
    assert batch(runs, copies, [(0, 512, 1, 8, 0)]) == example()


@pytest.mark.parametrize("missing", [fcntl.F_SEAL_WRITE, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW])
def test_what_its_maker_could_still_change_is_no_batch(missing):
    every = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    assert "not sealed" in refusal(example(), seals=every & ~missing)


def test_what_is_no_memfd_is_no_batch(tmp_path):
    (tmp_path / "file").write_bytes(example())
    with pytest.raises(ProtocolError, match="no write batch"):
        open_batch(os.open(tmp_path / "file", os.O_RDWR), SIZES)


def test_the_descriptor_is_closed_whatever_it_is():
    for content in (example(), b"short", with_bytes(0, b"X")):
        fd = sealed(content)
        try:
            open_batch(fd, SIZES)
        except ProtocolError:
            pass
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_what_is_too_short_or_longer_than_it_says_is_refused():
    assert "has 40 bytes" in refusal(example()[:40])
    assert "none of format 1" in refusal(example()[:-8])
    assert "none of format 1" in refusal(example() + bytes(8))


@pytest.mark.parametrize(
    ("at", "new", "said"),
    [
        (0, b"LSWRITE2", "none of format 1"),
        (8, b"\2", "none of format 1"),
        (10, b"\x30", "none of format 1"),
        (12, b"\1", "none of format 1"),
        (16, b"\xe8", "none of format 1"),
        (40, b"\1", "none of format 1"),
        (24, b"\xff\xff\xff\xff", "has tables of"),
        (28, b"\xff\xff\xff\xff", "has tables of"),
        (32, b"\xff\xff\xff\xff", "has tables of"),
        (24, b"\1", "cannot be"),
        (32, b"\0", "has tables for"),
    ],
)
def test_a_header_that_is_wrong_is_refused(at, new, said):
    assert said in refusal(with_bytes(at, new))


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ((2, 4, 0, 1), "run 0 is of memory 2, and there are 2"),
        ((1, 3, 0, 1), "run 0 has units of 3 bytes"),
        ((1, 0, 0, 1), "run 0 has units of 0 bytes"),
        ((1, 16, 0, 1), "run 0 has units of 16 bytes"),
        ((1, 1, 0, 1), "run 1 has units of 2 bytes behind those of 1"),
        ((1, 4, (1 << 31) + 17, 1), "run 0 has 1 units from byte 2147483665 of memory 1 on, which has 2147483664"),
        ((1, 4, 0, 1 << 63), "units from byte 0"),
        ((1, 4, (1 << 64) - 1, 1), "units from byte 18446744073709551615"),
        ((1, 4, 0, 1 << 20), "has tables for"),
    ],
)
def test_a_run_that_cannot_be_is_refused(run, said):
    assert said in refusal(with_bytes(TABLES_AT, RUN.pack(*run)))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((2, 0, 0, 1, 1, 0), "copy 0 is of memory 2"),
        ((0, 1, 0, 1, 1, 0), "copy 0 has 1 rows"),
        ((0, 0, 0, 0, 1, 0), "copy 0 has 0 rows"),
        ((0, 0, 0, 1, 0, 0), "copy 0 has 1 rows of 0 bytes"),
        ((0, 0, 0, 1, 8, 8), "copy 0 has 1 rows of 8 bytes, 8 apart"),
        ((0, 0, 0, 2, 8, 7), "copy 0 has 2 rows of 8 bytes, 7 apart"),
        ((0, 0, 1017, 1, 8, 0), "copy 0 ends at byte 1025 of memory 0, which has 1024"),
        ((0, 0, 0, 3, 8, 509), "copy 0 ends at byte 1026 of memory 0"),
        ((0, 0, 0, 1 << 63, 1, 1 << 62), "copy 0 ends at byte"),
        ((0, 0, (1 << 64) - 1, 2, 1, (1 << 64) - 1), "copy 0 ends at byte"),
        ((0, 0, 0, 1, 512, 0), "has tables for"),
    ],
)
def test_rows_that_cannot_be_are_refused(rows, said):
    assert said in refusal(with_bytes(TABLES_AT + 2 * RUN.size, ROWS.pack(*rows)))


def test_a_zero_range_that_leaves_its_memory_is_refused():
    rows = ROWS.pack(0, 0, 1020, 1, 5, 0)
    said = refusal(with_bytes(TABLES_AT + 2 * RUN.size + ROWS.size, rows))
    assert said == "zero range 0 ends at byte 1025 of memory 0, which has 1024"


def test_whatever_bytes_are_turned_it_is_a_batch_or_refused():
    draw = random.Random(7)
    for _ in range(2000):
        content = bytearray(example())
        for _ in range(draw.randint(1, 4)):
            content[draw.randrange(len(content))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        try:
            opened = open_batch(sealed(bytes(content)), SIZES)
        except ProtocolError:
            continue
        units = sum(run.units for run in opened.runs)
        assert opened.offsets + 4 * units <= opened.values <= len(content)
        assert all(rows.data is None or rows.data + rows.rows * rows.row_bytes <= len(content) for rows in opened.rows)
