"""The demo's trainer, as a trainer of NumPy would be written: Adam on fp32 masters, and each version written in place into
the memory that the agent gives.

Trained are all BF16, F16 and F32 tensors but one in twenty, which stays frozen, as some do in real runs; of an embedding
only an eighth in each step, as not every word occurs in a batch. Others are carried. Version 1 has the initial weights, version
n + 1 those after step n. A run is a function of the model and the number of steps. Used by scenario.py.
"""

import hashlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import models
import numpy as np

import lockstep

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
# The gradient of a weight: a mean of its own, and noise that is new in each step. At this spread of the means the share
# of bf16 weights that change falls from step to step as in real runs.
MEAN_GRADIENT = 0.5
FROZEN_ONE_IN = 20
TOUCHED_ONE_IN = 8
SLICE = 1 << 18  # elements: all that a step has of them stays in a core's cache
BUCKET_BYTES = 32 << 20  # trained before the agent is told which tensors are done
NORMALS = np.random.default_rng(1).standard_normal(1 << 20, np.float32)  # drawn once, taken from anywhere


def normals(key: "tuple[int, ...]", count: int) -> np.ndarray:
    at = hash(key) % (len(NORMALS) - SLICE)
    return NORMALS[at : at + count]


class Scratch(threading.local):
    """A thread's memory for one slice: to take it anew for each would cost as much as the step."""

    def __init__(self) -> None:
        self.one, self.other = np.empty(SLICE, np.float32), np.empty(SLICE, np.float32)


SCRATCH = Scratch()


def to_bf16(masters: np.ndarray) -> np.ndarray:
    """Bits, in uint32, rounded to nearest, ties to even. Weights are finite. In the thread's scratch memory."""
    bits, rounded = masters.view(np.uint32), SCRATCH.one[: len(masters)].view(np.uint32)
    np.right_shift(bits, 16, out=rounded)
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    return rounded


