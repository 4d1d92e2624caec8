"""Real Megatron models, published as mbridge exports them: its exporter is recorded once, and each rank copies its own shards. The same
models by their families' rules are the same."""

import cases
import mbridge_loader
import pytest
import torch
import trainer
from cases import Case
from harness import MODEL
from hf_models import MIXTURES, has_mtp
from megatron_models import weights
from ranks import Rank, Ranks

import lockstep

LATENT = ("deepseek_v3", "moonlight")
CASES = [
    Case(model, topology, te_names=True)
    for model, topology in (
        ("llama", "tp2pp2"),
        ("qwen3_moe", "ep2etp2"),
        ("deepseek_v3", "pp2vpp2"),
        ("glm4_moe", "tp2pp2ep2"),
    )
]
MORE = [
    Case(model, topology, te_names=True)
    for model in (*cases.EVERYWHERE, *cases.SOMEWHERE)
    for topology in ("tp2", "tp2pp2", "pp2vpp2", *(("tp2ep2", "ep2etp2", "tp2pp2ep2") if model in MIXTURES else ()))
    if model not in LATENT or topology == "pp2vpp2"
]


# Layers for multi-token prediction share these with the model. Checkpoints have them again, and mbridge gives the model's again.
SHARED = ("model.layers.*.embed_tokens.weight", "model.layers.*.shared_head.head.weight")


def exported(rank: Rank) -> "dict[str, torch.Tensor]":
    """Of a tensor that mbridge gives again, as one that is tied, the first."""
    found: "dict[str, torch.Tensor]" = {}
    with mbridge_loader.megatron_on_cpu(), torch.no_grad():
        for name, tensor in mbridge_loader.bridge_of(rank.hf, rank.topology).export_weights(rank.chunks):
            found.setdefault(name, tensor.clone())
    return found


class Doubling:
    """A bridge that computes one tensor."""

    def __init__(self, bridge) -> None:
        self._bridge = bridge

    def export_weights(self, chunks):
        for name, tensor in self._bridge.export_weights(chunks):
            yield name, tensor * 2 if name == "model.norm.weight" else tensor


class Counted(Doubling):
    """A bridge that counts its exports."""

    exports = 0

    def export_weights(self, chunks):
        Counted.exports += 1
        return self._bridge.export_weights(chunks)


class LessOnTheLast(Doubling):
    """A bridge that leaves a tensor out on the last rank."""

    def export_weights(self, chunks):
        last = torch.distributed.get_rank() == torch.distributed.get_world_size() - 1
        for name, tensor in self._bridge.export_weights(chunks):
            if not last or name != "model.norm.weight":
                yield name, tensor


def open_by_bridge(rank: Rank, socket, model: str, changed=None, **options) -> None:
    """And the weights stay as they are."""
    bridge = mbridge_loader.bridge_of(rank.hf, rank.topology)
    before = [(tensor, tensor.data_ptr(), tensor.clone()) for chunk in rank.chunks for _, tensor in weights(chunk)]
    with mbridge_loader.megatron_on_cpu():
        rank.exporter = lockstep.Publisher.from_megatron(
            rank.chunks,
            bridge=changed(bridge) if changed else bridge,
            socket=socket,
            model=model,
            call_timeout=30,
            **options,
        )
    for tensor, address, value in before:
        assert tensor.data_ptr() == address and torch.equal(tensor, value)


def open_again(rank: Rank, *arguments, **options) -> int:
    """By what is kept of the record; how often mbridge exports for it."""
    rank.exporter.close()
    Counted.exports = 0
    open_by_bridge(rank, *arguments, changed=Counted, **options)
    return Counted.exports


@pytest.fixture(scope="module")
def daemons(module_cluster):
    """One agent and one receiver for all cases; each is a model of its own name."""
    agent = module_cluster.agent()
    cases = {*CASES, *MORE}
    return agent, module_cluster.receiver(agent, models=[*map(str, cases), *map(by_rules, cases)])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_receiver_holds_what_mbridge_exports(daemons, checkpoints, case):
    follow(*daemons, checkpoints, case)


