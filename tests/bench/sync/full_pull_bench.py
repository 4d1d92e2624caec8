"""How fast a full pull is, every block hashed on the way. Over lanes and loopback, against plain sendfile and recv of the
same bytes over as many connections (plain_stream.py); out of the memory of an agent on the same host, from negotiation to
the committed replica, against the same over lanes. All take turns, and fill memory that is warm.
"""

import program
from harness import Cluster, Receiver
from plain_stream import PlainStream
from processes import Trainer, check
from weights import Weights

COPIES = 5.0  # the trainer's, a slot, two replicas, the stream's own
LANES = 4
WARMING = 2
PHASES = ("negotiate_us", "pull_us", "apply_us", "commit_us")


def full_pull(receiver: Receiver, local: bool = False) -> dict:
    """The record of one, which must have come all by lanes, or all by memory."""
    record = receiver.ask("pull", "--full")
    size = record["model_bytes"]
    return check(record, mode="full", payload_bytes=size, local_bytes=size if local else 0)


def whole_seconds(record: dict) -> float:
    return sum(record[phase] for phase in PHASES) / 1e6


def measure(cluster: Cluster, options: program.Options) -> None:
    """Prints both figures."""
    memory = cluster.directory / "pull.sock"
    hidden = memory.with_suffix(".hidden")  # where the receiver does not find it
    agent = cluster.agent(local_socket=memory)
    receiver = cluster.receiver(agent, follow=False, lanes=LANES)
    trainer = Trainer(agent, Weights(options.model_bytes))
    trainer.publish()
    trainer.wait_served()
    size = trainer.weights.flat.nbytes
    [slot] = [path for path in cluster.directory.rglob("slot-0") if path.is_file()]
    stream = PlainStream(slot, slot.stat().st_size - size, size, LANES)  # of the same memory
    local, lanes, plain = [], [], []
    for _ in range(WARMING + options.repeats):
        local.append(full_pull(receiver, local=True))
        memory.rename(hidden)
        lanes.append(full_pull(receiver))
        hidden.rename(memory)
        plain.append(stream.seconds())
    stream.close()
    trainer.close()
    rates = [size / record["pull_us"] / 1e3 for record in lanes[WARMING:]]
    program.print_figure("full_pull", "GB/s", size, rates, [size / seconds / 1e9 for seconds in plain[WARMING:]])
    seconds = [[whole_seconds(record) for record in records[WARMING:]] for records in (local, lanes)]
    program.print_figure("colocated_full_pull", "s", size, *seconds)


if __name__ == "__main__":
    with Cluster() as cluster:
        measure(cluster, program.options(COPIES))
