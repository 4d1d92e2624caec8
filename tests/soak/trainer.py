"""A soak's trainer: publishes a version every few seconds, and writes down beforehand what its bytes are.

    trainer.py JSON    {"socket", "truth", "published", "seed", "megabytes", "every_s", "version", "run"}

Before a version is published its SHA-256 of each tensor goes to `truth`, which the checker believes; afterwards its
number and times to `published`. One element in a hundred changes, one version in ten changes all of them. Started again
it goes on with the next number, in the same run where `run` names one.
"""

import hashlib
import json
import os
import random
import sys
import time

import numpy as np

import lockstep

TENSORS = 5
CALLS = {"connect_timeout": 20, "reconnect_timeout": 20, "call_timeout": 30}


def append(path: str, **entry) -> None:
    with open(path, "a") as file:
        file.write(json.dumps(entry) + "\n")


class Model:
    """float16 tensors of any bits, NaNs too."""

    def __init__(self, seed: int, megabytes: int) -> None:
        self.random = np.random.default_rng(seed)
        elements = (megabytes << 20) // 2 // TENSORS
        self.bits = {f"layers.{n}.weight": self.some(elements + n) for n in range(TENSORS)}
        self.tensors = {name: bits.view(np.float16) for name, bits in self.bits.items()}

    def some(self, elements: int) -> np.ndarray:
        return self.random.integers(0, 1 << 16, elements, np.uint16)

    def step(self, all_of_it: bool) -> None:
        for bits in self.bits.values():
            touched = self.random.integers(0, bits.size, bits.size // 100)
            bits[:] = self.some(bits.size) if all_of_it else bits
            bits[touched] += 1

    def sha256(self) -> "dict[str, str]":
        return {name: hashlib.sha256(bits).hexdigest() for name, bits in self.bits.items()}


def opened(options: dict, tensors) -> lockstep.Publisher:
    """In the run that it is to go on with; in a new one where that is gone."""
    while True:
        for run in {options["run"]: 1, None: 1}:
            try:
                return lockstep.Publisher.in_place(tensors, model="actor", socket=options["socket"], run=run, **CALLS)
            except lockstep.Error as error:
                print(f"open in run {run}: {error!r}", flush=True)
        time.sleep(0.5)


def main() -> None:
    options = json.loads(sys.argv[1])
    version = options["version"]
    model = Model(options["seed"] + version, options["megabytes"])
    choice = random.Random(options["seed"] + version)
    publisher = opened(options, model.tensors)
    parent = os.getppid()
    due = time.monotonic()
    while os.getppid() == parent:
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due + options["every_s"], time.monotonic())
        model.step(all_of_it=choice.random() < 0.1)
        label = f"step {version}"
        append(options["truth"], run=publisher.run, version=version, label=label, sha256=model.sha256())
        begun = time.monotonic()
        try:
            publisher.publish(version=version, tensors=model.tensors, label=label)
            append(options["published"], run=publisher.run, version=version, begun=begun, ended=time.monotonic())
        except lockstep.Error as error:
            print(f"version {version}: {error!r}", flush=True)
        version += 1


if __name__ == "__main__":
    main()
