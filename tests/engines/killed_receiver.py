"""Kills a receiver at a step of its commit. For test_engine_hosts.py and vllm_rank.py, in a rank's process."""

import os
import signal

import lockstep


def kill_at(follower: lockstep.Follower, step: int, receiver: int) -> None:
    """The receiver with that process id is killed when it asks this rank whether other hosts have come so far."""
    rank = follower._rank
    agree = rank._agree

    def dying(version, body: bytes) -> int:
        if body[0] == step:
            rank._agree = agree
            os.kill(receiver, signal.SIGKILL)
        return agree(version, body)

    rank._agree = dying
