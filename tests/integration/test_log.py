"""What becomes of logs when nobody reads them: daemons whose stderr is a pipe that is full."""

import contextlib
import fcntl
import json
import os
from pathlib import Path

from harness import wait_until
from replicas import ToyModel

VERSIONS = 2000  # of some lines each, at level debug: more than wait for stderr


@contextlib.contextmanager
def unread(daemon):
    """Starts the daemon with a log that it cannot write, and gives what reads it: the lines of JSON that come at once."""
    os.mkfifo(daemon.log_path)
    pipe = os.open(daemon.log_path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
    daemon.start()
    daemon.log_path = Path(os.devnull)  # what the harness shows of a daemon that failed
    text = bytearray()

    def lines() -> "list[dict]":
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(pipe, 1 << 20):
                text.extend(piece)
        return [json.loads(line) for line in text.decode().splitlines(keepends=True) if line.endswith("\n")]

    try:
        yield lines
    finally:
        os.close(pipe)


def test_a_log_that_nobody_reads_stops_nobody_and_says_later_what_was_dropped(cluster):
    model = ToyModel(blocks=1)
    agent = cluster.agent(start=False, log_level="debug")
    with unread(agent) as of_agent, unread(cluster.receiver(agent, start=False, log_level="debug")) as of_receiver:
        receiver = cluster.daemons[-1]
        with agent.publisher(model.tensors) as publisher:
            publisher.publish(1, model.tensors)
            for version in range(2, VERSIONS):
                publisher.publish(version, model.step())
                if version % 50 == 0:
                    receiver.wait_for(model.tensors)
            receiver.wait_for(model.tensors)
            for daemon, lines in ((agent, of_agent), (receiver, of_receiver)):
                logged = wait_until(
                    lambda: [line for line in lines() if line.get("version") == VERSIONS - 1] and lines(),
                    f"{daemon.name} has logged the last version",
                )
                dropped = sum(line["lines"] for line in logged if line.get("event") == "log_lines_dropped")
                assert dropped > 0, f"{daemon.name} says nothing of what it dropped"
                assert len(logged) < 5_000, f"{daemon.name} kept all lines"
        assert receiver.stop() == 0
        assert agent.stop() == 0
