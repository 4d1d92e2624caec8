"""The tensors of a HuggingFace checkpoint's directory, by the headers of its safetensors files; no data is read."""

import json
import os
from pathlib import Path
from typing import Any

from lockstep.core.errors import BadDataError, NotFoundError
from lockstep.core.tensors import TensorMeta

_INDEX = "model.safetensors.index.json"
_WHOLE = "model.safetensors"
_MAX_HEADER_BYTES = 100 << 20  # safetensors' own bound


def checkpoint_metas(directory: "str | os.PathLike[str]") -> "list[TensorMeta]":
    """What the checkpoint in ``directory`` holds, file by file, in the order of the data.

    NotFoundError: a file that should be there is not. BadDataError: one is not what its name says.
    """
    index = Path(directory) / _INDEX
    files = _files_of(index) if index.exists() else [_WHOLE]
    return [meta for file in files for meta in _metas_of(Path(directory) / file)]


def _files_of(index: Path) -> "list[str]":
    try:
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadDataError(f"{index} is no index of a checkpoint: {error!r}") from error


def _metas_of(path: Path) -> "list[TensorMeta]":
    header = _header_of(path)
    try:
        entries = sorted(
            (entry["data_offsets"], name, entry["dtype"], tuple(map(int, entry["shape"])))
            for name, entry in header.items()
            if name != "__metadata__"
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadDataError(f"{path}: its safetensors header is not understood: {error!r}") from error
    return [TensorMeta(name, dtype, shape) for _, name, dtype, shape in entries]


def _header_of(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if header_bytes > _MAX_HEADER_BYTES:
                raise ValueError(f"its header would have {header_bytes} bytes")
            return json.loads(file.read(header_bytes))
    except FileNotFoundError:
        raise NotFoundError(f"there is no {path}; give a directory with a checkpoint in safetensors files") from None
    except ValueError as error:
        raise BadDataError(f"{path} is no safetensors file: {error}") from error