def test_a_tensor_that_is_no_copy_is_refused_on_every_rank(cluster, checkpoints):
    agent, checkpoint = cluster.agent(), checkpoints.get("llama")
    with Ranks(CASES[0].topology) as ranks:
        ranks.call(trainer.build, checkpoint, te_names=True)
        ranks.call(trainer.load_by_mbridge, checkpoint)
        refused = ranks.call(trainer.refusal, open_by_bridge, agent.socket, MODEL, changed=Doubling)
        assert sorted(kind for kind, _ in refused) == ["AbortedError"] * 3 + ["BadDataError"]
        assert all('"model.norm.weight", which is no copy of boxes' in why for _, why in refused)
        refused = ranks.call(trainer.refusal, open_by_bridge, agent.socket, MODEL, changed=LessOnTheLast)
        assert {kind for kind, _ in refused} == {"BadDataError"}
        assert all("gives other tensors on rank 3 than on rank 0" in why for _, why in refused)
        ranks.call(open_by_bridge, agent.socket, MODEL)


@pytest.mark.parametrize("model", ["deepseek_v3", pytest.param("moonlight", marks=pytest.mark.nightly)])
def test_shapes_are_those_of_the_checkpoint(cluster, checkpoints, model):
    """mbridge joins what latent attention has whole on every rank, as if each had a part."""
    agent, checkpoint = cluster.agent(), checkpoints.get(model)
    with Ranks(Case(model, "tp2").topology) as ranks:
        ranks.call(trainer.build, checkpoint, te_names=True)
        ranks.call(trainer.load_by_mbridge, checkpoint)
        for kind, why in ranks.call(trainer.refusal, open_by_bridge, agent.socket, MODEL, ignore=SHARED):
            assert kind == "AbortedError" or kind == "BadDataError" and "_proj" in why
            assert 'the exporter gives "model.layers.' in why and "; the checkpoint has [" in why


@pytest.mark.nightly
@pytest.mark.parametrize("case", [case for case in MORE if case not in CASES], ids=str)
def test_a_receiver_holds_what_mbridge_exports_of_more(daemons, checkpoints, case):
    follow(*daemons, checkpoints, case)


def follow(agent, receiver, checkpoints, case: Case) -> None:
    checkpoint = checkpoints.get(case.model, seed=1)
    ignore = SHARED if has_mtp(case.model) else ()
    with Ranks(case.topology) as ranks:
        ranks.call(trainer.build, checkpoint, te_names=True)
        ranks.call(trainer.load_by_mbridge, checkpoint)
        ranks.call(open_by_rules, agent.socket, by_rules(case))
        ranks.call(open_by_bridge, agent.socket, str(case), ignore=ignore)
        for version, seed in enumerate((1, 2), start=1):
            ranks.call(trainer.load_by_mbridge, checkpoints.get(case.model, seed=seed))
            stats = ranks.call(trainer.publish, version)
            ranks.call(publish_by_rules, version)
            tensors = ranks.call(exported)[0]
            receiver.wait_for(tensors, model=str(case))
            receiver.wait_for(tensors, model=by_rules(case))
            assert {(rank.bytes_sent, rank.bytes_received) for rank in stats} == {(0, 0)}
        assert set(ranks.call(open_again, agent.socket, str(case), ignore=ignore)) <= {1, 2}  # 2: a tensor comes again
        ranks.call(trainer.load_by_mbridge, checkpoint)
        ranks.call(trainer.publish, 1)
        receiver.wait_for(ranks.call(exported)[0], model=str(case))


def by_rules(case: Case) -> str:
    return f"{case}-by-rules"


def open_by_rules(rank: Rank, socket, model: str) -> None:
    rank.ruled = lockstep.Publisher.from_megatron(rank.chunks, rank.hf, socket=socket, model=model, call_timeout=30)


def publish_by_rules(rank: Rank, version: int) -> None:
    rank.ruled.publish(version=version)
