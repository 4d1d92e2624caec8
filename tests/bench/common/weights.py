"""Versions of a made-up model in bfloat16, for programs that publish them: raw bits in one flat NumPy array, and its
tensors by name as views of it.

An optimizer's step is imitated where it matters to a delta: which share of the elements changes, at places that are
uniformly random, and by how many ulps. The weights are normal with a standard deviation of 0.02.
"""

import math

import numpy as np

M_BYTES = 3_000_000_000  # the model of the figures: 1.5 G elements
HIDDEN, INTERMEDIATE, KEY_VALUE, VOCABULARY = 2048, 8192, 1024, 32_000
# (ulps, share): what is measured of steps at a learning rate of 1e-6, in either direction alike.
STEP_SHARES = ((1, 0.88), (2, 0.05), (3, 0.02), (5, 0.027), (8, 0.012), (17, 0.011))
STEP_TABLE = 4096
PATTERN_ELEMENTS = 1 << 24  # random weights repeat after this many elements


class Bfloat16:
    """A dtype that is only a name."""

    name = "bfloat16"


class Bf16:
    """An array of raw 16 bits that is published as bfloat16, which NumPy does not have."""

    dtype = Bfloat16()

    def __init__(self, bits: np.ndarray) -> None:
        self.bits = bits

    @property
    def __array_interface__(self) -> dict:
        return self.bits.__array_interface__


def llama(layers: int, head_rows: int = VOCABULARY) -> "dict[str, tuple[int, ...]]":
    """Name -> shape."""
    layer = {
        "input_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (KEY_VALUE, HIDDEN),
        "self_attn.v_proj": (KEY_VALUE, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    named = {f"model.layers.{n}.{name}.weight": shape for n in range(layers) for name, shape in layer.items()}
    ends = {"model.norm.weight": (HIDDEN,), "lm_head.weight": (head_rows, HIDDEN)}
    return {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), **named, **ends}


def elements(shapes: "dict[str, tuple[int, ...]]") -> int:
    return sum(math.prod(shape) for shape in shapes.values())


def shapes(model_bytes: int) -> "dict[str, tuple[int, ...]]":
    """A Llama with as many layers as fit `model_bytes`, and a head that takes the rest; a smaller model is the head
    alone. Sizes add up to `model_bytes` less at most one row of the head."""
    left = model_bytes // 2 - elements(llama(0))
    layers = left // (elements(llama(1)) - elements(llama(0)))
    if layers < 1:
        return {"lm_head.weight": (model_bytes // 2 // HIDDEN, HIDDEN)}
    rest = model_bytes // 2 - elements(llama(layers))
    return llama(layers, VOCABULARY + rest // HIDDEN)


class Weights:
    """A model of about `model_bytes`, or of these shapes; the same bits for the same size and number of steps."""

    def __init__(self, model: "int | dict[str, tuple[int, ...]]") -> None:
        self._random = np.random.default_rng(1)
        self._steps = step_table()
        by_name = shapes(model) if isinstance(model, int) else model
        self.flat = np.empty(elements(by_name), np.uint16)
        pattern = self._random.normal(0, 0.02, min(PATTERN_ELEMENTS, self.flat.size)).astype(np.float32)
        pattern_bits = (pattern.view(np.uint32) >> 16).astype(np.uint16)
        for begin in range(0, self.flat.size, pattern_bits.size):
            part = self.flat[begin : begin + pattern_bits.size]
            part[:] = pattern_bits[: part.size]
        self.tensors, end = {}, 0
        for name, shape in by_name.items():
            begin, end = end, end + math.prod(shape)
            self.tensors[name] = Bf16(self.flat[begin:end].reshape(shape))

    def step(self, density: float = 0.01) -> None:
        """Changes about that share of the elements, in place."""
        change(self.flat, density, self._random, self._steps)


def step_table() -> np.ndarray:
    """Steps in ulps modulo 2^16; a uniformly random entry is a step as measured."""
    counts = [(ulps, round(share * STEP_TABLE / 2)) for ulps, share in STEP_SHARES]
    steps = [sign * ulps for ulps, count in counts for sign in (1, -1) for _ in range(count)]
    return np.array(steps, np.int64).astype(np.uint16)


def change(bits: np.ndarray, density: float, random: np.random.Generator, steps: np.ndarray) -> None:
    """One step over a flat array of raw bits: uniformly random places, some of them hit twice."""
    drawn = -math.log1p(-density)  # of so many draws for each element, that share of the elements is hit at least once
    chunk = 1 << 24
    for begin in range(0, bits.size, chunk):
        part = bits[begin : begin + chunk]
        places = random.integers(0, part.size, int(part.size * drawn), np.uint32)
        part[places] += steps[random.integers(0, steps.size, places.size, np.uint16)]
