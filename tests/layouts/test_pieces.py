"""Trainers that shard by themselves: pieces with their places, and tensors that are made anew for every version."""

import pytest
import torch
from harness import MODEL
from ranks import Ranks
from topologies import Topology

import lockstep

WHOLE = {"w": torch.arange(7 * 6).view(7, 6).float(), "bias": torch.arange(5).float()}


def publish(rank, socket):
    """Rank 0 has the first three rows of w, rank 1 the others, in memory of columns; both have the bias."""
    w = WHOLE["w"]
    if rank.number == 0:
        pieces = {"w": lockstep.Piece(w[:3], (7, 6), (0, 0))}
    else:
        pieces = {"w": lockstep.Piece(w[3:].t().contiguous().t(), (7, 6), (3, 0))}
    pieces["bias"] = lockstep.Piece(WHOLE["bias"], (5,), (0,))
    with lockstep.Publisher.from_tensors(pieces, socket=socket, model=MODEL) as exporter:
        exporter.publish(version=1)


def publish_with_a_gap(rank, socket):
    with pytest.raises(lockstep.BadDataError, match='"w"'):
        piece = lockstep.Piece(WHOLE["w"][:3], (7, 6), (4 * rank.number, 0))
        lockstep.Publisher.from_tensors({"w": piece}, socket=socket, model=MODEL)


def test_a_receiver_holds_what_the_pieces_are_of(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with Ranks(Topology(dp=2)) as ranks:
        ranks.call(publish_with_a_gap, agent.socket)
        ranks.call(publish, agent.socket)
        receiver.wait_for(WHOLE)
