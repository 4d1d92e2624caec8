"""A process that calls ensure_agent() when it is told to, so that tests can have several do it at once, and kill them.

Run as a script it reads lines of JSON on stdin: {"call": "ensure", "options": {...}} is answered by {"pid": ...},
{"call": "publish", "rank": 1, "ranks": 8} by {}, {"call": "fork"} by {"pid": ...} of a child that lives on.
"""

import json
import os
import subprocess
import sys
import time

import numpy as np

import lockstep

MODEL = "actor"


def tensors(ranks: int) -> "dict[str, np.ndarray]":
    """The model of so many ranks, each of which owns one tensor."""
    return {f"rank.{rank}": np.arange(rank, rank + 50_000, dtype=np.float32) for rank in range(ranks)}


class EnsureProcess:
    """Drives such a process from a test."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, call: str, **arguments) -> None:
        self.process.stdin.write(json.dumps({"call": call, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict:
        return json.loads(self.process.stdout.readline())

    def call(self, call: str, **arguments) -> dict:
        self.send(call, **arguments)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.kill()


def serve() -> None:
    agent = None
    publishers = []
    for line in sys.stdin:
        command = json.loads(line)
        if command["call"] == "ensure":
            agent = lockstep.ensure_agent(**command["options"])
            answer = {"pid": agent.pid}
        elif command["call"] == "publish":
            publishers.append(publish(agent.socket, command["rank"], command["ranks"]))
            answer = {}
        else:
            answer = {"pid": left_child()}
        print(json.dumps(answer), flush=True)


def publish(socket: str, rank: int, ranks: int) -> lockstep.Publisher:
    """Publishes a rank's part of version 1. Other ranks may come later, so it stays."""
    whole = tensors(ranks)
    name = f"rank.{rank}"
    publisher = lockstep.Publisher.in_place(
        whole, model=MODEL, socket=socket, rank=rank, ranks=ranks, owns=[name], call_timeout=60
    )
    publisher.publish(version=1, tensors={name: whole[name]})
    return publisher


def left_child() -> int:
    """A child as a data loader's worker is one, which outlives this process."""
    child = os.fork()
    while child == 0:
        time.sleep(1)
    return child


if __name__ == "__main__":
    serve()
