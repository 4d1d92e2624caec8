"""A program: loads checkpoints as ranks of vLLM do, and saves the parameters they end up with (json_program.py)."""

from pathlib import Path

from json_program import answer_requests
from safetensors.torch import save_file
from vllm_model import Model, Rank


def load(
    checkpoint: str, tensor: "list[int]", data: "list[int]", expert_parallel: bool, whole_tower: bool, output: str
) -> None:
    """Saves what vLLM's loader fills, under vLLM's names, for a rank of these (size, rank)."""
    model = Model(Path(checkpoint), Rank(tuple(tensor), tuple(data), expert_parallel, whole_tower=whole_tower))
    filled = model.parameters().keys()
    model.load(Path(checkpoint))
    model.process()
    save_file({name: tensor for name, tensor in model.parameters().items() if name in filled}, output)


if __name__ == "__main__":
    answer_requests(load)
