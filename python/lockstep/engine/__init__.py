"""Follow a trainer's weights inside an inference engine's process. Needs PyTorch; nothing here needs liblockstep.so.

The directory that a receiver publishes, as tensors without a copy:

    with lockstep.Replica("/dev/shm/lockstep-receiver/actor") as replica:
        model.load_state_dict(replica.state_dict())

A live module whose parameters the receiver writes in place, between forward passes:

    follower = lockstep.Follower(model, model="actor")
    with follower.serving() as served:
        answer = model(prompt)  # all of it by version served.version

A live module that takes its versions straight from a trainer on its host, out of a ``lockstep.BucketRing``:

    reader = lockstep.RingReader("/run/trainer/ring.sock", lockstep.IntoModule(model))
    served = reader.take()
"""

from lockstep.engine._describe import describe
from lockstep.engine._follower import Follower
from lockstep.engine._options import DescribeOptions
from lockstep.engine._replica import Published, Replica, published, wait_for
from lockstep.engine._ring_into import IntoLoader, IntoModule
from lockstep.engine._ring_memory import TensorSlice
from lockstep.engine._ring_reader import Into, RingReader
from lockstep.engine._served import Served

__all__ = [
    "DescribeOptions",
    "Follower",
    "Into",
    "IntoLoader",
    "IntoModule",
    "TensorSlice",
    "Published",
    "Replica",
    "RingReader",
    "Served",
    "describe",
    "published",
    "wait_for",
]
