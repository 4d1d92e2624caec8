"""What trainers' own exporters give, in the dtypes of the model's checkpoint. For integrations whose ranks publish their own shards."""

import os
from typing import Any, Callable, Iterable, Iterator, Tuple

import torch

from lockstep.core.checkpoint_files import stored_tensors

Stream = Iterable[Tuple[str, Any]]


def rounded_as_stored(export: "Callable[[], Stream]", checkpoint: "str | os.PathLike[str]") -> "Callable[[], Stream]":
    """An exporter of what ``export`` gives, with float32 rounded where ``checkpoint``, a directory, has bfloat16."""
    dtypes = {tensor.meta.name: tensor.meta.dtype for tensor in stored_tensors(checkpoint)}

    def stream() -> "Iterator[Tuple[str, Any]]":
        for name, tensor in export():
            rounds = (tensor.dtype, dtypes.get(name)) == (torch.float32, "BF16")
            yield name, tensor.to(torch.bfloat16) if rounds else tensor

    return stream
