"""Follow a trainer's weights inside an inference engine's process. Needs PyTorch; nothing here needs liblockstep.so.

The directory that a receiver publishes, as tensors without a copy:

    with lockstep.Replica("/dev/shm/replicas/actor") as replica:
        model.load_state_dict(replica.state_dict())

A live module whose parameters the receiver writes in place, between forward passes:

    follower = lockstep.Follower(model, model="actor", socket="/run/raas-receiver/engine.sock")
    with follower.serving() as served:
        answer = model(prompt)  # all of it by version served.version
"""

from lockstep.engine._describe import describe
from lockstep.engine._follower import Follower
from lockstep.engine._protocol import Served
from lockstep.engine._replica import Replica, wait_for

__all__ = ["Follower", "Replica", "Served", "describe", "wait_for"]
