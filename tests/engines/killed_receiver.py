"""Kills a receiver at a step of its commit. For test_engine_hosts.py and vllm_rank.py, in a rank's process."""

import os
import signal

import lockstep
from lockstep.engine._agreement import Answer


def kill_at(follower: lockstep.Follower, step: int, receiver: int, agreed: bool = False) -> None:
    """The receiver with that process id is killed when it asks this rank whether other hosts have come so far; ``agreed``: once they
    have, before it knows."""
    rank = follower._rank
    agree = rank._agree

    def dying(version, body: bytes) -> int:
        answer = None if body[0] == step and not agreed else agree(version, body)
        if body[0] == step and (not agreed or answer == Answer.YES):
            rank._agree = agree
            os.kill(receiver, signal.SIGKILL)
        return agree(version, body) if answer is None else answer

    rank._agree = dying
