"""Real Megatron models, published as mbridge exports them: its exporter is recorded once, and each rank copies its own shards."""

import cases
import mbridge_loader
import pytest
import torch
import trainer
from cases import Case
from harness import MODEL
from hf_models import MIXTURES
from megatron_models import weights
from ranks import Rank, Ranks

import lockstep

CASES = [
    Case(model, topology, te_names=True)
    for model, topology in (
        ("llama", "tp2pp2"),
        ("qwen3_moe", "ep2etp2"),
        ("deepseek_v3", "tp2ep2"),
        ("glm4_moe", "tp2pp2ep2"),
    )
]
MORE = [
    Case(model, topology, te_names=True)
    for model in (*cases.EVERYWHERE, *cases.SOMEWHERE)
    for topology in ("tp2", "tp2pp2", "pp2vpp2", *(("tp2ep2", "ep2etp2", "tp2pp2ep2") if model in MIXTURES else ()))
]


def each_once(rank: Rank):
    """What mbridge exports. It gives an embedding again that is tied, or that layers for multi-token prediction have, too."""
    seen = set()
    with mbridge_loader.exported(rank.chunks, rank.hf, rank.topology) as generator:
        for name, tensor in generator:
            if name not in seen:
                yield name, tensor
            seen.add(name)


def exported(rank: Rank) -> "dict[str, torch.Tensor]":
    return {name: tensor.clone() for name, tensor in each_once(rank)}


def one_is_computed(rank: Rank):
    """As bridges give norms that Megatron centres at zero."""
    for name, tensor in each_once(rank):
        yield name, tensor + 1 if name == "model.norm.weight" else tensor


def one_less_on_the_last(rank: Rank):
    last = torch.distributed.get_world_size() - 1
    for name, tensor in each_once(rank):
        if rank.number != last or name != "model.norm.weight":
            yield name, tensor


def open_by_bridge(rank: Rank, socket, model: str, export=each_once) -> None:
    """And the weights stay as they are."""
    before = [(tensor, tensor.data_ptr(), tensor.clone()) for chunk in rank.chunks for _, tensor in weights(chunk)]
    rank.exporter = lockstep.Publisher.from_megatron(
        rank.chunks, recorded_from=lambda: export(rank), socket=socket, model=model, call_timeout=30
    )
    for tensor, address, value in before:
        assert tensor.data_ptr() == address and torch.equal(tensor, value)


@pytest.fixture(scope="module")
def daemons(module_cluster):
    """One agent and one receiver for all cases; each is a model of its own name."""
    agent = module_cluster.agent()
    return agent, module_cluster.receiver(agent, models=[str(case) for case in {*CASES, *MORE}])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_receiver_holds_what_mbridge_exports(daemons, checkpoints, case):
    follow(*daemons, checkpoints, case)


def test_a_tensor_that_is_no_copy_is_refused_on_every_rank(cluster, checkpoints):
    agent, checkpoint = cluster.agent(), checkpoints.get("llama")
    with Ranks(CASES[0].topology) as ranks:
        ranks.call(trainer.build, checkpoint, te_names=True)
        ranks.call(trainer.load_by_mbridge, checkpoint)
        refused = ranks.call(trainer.refusal, open_by_bridge, agent.socket, MODEL, export=one_is_computed)
        assert sorted(kind for kind, _ in refused) == ["AbortedError"] * 3 + ["BadDataError"]
        assert all('"model.norm.weight", whose elements are no copies' in why for _, why in refused)
        refused = ranks.call(trainer.refusal, open_by_bridge, agent.socket, MODEL, export=one_less_on_the_last)
        assert {kind for kind, _ in refused} == {"BadDataError"}
        assert all("gives other tensors on rank 3 than on rank 0" in why for _, why in refused)
        ranks.call(open_by_bridge, agent.socket, MODEL)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [case for case in MORE if case not in CASES], ids=str)
def test_a_receiver_holds_what_mbridge_exports_of_more(daemons, checkpoints, case):
    follow(*daemons, checkpoints, case)


def follow(agent, receiver, checkpoints, case: Case) -> None:
    checkpoint = checkpoints.get(case.model, seed=1)
    with Ranks(case.topology) as ranks:
        ranks.call(trainer.build, checkpoint, te_names=True)
        ranks.call(trainer.load_by_mbridge, checkpoint)
        ranks.call(open_by_bridge, agent.socket, str(case))
        for version, seed in enumerate((1, 2), start=1):
            ranks.call(trainer.load_by_mbridge, checkpoints.get(case.model, seed=seed))
            stats = ranks.call(trainer.publish, version)
            receiver.wait_for(ranks.call(exported)[0], model=str(case))
            assert {(rank.bytes_sent, rank.bytes_received) for rank in stats} == {(0, 0)}
