"""Shows a tiny model as each program has it: what a checkpoint, a rank of Megatron-core and a rank of vLLM hold.

    PYTHONPATH=python:tests/layouts .cache/venv/bin/python -W ignore tests/engines/show_model.py qwen3_moe tp2ep2

The model is one of hf_models.py, the topology one of topologies.py; of its ranks the last is shown. vLLM's has the same
tensor parallelism, and its experts are spread where Megatron's are.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks are forked, and OpenMP's threads are not

import sys
import tempfile
from pathlib import Path

import torch
from hf_models import has_mtp
from ranks import Ranks
from record_megatron import parameters
from safetensors.torch import load_file
from topologies import Topology, topology_of
from vllm_checkpoints import VllmCheckpoints
from vllm_process import VllmLoader


def model_of(
    model: str, topology: Topology, checkpoints: VllmCheckpoints, loader: VllmLoader
) -> "dict[str, list[str]]":
    """Holder -> names and shapes; types too, except Megatron-core's, which the trainer chooses."""
    checkpoint, config = checkpoints.get(model)
    with Ranks(topology) as ranks:
        local, te = (ranks.call(parameters, config.to_dict(), te_names)[-1][1] for te_names in (False, True))
    place = {"tensor": (topology.tp, topology.tp - 1), "expert_parallel": topology.ep > 1}
    return {
        "a checkpoint's tensors": lines_of(load_file(checkpoint / "model.safetensors")),
        "Megatron-core's parameters, local spec": local,
        "Megatron-core's parameters, Transformer Engine's spec": te,
        "vLLM's parameters": lines_of(loader.parameters(checkpoint, **place)),
    }


def lines_of(tensors: "dict[str, torch.Tensor]") -> "list[str]":
    """A line for each tensor."""
    return sorted(" ".join(map(str, [name, *tensor.shape, tensor.dtype])) for name, tensor in tensors.items())


def main(model: str, topology: str) -> None:
    """Prints all of it."""
    loader = VllmLoader()
    with tempfile.TemporaryDirectory() as folder:
        shown = model_of(model, topology_of(topology, has_mtp(model)), VllmCheckpoints(Path(folder)), loader)
    loader.close()
    for title, lines in shown.items():
        print(f"# {title}", *lines, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
