"""What the demo trains: a real layout with made-up weights, or the weights of a HuggingFace directory."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from failure import EX_UNAVAILABLE, DemoFailed

import lockstep

# hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary of a Qwen3 with tied embeddings. "tiny" is ours: 42 M
# parameters, small enough for a demo of seconds and large enough that a delta is worth its name.
SHAPES = {
    "tiny": (512, 8, 8, 4, 64, 1536, 32768),
    "qwen3-0.6b": (1024, 28, 16, 8, 128, 3072, 151936),
    "qwen3-1.7b": (2048, 28, 16, 8, 128, 6144, 151936),
}


@dataclass(frozen=True)
class Model:
    """Tensors by name, in export order; ``values`` are their bytes in a checkpoint's files, or nothing is there yet."""

    title: str
    metas: "list[lockstep.TensorMeta]"
    values: "dict[str, np.ndarray]"

    @property
    def model_bytes(self) -> int:
        return sum(meta.nbytes for meta in self.metas)

    @property
    def elements(self) -> int:
        return sum(int(np.prod(meta.shape)) for meta in self.metas)


def of_shape(name: str) -> Model:
    hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary = SHAPES[name]
    shapes = {"model.embed_tokens": (vocabulary, hidden)}
    for layer in range(layers):
        shapes |= {
            f"model.layers.{layer}.{part}": shape
            for part, shape in {
                "self_attn.q_proj": (heads * head_dim, hidden),
                "self_attn.k_proj": (kv_heads * head_dim, hidden),
                "self_attn.v_proj": (kv_heads * head_dim, hidden),
                "self_attn.o_proj": (hidden, heads * head_dim),
                "self_attn.q_norm": (head_dim,),
                "self_attn.k_norm": (head_dim,),
                "mlp.gate_proj": (intermediate, hidden),
                "mlp.up_proj": (intermediate, hidden),
                "mlp.down_proj": (hidden, intermediate),
                "input_layernorm": (hidden,),
                "post_attention_layernorm": (hidden,),
            }.items()
        }
    shapes["model.norm"] = (hidden,)
    return Model(name, [lockstep.TensorMeta(f"{part}.weight", "BF16", shape) for part, shape in shapes.items()], {})


def write_config(name: str, directory: Path) -> None:
    """The shape's config.json: with it and the weights, transformers loads the model."""
    hidden, layers, heads, kv_heads, head_dim, intermediate, vocabulary = SHAPES[name]
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": intermediate,
        "max_position_embeddings": 40960,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocabulary,
    }
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def of_checkpoint(directory: Path) -> Model:
    """All tensors of the directory's safetensors files, mapped: nothing is read yet but headers."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise DemoFailed(EX_UNAVAILABLE, f"{directory} has no *.safetensors; give a HuggingFace model's directory")
    metas, values = [], {}
    for file in files:
        try:
            content = np.memmap(file, np.uint8, "r")
            begin = 8 + int(content[:8].view("<u8")[0])
            header = json.loads(content[8:begin].tobytes())
            header.pop("__metadata__", None)
            for name, entry in header.items():
                metas.append(lockstep.TensorMeta(name, entry["dtype"], tuple(entry["shape"])))
                first, last = entry["data_offsets"]
                values[name] = content[begin + first : begin + last]
        except (ValueError, KeyError, TypeError, OSError) as error:
            raise DemoFailed(EX_UNAVAILABLE, f"{file} is no safetensors file: {error!r}") from error
    return Model(str(directory), sorted(metas, key=lambda meta: meta.name), values)
