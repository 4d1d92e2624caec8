"""Guards of trainers with several ranks: every rank is told of a version that is refused, whatever it writes."""

from pathlib import Path

import pytest
import torch
import trainer
from harness import MODEL
from ranks import Rank, Ranks
from topologies import Topology

import lockstep


def open_guarded(rank: Rank, socket: Path, away: "tuple[int, ...]") -> None:
    here = rank.number not in away
    trainer.open_exporter(rank, socket, MODEL, guard=lockstep.Guard(), on_agent_host=here)


def publish_nan(rank: Rank) -> None:
    with torch.no_grad():
        next(rank.chunks[0].parameters()).fill_(float("nan"))
    rank.exporter.publish()


@pytest.mark.parametrize("away", [(), (1,)], ids=["one_host", "two_hosts"])
@pytest.mark.parametrize("topology", [Topology(dp=2), Topology(tp=2)], ids=["dp2", "tp2"])
def test_every_rank_is_told(cluster, checkpoints, topology, away):
    agent, good = cluster.agent(), checkpoints.get("qwen3", seed=1)
    with Ranks(topology) as ranks:
        ranks.call(trainer.build, good)
        ranks.call(trainer.load_by_mbridge, good)
        ranks.call(open_guarded, agent.socket, away)
        ranks.call(trainer.publish, 1)
        told = ranks.call(trainer.refusal, publish_nan)
        assert [kind for kind, _ in told] == ["BadDataError"] * 2
        assert all("elements are NaN or Inf, in " in text for _, text in told)
        ranks.call(trainer.load_by_mbridge, good)
        ranks.call(trainer.publish, 3)
        agent.wait_for(3)