class Tensor:
    """One tensor in training. ``published`` is what the newest version has of it: bits of BF16, or numbers."""

    def __init__(self, number: int, meta: lockstep.TensorMeta, values: "np.ndarray | None") -> None:
        self.number = number
        self.meta = meta
        self.sparse = "embed" in meta.name and len(meta.shape) == 2
        kind = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32}.get(meta.dtype)
        self.frozen = kind is None or (number % FROZEN_ONE_IN == FROZEN_ONE_IN // 2 and not self.sparse)
        self.published = (
            np.empty(meta.nbytes // np.dtype(kind or np.uint8).itemsize, kind or np.uint8)
            if values is None
            else values.view(kind or np.uint8)
        )
        self.element_bytes = self.published.itemsize
        self._from_checkpoint = values is not None
        if self._from_checkpoint and not self.frozen:
            self.published = self.published.copy()
        self._masters, self._first, self._second = (
            np.zeros(0 if self.frozen else len(self.published), np.float32) for _ in range(3)
        )

    def begin(self, first: int) -> None:
        """Makes the initial weights of the slice that begins at ``first``."""
        published = self.published[first : first + SLICE]
        if not self._from_checkpoint:
            norm = "norm" in self.meta.name
            sigma = 0.02 if norm else 0.01 * 5 ** (self.number * 0.618 % 1)  # 0.01 to 0.05, another for each tensor
            drawn = normals((self.number, first), len(published)) * np.float32(sigma) + np.float32(norm)
            published[:] = to_bf16(drawn)
            if not self.frozen:
                self._masters[first : first + SLICE] = drawn
        elif not self.frozen:
            masters = self._masters[first : first + SLICE]
            if self.meta.dtype != "BF16":
                masters[:] = published
                return
            # Anywhere in the interval that is rounded to the value, so that weights change from the first step on.
            bits = published.astype(np.uint32) << 16
            random = np.random.default_rng((self.number, first)).integers(-0x7FFF, 0x7FFF, len(bits))
            magnitude = bits & 0x7FFFFFFF
            random[(magnitude == 0) | (magnitude >= 0x7F800000)] = 0
            masters[:] = (bits + random).astype(np.uint32).view(np.float32)

    def step(self, number: int, first: int, learning_rate: float) -> int:
        """One step of Adam on the slice. How many elements of it are published as something else."""
        if self.frozen or (self.sparse and hash((self.number, number, first)) % TOUCHED_ONE_IN):
            return 0
        masters, m, v, published = (
            array[first : first + SLICE] for array in (self._masters, self._first, self._second, self.published)
        )
        gradient, scratch = SCRATCH.other[: len(masters)], SCRATCH.one[: len(masters)]
        np.multiply(normals((self.number, first), len(masters)), np.float32(MEAN_GRADIENT), out=gradient)
        gradient += normals((self.number, first, number), len(masters))
        m *= np.float32(BETA1)
        m += np.multiply(gradient, np.float32(1 - BETA1), out=scratch)
        gradient *= gradient
        gradient *= np.float32(1 - BETA2)
        v *= np.float32(BETA2)
        v += gradient
        np.multiply(v, np.float32(1 / (1 - BETA2**number)), out=scratch)
        np.sqrt(scratch, out=scratch)
        scratch += np.float32(EPSILON)
        np.divide(m, scratch, out=scratch)
        scratch *= np.float32(learning_rate / (1 - BETA1**number))
        masters -= scratch
        new = to_bf16(masters) if self.meta.dtype == "BF16" else masters.astype(published.dtype)
        changed = int(np.count_nonzero(new != published))
        published[:] = new
        return changed


@dataclass(frozen=True)
class Published:
    """One version; ``sha256`` of the last one alone."""

    version: int
    changed_elements: int
    density: float
    step_ms: float
    blocked_ms: float
    sha256: "str | None"


class Trainer:
    def __init__(self, publisher: lockstep.Publisher, model: models.Model, learning_rate: float) -> None:
        self._learning_rate = learning_rate
        self._publisher = publisher
        self._elements = model.elements
        self._pool = ThreadPoolExecutor(os.cpu_count())
        self._tensors = [
            (Tensor(number, meta, model.values.get(meta.name)), offset)
            for number, (meta, offset) in enumerate(publisher.layout)
        ]

    def publish(self, step: int, last: bool) -> Published:
        """Takes the step, or makes the initial weights, and publishes what comes of it while it is made."""
        begun = time.monotonic()
        memory = np.frombuffer(self._publisher.begin(step + 1), np.uint8)
        blocked = time.monotonic() - begun
        changed = 0
        for bucket in self._buckets():
            changed += sum(self._pool.map(lambda piece: self._train(step, memory, *piece), bucket))
            before = time.monotonic()
            self._publisher.tensors_done(
                tensor.meta.name for tensor, _, first in bucket if first + SLICE >= len(tensor.published)
            )
            blocked += time.monotonic() - before
        before = time.monotonic()
        self._publisher.commit()
        now = time.monotonic()
        return Published(
            version=step + 1,
            changed_elements=changed,
            density=changed / self._elements,
            step_ms=1000 * (now - begun),
            blocked_ms=1000 * (blocked + now - before),
            sha256=self._digest() if last else None,
        )

    def _buckets(self):
        bucket, nbytes = [], 0
        for tensor, offset in self._tensors:
            for first in range(0, len(tensor.published), SLICE):
                bucket.append((tensor, offset, first))
                nbytes += self._range(*bucket[-1])[1]
                if nbytes >= BUCKET_BYTES:
                    yield bucket
                    bucket, nbytes = [], 0
        if bucket:
            yield bucket

    @staticmethod
    def _range(tensor: Tensor, offset: int, first: int) -> "tuple[int, int]":
        """Offset and size of a slice in the data section."""
        count = min(SLICE, len(tensor.published) - first)
        return offset + first * tensor.element_bytes, count * tensor.element_bytes

    def _train(self, step: int, memory: np.ndarray, tensor: Tensor, offset: int, first: int) -> int:
        changed = tensor.begin(first) if step == 0 else tensor.step(step, first, self._learning_rate)
        at, nbytes = self._range(tensor, offset, first)
        memory[at : at + nbytes] = tensor.published[first : first + SLICE].view(np.uint8)
        return changed or 0

    def _digest(self) -> str:
        """SHA-256 of the data section, from the trainer's own arrays: whatever became of what was published shows."""
        sha256 = hashlib.sha256()
        for tensor, _ in self._tensors:
            sha256.update(tensor.published)
        return sha256.hexdigest()
