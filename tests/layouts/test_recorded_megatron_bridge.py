"""Models of Megatron-Bridge's own providers, published as its own exporter exports them, which is recorded once."""

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import megatron_bridge_models
import pytest
import torch
from harness import wait_until
from megatron_bridge_models import FAMILIES, has_experts
from megatron_bridge_stand_ins import use_megatron_bridge
from ranks import Ranks
from safetensors.torch import load_file
from topologies import Topology

TOPOLOGIES = {
    "one": Topology(),
    "tp2": Topology(tp=2),
    "pp2": Topology(pp=2),
    "pp2vpp2": Topology(pp=2, vpp=2),
    "uneven": Topology(pp=2, first_layers=3),
    "tp2pp2": Topology(tp=2, pp=2),
    "tp2ep2": Topology(tp=2, ep=2, etp=1),
    "ep2": Topology(dp=2, ep=2),
    "etp2": Topology(dp=2, etp=2),
    "ep2etp2": Topology(tp=2, dp=2, ep=2),
}
OF_EXPERTS = ("tp2ep2", "ep2", "etp2", "ep2etp2")


class Case(NamedTuple):
    family: str
    topology_name: str

    @property
    def topology(self) -> Topology:
        return TOPOLOGIES[self.topology_name]

    def __str__(self) -> str:
        return f"{self.family}-{self.topology_name}"


CASES = [
    Case("gemma2", "tp2"),
    Case("qwen3_vl", "pp2"),
    Case("qwen3_next", "tp2"),
    Case("gpt_oss", "ep2"),
    Case("deepseek_v3", "pp2vpp2"),
]
BY_GENERATOR = Case("llama", "pp2")
BY_RULES = Case("mistral", "tp2")
_SPLIT_BIASES = "Bias in Moe is only supported when ETP==1"
# What Megatron-Bridge or Megatron-core themselves refuse to build or to export, and their reason.
REFUSED = {
    **{Case("gpt_oss", name): _SPLIT_BIASES for name in ("tp2", "tp2pp2", "etp2", "ep2etp2")},
    **{
        Case("glm4_moe_mtp", name): "Tensor exists on more than one PP rank"  # the embedding that MTP shares
        for name in ("pp2", "pp2vpp2", "uneven", "tp2pp2")
    },
    **{
        Case(family, "pp2vpp2"): "vp_stage must be provided if virtual pipeline model parallel size is set"
        for family in ("qwen3_vl", "qwen3_vl_moe")
    },
    Case("nemotron_h", "pp2vpp2"): "Virtual pipeline model parallelism is temporarily unsupported",
    Case("mistral3", "one"): "no attribute 'rope_parameters'",  # transformers 5 has it
}
NEVER_BUILT = ("mistral3",)
MORE = [
    case
    for family in FAMILIES
    for case in (Case(family, name) for name in TOPOLOGIES if has_experts(family) or name not in OF_EXPERTS)
    if case not in (*CASES, BY_GENERATOR, BY_RULES) and case not in REFUSED and family not in NEVER_BUILT
]


@pytest.fixture(scope="module")
def daemons(module_cluster):
    """One agent and one receiver for all cases; each is a model of its own name."""
    agent = module_cluster.agent()
    return agent, module_cluster.receiver(
        agent, models=["by-rules", *map(str, (*CASES, BY_GENERATOR, BY_RULES, *MORE))]
    )


class Processes:
    """The ranks of all cases: a process imports Megatron-Bridge for 7 s. They are others after a case that failed."""

    def __init__(self) -> None:
        self._ranks: "Ranks | None" = None

    @contextlib.contextmanager
    def of(self, topology: Topology) -> "Iterator[Callable[..., list[Any]]]":
        """What it gives calls a function on as many ranks."""
        if self._ranks is None or len(self._ranks.processes) < topology.world:
            self.close()
            self._ranks = Ranks(max(2, topology.world), prepare=use_megatron_bridge, start="spawn", timeout_s=120)
        call = functools.partial(self._ranks.call, only=range(topology.world))
        try:
            yield call
            call(megatron_bridge_models.leave)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
        self._ranks = None


@pytest.fixture(scope="module")
def processes():
    processes = Processes()
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(prefix="lockstep-megatron-bridge-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_receiver_holds_what_megatron_bridge_exports(daemons, processes, folder, case):
    follow(*daemons, processes, folder, case)


def test_a_generator_of_its_tensors_may_be_given(daemons, processes, folder):
    follow(*daemons, processes, folder, BY_GENERATOR, by_generator=True)


def test_a_family_by_rules_is_the_same(daemons, processes, folder):
    agent, receiver = daemons
    follow(agent, receiver, processes, folder, BY_RULES, by_rules=True)
    bridged = load_file(receiver.file(str(BY_RULES)))
    wait_until(lambda: differing(receiver.file("by-rules"), [bridged]) == [], "the same version by rules")


@pytest.mark.nightly
@pytest.mark.parametrize("case", MORE, ids=str)
def test_a_receiver_holds_what_megatron_bridge_exports_of_more(daemons, processes, folder, case):
    follow(*daemons, processes, folder, case)


@pytest.mark.nightly
@pytest.mark.parametrize("case", REFUSED, ids=str)
def test_megatron_bridge_itself_refuses(processes, folder, case):
    with processes.of(case.topology) as call:
        refused = call(
            megatron_bridge_models.refusal, case.family, case.topology, folder, f"file://{folder}/{case}.store"
        )
        assert all(REFUSED[case] in why for why in refused), refused


def follow(
    agent, receiver, processes: Processes, folder: Path, case: Case, by_generator: bool = False, by_rules: bool = False
) -> None:
    with processes.of(case.topology) as call:
        call(megatron_bridge_models.build, case.family, case.topology, folder, f"file://{folder}/{case}.store")
        call(megatron_bridge_models.fill, 0)
        call(megatron_bridge_models.open_publisher, agent.socket, str(case), by_generator)
        if by_rules:
            call(megatron_bridge_models.open_by_rules, agent.socket, "by-rules")
        for version in (1, 2):
            call(megatron_bridge_models.fill, version, alike=by_rules)
            if by_rules:
                call(megatron_bridge_models.publish_by_rules, version)
            assert set(call(megatron_bridge_models.publish, version)) == {(0, 0)}
            exports = call(megatron_bridge_models.exported)
            wait_until(lambda: differing(receiver.file(str(case)), exports) == [], f"version {version} of {case}")


def differing(file: Path, exports: "list[dict[str, torch.Tensor]]") -> "list[str] | None":
    """The tensors of the file that no rank exports, but for rows that are padding; None before there is a file.

    Replicas have other values on every rank, so a tensor is one rank's export from its first element to its last.
    """
    if not file.exists():
        return None
    held = load_file(file)
    return sorted(held.keys() ^ exports[0].keys()) or [
        name
        for name, tensor in held.items()
        if not any(same_bits(tensor, export[name][: len(tensor)]) for export in exports)
    ]


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)
