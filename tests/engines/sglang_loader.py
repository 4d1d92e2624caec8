"""A program: loads checkpoints as ranks of SGLang do, and saves the parameters they end up with (json_program.py)."""

from pathlib import Path

from json_program import answer_requests
from safetensors.torch import save_file
from sglang_model import Model, Rank


def load(checkpoint: str, tensor: "list[int]", expert_shares: int, fused: bool, output: str) -> None:
    """Saves what SGLang's loader fills, under SGLang's names, for a rank of these (size, rank)."""
    rank = Rank(tuple(tensor), expert_shares)
    model = Model(Path(checkpoint), rank, disable_shared_experts_fusion=not fused)
    model.load(Path(checkpoint))
    save_file(model.parameters(), output)


if __name__ == "__main__":
    answer_requests(load)
