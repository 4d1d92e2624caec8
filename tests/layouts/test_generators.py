"""Real Megatron models, gathered by mbridge's generator, which verl and others publish from, on every rank."""

from pathlib import Path

import mbridge_loader
import pytest
import trainer
from harness import MODEL
from hf_models import published_tensors
from ranks import Rank, Ranks
from topologies import topology_of

import lockstep


def open_publisher(rank: Rank, socket: Path, checkpoint: "Path | None", writers: int) -> bool:
    """By the headers of `checkpoint`, or a first pass; whether this rank writes."""
    with mbridge_loader.exported(rank.chunks, rank.hf, rank.topology) as generator:
        rank.publisher = lockstep.Publisher.from_stream(
            checkpoint or generator, model=MODEL, socket=socket, rank=rank.number, writers=writers, call_timeout=30
        )
    return rank.publisher.writes


def publish(rank: Rank, version: int, wrong: str = "") -> None:
    """Publishes what mbridge gives; the writer gets one tensor in another shape where its name is `wrong`."""
    with mbridge_loader.exported(rank.chunks, rank.hf, rank.topology) as generator:
        changed = ((name, tensor[1:] if name == wrong else tensor) for name, tensor in generator)
        rank.publisher.publish(version=version, tensors=changed if rank.publisher.writes else generator)


@pytest.mark.parametrize("writers", (1, 2))
@pytest.mark.parametrize("first_pass", (False, True), ids=("headers", "first pass"))
@pytest.mark.parametrize("model, topology", [("llama", "tp2pp2"), ("qwen3_moe", "ep2etp2")])
def test_a_receiver_holds_what_mbridge_gathers(cluster, checkpoints, model, topology, first_pass, writers):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    first, second = checkpoints.get(model, seed=1), checkpoints.get(model, seed=2)
    with Ranks(topology_of(topology)) as ranks:
        ranks.call(trainer.build, first, te_names=True)
        opened = ranks.call(open_publisher, agent.socket, None if first_pass else first, writers)
        assert opened == [rank < writers for rank in range(len(opened))] and len(opened) > 1
        for version, checkpoint in enumerate((first, second), start=1):
            ranks.call(trainer.load_by_mbridge, checkpoint)
            ranks.call(publish, version)
            receiver.wait_for(published_tensors(checkpoint))


def test_a_wrong_tensor_leaves_no_rank_in_a_collective_and_the_next_version_works(cluster, checkpoints):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    checkpoint = checkpoints.get("llama")
    name = "model.layers.0.mlp.down_proj.weight"
    with Ranks(topology_of("tp2pp2")) as ranks:
        ranks.call(trainer.build, checkpoint, te_names=True)
        ranks.call(trainer.load_by_mbridge, checkpoint)
        ranks.call(open_publisher, agent.socket, checkpoint, 1)
        refused = ranks.call(trainer.refusal, publish, 1, wrong=name)
        assert refused[0][0] == "BadDataError" and f'tensor "{name}": it is BF16' in refused[0][1]
        assert refused[1:] == [("", "")] * 3
        ranks.call(publish, 2)
        receiver.wait_for(published_tensors(checkpoint))
