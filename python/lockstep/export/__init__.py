"""The trainer's side: publishes weights, loads checkpoints. PyTorch and trainers are imported by what needs them."""

from lockstep.core.derive import Fp8Block, Fp8BlockUe8m0, Fp8Channel, Fp8Tensor, Mxfp8, Nvfp4, Quantised
from lockstep.core.handle import CommonOptions
from lockstep.export._adapter import adapter
from lockstep.export._bucket_ring import BucketRing
from lockstep.export._config import ExportConfig
from lockstep.export._fsdp import fsdp
from lockstep.export._importer import Importer
from lockstep.export._megatron import megatron, tensors_meta
from lockstep.export._named_tensors import named_tensors
from lockstep.export._parts import Part
from lockstep.export._piece import Piece
from lockstep.export._publisher import Publisher, ShardedOptions, StreamOptions
from lockstep.export._saved_tensors import saved_tensors
from lockstep.export._ties import without_ties

__all__ = [
    "BucketRing",
    "CommonOptions",
    "ExportConfig",
    "Fp8Block",
    "Fp8BlockUe8m0",
    "Fp8Channel",
    "Fp8Tensor",
    "Importer",
    "Mxfp8",
    "Nvfp4",
    "Part",
    "Piece",
    "Publisher",
    "Quantised",
    "ShardedOptions",
    "StreamOptions",
    "adapter",
    "fsdp",
    "megatron",
    "named_tensors",
    "saved_tensors",
    "tensors_meta",
    "without_ties",
]
