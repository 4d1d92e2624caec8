"""The emulated wide-area link against what it was asked to be: by a clock at its ends, by iperf3, by its own counts."""

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import processes  # noqa: E402, F401 (the import path of the harness)
from wan_net import CannotMeasure, Link, Shape  # noqa: E402

MEGABIT = 1_000_000
# Answers one connection at its peer; the connecting side prints how long that took, in seconds, ten times.
ANSWER = "import socket, sys; s = socket.create_server((sys.argv[1], 9)); print(flush=True)\nwhile True: s.accept()"
CONNECT = """
import socket, sys, time
for _ in range(10):
    begin = time.perf_counter()
    socket.create_connection((sys.argv[1], 9), timeout=5)
    print(time.perf_counter() - begin)
"""


@contextlib.contextmanager
def link(shape: Shape):
    try:
        made = Link(shape)
    except CannotMeasure as why:
        pytest.skip(str(why))
    with contextlib.closing(made):
        yield made


def test_a_connection_takes_the_round_trip_and_little_more():
    with link(Shape(round_trip_s=0.05)) as far:
        command = [*far.prefix(1), sys.executable, "-c", ANSWER, far.addresses[1]]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as answering:
            try:
                answering.stdout.readline()
                command = [*far.prefix(0), sys.executable, "-c", CONNECT, far.addresses[1]]
                told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
            finally:
                answering.kill()
        times = sorted(float(line) for line in told.stdout.split())
        assert len(times) == 10
        assert 0.05 <= times[0] and times[4] < 0.06


def test_iperf_gets_the_rate_less_the_headers():
    with link(Shape(bits_per_s=100 * MEGABIT, round_trip_s=0.01)) as slow:
        bytes_per_s = slow.iperf_bytes_per_s(streams=4, seconds=2)
        there, back = slow.totals()
    assert 0.8 * 100 * MEGABIT / 8 < bytes_per_s < 0.97 * 100 * MEGABIT / 8  # 1448 bytes of each 1500
    assert there["failed"] == back["failed"] == 0
    assert there["bytes"] > 20_000_000 > 20 * back["bytes"] > 0


def test_one_segment_in_a_hundred_is_lost_and_the_transfer_is_whole_all_the_same():
    with link(Shape(bits_per_s=100 * MEGABIT, round_trip_s=0.002, loss=0.01)) as lossy:
        assert lossy.iperf_bytes_per_s(streams=1, seconds=2) > 0
        there, back = lossy.totals()
    assert there["segments"] > 13_000
    assert 0.006 < there["lost"] / there["segments"] < 0.014
    assert back["lost"] > 0
