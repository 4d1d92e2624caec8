"""Which models are held against which topologies."""

from typing import NamedTuple

from hf_models import MIXTURES, has_mtp
from topologies import DENSE, EXPERTS, Topology, topology_of

EVERYWHERE = ("llama", "qwen2", "qwen3_moe", "deepseek_v3")
SOMEWHERE = {
    "qwen3": ("tp2pp2", "tp4", "layout"),
    "qwen2_moe": ("tp2ep2", "ep2etp2", "tp2pp2"),
    "mixtral": ("tp2ep2", "etp2", "pp2vpp2"),
    "moonlight": ("tp2pp2ep2", "uneven", "tp2"),
    "glm4_moe": ("tp2pp2ep2", "layout", "mtp_alone", "tp4"),
}
TE_NAMED = {
    "llama": ("tp2pp2",),
    "qwen2": ("pp2vpp2",),
    "qwen3_moe": ("ep2etp2", "tp2ep2"),
    "mixtral": ("etp2",),
    "deepseek_v3": ("tp2pp2", "tp2ep2"),
    "moonlight": ("tp2",),
    "glm4_moe": ("tp2pp2ep2",),
}


class Case(NamedTuple):
    """A model on a topology, with the names of Megatron's local layer spec or of TransformerEngine's."""

    model: str
    topology_name: str
    te_names: bool = False

    @property
    def topology(self) -> Topology:
        return topology_of(self.topology_name, has_mtp(self.model))

    def __str__(self) -> str:
        return f"{self.model}-{self.topology_name}{'-te' if self.te_names else ''}"


def _names_for(model: str) -> "list[str]":
    names = list(DENSE) + (list(EXPERTS) if model in MIXTURES else [])
    return names + ["mtp_alone"] if has_mtp(model) else names


# What mbridge can load.
CASES = [Case(model, name) for model in EVERYWHERE for name in _names_for(model)]
CASES += [Case(model, name) for model, names in SOMEWHERE.items() for name in names]
CASES += [Case(model, name, te_names=True) for model, names in TE_NAMED.items() for name in names]
