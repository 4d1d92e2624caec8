"""The emulated wide-area link against what it was asked to be: by a clock at its ends, by iperf3, by its own counts."""

import contextlib
import math
import subprocess
import sys

import pytest
from wan_net import CannotMeasure, Link, Shape

pytestmark = pytest.mark.nightly
MEGABIT = 1_000_000
# Answers one connection at its peer; the connecting side prints how long that took, in seconds, ten times.
ANSWER = "import socket, sys; s = socket.create_server((sys.argv[1], 9)); print(flush=True)\nwhile True: s.accept()"
CONNECT = """
import socket, sys, time
for _ in range(10):
    begin = time.perf_counter()
    socket.create_connection((sys.argv[1], 9), timeout=30)
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


def test_a_connection_takes_one_round_trip():
    trip = 0.05
    with link(Shape(round_trip_s=trip)) as far:
        command = [*far.prefix(1), sys.executable, "-c", ANSWER, far.addresses[1]]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as answering:
            try:
                answering.stdout.readline()
                command = [*far.prefix(0), sys.executable, "-c", CONNECT, far.addresses[1]]
                printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
            finally:
                answering.kill()
    times = [float(line) for line in printed.split()]
    assert len(times) == 10
    assert math.floor(min(times) / trip) == 1


def test_iperf_gets_the_rate_less_the_headers():
    rate = 100 * MEGABIT
    with link(Shape(bits_per_s=rate, round_trip_s=0.01)) as slow:
        bytes_per_s = slow.iperf_bytes_per_s(streams=4, seconds=2)
        there, back = slow.totals()
    assert rate / 8 / 2 < bytes_per_s < 1448 / 1500 * 1.005 * rate / 8  # a busy machine takes some of it
    assert there["failed"] == back["failed"] == 0
    assert there["bytes"] > 20 * back["bytes"] > 0


def test_one_segment_in_a_hundred_is_lost_and_the_transfer_is_whole_all_the_same():
    loss = 0.01
    with link(Shape(bits_per_s=100 * MEGABIT, round_trip_s=0.002, loss=loss)) as lossy:
        assert lossy.iperf_bytes_per_s(streams=1, seconds=2) > 0
        there, back = lossy.totals()
    deviation = math.sqrt(loss / there["segments"])
    assert abs(there["lost"] / there["segments"] - loss) < 5 * deviation
    assert there["lost"] > 10
    assert back["lost"] > 0
