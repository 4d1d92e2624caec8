"""How a Megatron trainer is spread over ranks, and joining such a world on CPU over Gloo."""

from collections.abc import Callable
from dataclasses import dataclass

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer.enums import LayerType
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout


@dataclass(frozen=True)
class Topology:
    """Sizes of the parallel dimensions, and how layers are laid over pipeline stages.

    ``tp`` etc. are Megatron's names. World = tp * pp * cp * dp; experts use the same ranks as etp * ep * pp * (the
    rest, which are replicas). ``etp`` None means Megatron's default, the same as tp.
    """

    tp: int = 1
    pp: int = 1
    vpp: "int | None" = None
    cp: int = 1
    ep: int = 1
    etp: "int | None" = None
    dp: int = 1
    first_layers: "int | None" = None
    last_layers: "int | None" = None
    layout: "str | None" = None
    embedding_in_split: bool = False  # counts as a layer where layers are split over stages
    loss_in_split: bool = False

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.tp * self.pp * self.cp * self.dp


# Every dense topology, then those that only make sense for a mixture of experts. Models have four layers.
DENSE = {
    "tp2": Topology(tp=2),
    "pp2": Topology(pp=2),
    "tp2pp2": Topology(tp=2, pp=2),
    "pp2vpp2": Topology(pp=2, vpp=2),
    "uneven": Topology(pp=2, first_layers=3),
    "layout": Topology(pp=2, layout="Et|tttL"),
    "dp2": Topology(dp=2),
    "cp2": Topology(tp=2, cp=2),
    "tp4": Topology(tp=4),  # more ranks than key/value heads
}
EXPERTS = {
    "tp2ep2": Topology(tp=2, ep=2, etp=1),
    "ep2etp2": Topology(tp=2, dp=2, ep=2),
    "etp2": Topology(dp=2, etp=2),
    "tp2pp2ep2": Topology(tp=2, pp=2, ep=2, etp=1),
}
# The MTP layers on the last stage with the loss, and on a stage of their own.
WITH_MTP = {
    "layout": Topology(pp=2, layout="Et|tttmL"),
    "mtp_alone": Topology(pp=4, layout="Ett|tt|m|L"),
}


def topology_of(name: str, mtp: bool = False) -> Topology:
    """A topology by name, for a model with or without MTP layers."""
    return WITH_MTP[name] if mtp and name in WITH_MTP else {**DENSE, **EXPERTS}[name]


def _embedding_ranks(topology: Topology) -> "Callable[[list[int]], list[int]] | None":
    """Which ranks of a pipeline hold the embedding: first and last, and with a layout those of MTP layers, too."""
    if topology.layout is None or "m" not in topology.layout:
        return None
    stages = PipelineParallelLayerLayout(topology.layout, topology.pp).layout
    with_mtp = {pp for pp, chunks in enumerate(stages) if any(LayerType.mtp in chunk for chunk in chunks)}
    return lambda ranks: [ranks[stage] for stage in sorted({0, len(ranks) - 1} | with_mtp)]


def join(topology: Topology, rank: int, init_method: str) -> None:
    """Becomes `rank` of the world, with Megatron's parallel state set up."""
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=topology.world)
    embedding_ranks = _embedding_ranks(topology)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=topology.tp,
        pipeline_model_parallel_size=topology.pp,
        virtual_pipeline_model_parallel_size=topology.vpp,
        context_parallel_size=topology.cp,
        expert_model_parallel_size=topology.ep,
        expert_tensor_parallel_size=topology.etp,
        create_gloo_process_groups=False,
        **({"get_embedding_ranks": embedding_ranks} if embedding_ranks else {}),
    )
    initialize_rng_tracker(inference_rng_tracker=True)  # the usual one wants a CUDA generator
