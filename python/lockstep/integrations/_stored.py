"""What trainers' own exporters give, as the model's checkpoint has it. For integrations whose ranks publish their own shards."""

import os
from typing import Any, Callable, Iterable, Iterator, Tuple

import torch

from lockstep.core.checkpoint_files import stored_tensors

Stream = Iterable[Tuple[str, Any]]


def as_stored(export: "Callable[[], Stream]", checkpoint: "str | os.PathLike[str]") -> "Callable[[], Stream]":
    """An exporter of what ``export`` gives: float32 is rounded where ``checkpoint``, a directory, has bfloat16; a name comes
    once, and no head that the checkpoint ties to the embedding."""
    dtypes = {tensor.meta.name: tensor.meta.dtype for tensor in stored_tensors(checkpoint)}

    def stream() -> "Iterator[Tuple[str, Any]]":
        given = set()
        for name, tensor in export():
            if name in given or (name not in dtypes and name.endswith("lm_head.weight")):
                continue
            given.add(name)
            rounds = (tensor.dtype, dtypes.get(name)) == (torch.float32, "BF16")
            yield name, tensor.to(torch.bfloat16) if rounds else tensor

    return stream
