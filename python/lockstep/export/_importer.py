"""Importer: loads a HuggingFace checkpoint into a sharded model, by the inverse of the export plan."""

import json
import os
from typing import Any, Mapping, Sequence

from lockstep.core import abi
from lockstep.export._c_tensors import c_locals, refuse_gpu_tensors, wait_for_gpu
from lockstep.export._named_tensors import named_tensors
from lockstep.export._parts import DESCRIPTION_FORMAT, Part


class Importer:
    """Fills a model's shards, on this rank, from a HuggingFace checkpoint.

    Nothing is communicated: each rank reads from the files just what it holds. Replicas, tied copies and all pipeline
    stages are filled; rows of a padded vocabulary become zero. Parts as ``Exporter`` takes them.
    """

    def __init__(self, parts: "Sequence[Part]") -> None:
        self._parts = list(parts)

    @classmethod
    def from_megatron(
        cls, model_chunks: Any, hf_config: Any, *, place: "Mapping[str, int] | None" = None
    ) -> "Importer":
        """A Megatron-core model; arguments as ``lockstep.megatron`` takes them."""
        from lockstep.export._megatron import megatron

        return cls([megatron(model_chunks, hf_config, place=place)])

    @classmethod
    def from_fsdp(cls, model: Any, *, dtype: Any = None) -> "Importer":
        """A transformers model under FSDP2; arguments as ``lockstep.fsdp`` takes them."""
        from lockstep.export._fsdp import fsdp

        return cls([fsdp(model, dtype=dtype)])

    @classmethod
    def from_named_tensors(cls, tensors: Any, *, dtype: Any = None) -> "Importer":
        """Tensors under HuggingFace names; arguments as ``lockstep.named_tensors`` takes them."""
        return cls([named_tensors(tensors, dtype=dtype)])

    def load(self, directory: "str | os.PathLike[str]", *, threads: int = 1) -> None:
        """Reads the checkpoint in ``directory``: model.safetensors, or the files of model.safetensors.index.json.

        Everything is checked before anything is written. BadDataError names the tensor that is missing, or of another
        shape or dtype; NotFoundError and IoError the file. Nothing else may use the tensors until it returns.
        """
        library = abi.load()
        description = {
            "format": DESCRIPTION_FORMAT,
            "on_agent_host": True,
            "parts": [part.describe() for part in self._parts],
        }
        tensors = [local for part in self._parts for local in part.locals()]
        refuse_gpu_tensors((tensor.name, tensor.owner) for tensor in tensors)
        wait_for_gpu(
            tensor.owner for tensor in tensors
        )  # a kernel that still initialises them would write over what is loaded
        abi.raise_failure(
            library.lockstep_import(
                os.fsencode(directory), json.dumps(description).encode(), c_locals(tensors), len(tensors), threads
            )
        )
