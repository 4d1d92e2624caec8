"""A trainer's rank as a process of its own, so that tests can kill it.

Run as a script it opens a publisher as its first argument (JSON) says, and obeys one JSON command a line on stdin:
{"call": "begin", "arguments": [1]}, {"call": "fill", "arguments": [name, seed]}, {"call": "commit", "arguments": []}.
Each is answered by {} or {"error": class, "message": sentence}.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import lockstep


def content(name: str, seed: int, shape) -> np.ndarray:
    """The float32 tensor that every rank and test agrees on for a name and a seed."""
    return np.random.default_rng([seed, *name.encode()]).standard_normal(shape, np.float32)


class RankProcess:
    """Drives a rank from a test. `shapes` is the whole model, {name: shape}, all float32."""

    def __init__(
        self,
        socket: Path,
        model: str,
        shapes,
        rank: int = 0,
        ranks: int = 1,
        owns: "list[str] | None" = None,
        run: "str | None" = None,
        call_timeout: float = 20,
    ) -> None:
        options = {"rank": rank, "ranks": ranks, "owns": owns, "run": run, "call_timeout": call_timeout}
        arguments = {"socket": str(socket), "model": model, "shapes": shapes, "options": options}
        self.process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(arguments)],
            env={"PYTHONPATH": ":".join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.answer()

    def send(self, call: str, *arguments) -> None:
        self.process.stdin.write(json.dumps({"call": call, "arguments": arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> None:
        answer = json.loads(self.process.stdout.readline())
        if answer:
            raise getattr(lockstep, answer["error"])(answer["message"])

    def call(self, call: str, *arguments) -> None:
        """Raises the rank's own lockstep.Error."""
        self.send(call, *arguments)
        self.answer()

    def write(self, version: int, names, seed: int) -> None:
        self.call("begin", version)
        for name in names:
            self.call("fill", name, seed)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.kill()


def serve(arguments) -> None:
    shapes = arguments["shapes"]
    metas = [lockstep.TensorMeta(name, "F32", tuple(shape)) for name, shape in shapes.items()]
    with lockstep.Publisher.in_place(
        metas, model=arguments["model"], socket=arguments["socket"], **arguments["options"]
    ) as publisher:
        calls = {
            "begin": lambda version: publisher.begin(version),
            "fill": lambda name, seed: publisher.write(name, content(name, seed, shapes[name])),
            "done": lambda names: publisher.tensors_done(names),
            "commit": lambda: publisher.commit(),
            "abort": lambda: publisher.abort(),
        }
        print("{}", flush=True)
        for line in sys.stdin:
            command = json.loads(line)
            print(json.dumps(outcome_of(calls[command["call"]], command["arguments"])), flush=True)


def outcome_of(function, arguments) -> dict:
    try:
        function(*arguments)
    except lockstep.Error as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {}


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
