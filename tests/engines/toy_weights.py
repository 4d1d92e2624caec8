"""Small weights for the conformance servers, and what serving them gives."""

import hashlib

import numpy as np
from served_model import digest_of


def weights(seed: int) -> "dict[str, np.ndarray]":
    """Three layers of three tensors: half of them is one layer and a third."""
    random = np.random.default_rng(seed)
    names = [f"model.layers.{layer}.{part}.weight" for layer in range(3) for part in ("down", "gate", "up")]
    return {name: random.standard_normal((32, 64), dtype=np.float32) for name in names}


def digest_of_tensors(tensors: "dict[str, np.ndarray]") -> str:
    return digest_of({name: hashlib.sha256(tensor.tobytes()).hexdigest() for name, tensor in tensors.items()})
