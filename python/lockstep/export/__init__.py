"""The trainer's side: publishes weights, loads checkpoints. PyTorch and trainers are imported by what needs them."""

from lockstep.export._adapter import adapter
from lockstep.export._bucket_ring import BucketRing
from lockstep.export._config import ExportConfig
from lockstep.export._exporter import Exporter
from lockstep.export._fsdp import fsdp
from lockstep.export._importer import Importer
from lockstep.export._megatron import megatron, tensors_meta
from lockstep.export._named_tensors import named_tensors
from lockstep.export._parts import Part
from lockstep.export._piece import Piece
from lockstep.export._publisher import Publisher
from lockstep.export._saved_tensors import saved_tensors
from lockstep.export._stream_publisher import StreamPublisher
from lockstep.export._ties import without_ties

__all__ = [
    "BucketRing",
    "ExportConfig",
    "Exporter",
    "Importer",
    "Part",
    "Piece",
    "Publisher",
    "StreamPublisher",
    "adapter",
    "fsdp",
    "megatron",
    "named_tensors",
    "saved_tensors",
    "tensors_meta",
    "without_ties",
]
