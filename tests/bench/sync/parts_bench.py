"""A model in four parts, each at an agent whose lanes have 1 Gbit/s, against all of it at one such agent: the seconds that a receiver
pulls, in full and by the delta of 20 % changed elements. In turns. The rate limit of lanes stands for the agents' links.
"""

import json
import secrets
from concurrent.futures import ThreadPoolExecutor

import program
from harness import Cluster
from processes import WARMING, check, wait_published
from weights import Weights

COPIES = 11.0  # the trainer's; of both, two slots and two replicas; deltas
PARTS = 4
BYTES_PER_S = 125_000_000
MOST_BYTES = 512 << 20  # four seconds of one link
DENSITY = 0.2  # of 1 %, a delta is a few turns of the rate limit


class Side:
    """The model at `count` agents, and a receiver of it."""

    def __init__(self, cluster: Cluster, weights: Weights, count: int) -> None:
        size = {name: tensor.bits.size for name, tensor in weights.tensors.items()}
        # The largest first, each to the part that has least.
        shares: "list[list[str]]" = [[] for _ in range(count)]
        for name in sorted(size, key=size.__getitem__, reverse=True):
            min(shares, key=lambda share: sum(size[each] for each in share)).append(name)
        self.weights = weights
        self.shares = shares
        agents = [cluster.agent(name=f"agent-{count}-{n}", lane_rate_limit=BYTES_PER_S) for n in range(count)]
        self.receiver = cluster.receiver(agents, name=f"of-{count}", lanes=2, streaming=False)
        run = secrets.token_hex(16)
        self.publishers = [
            agent.publisher(
                {name: weights.tensors[name] for name in share},
                run=run if count > 1 else None,
                attachments={"lockstep_part.json": json.dumps({"part": part, "parts": count})} if count > 1 else None,
            )
            for part, (agent, share) in enumerate(zip(agents, shares))
        ]
        self.version = 0

    def publish(self) -> None:
        self.version += 1
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._publish, range(len(self.publishers))))
        wait_published(self.receiver, self.version)

    def _publish(self, part: int) -> None:
        tensors = {name: self.weights.tensors[name] for name in self.shares[part]}
        self.publishers[part].publish(version=self.version, tensors=tensors)

    def delta(self) -> float:
        with self.receiver.recorded_syncs() as records:
            self.publish()
        return check(records[-1], mode="delta")["pull_us"] / 1e6

    def full(self) -> float:
        return check(self.receiver.ask("pull", "--full"), mode="full")["pull_us"] / 1e6


def main() -> None:
    options = program.options(COPIES)
    weights = Weights(min(options.model_bytes, MOST_BYTES))
    seconds: "dict[tuple[str, int], list[float]]" = {}
    with Cluster() as cluster:
        sides = {count: Side(cluster, weights, count) for count in (PARTS, 1)}
        for side in sides.values():
            side.publish()
        for _ in range(WARMING + options.repeats):
            weights.step(DENSITY)
            for count, side in sides.items():
                seconds.setdefault(("parts_delta", count), []).append(side.delta())
                seconds.setdefault(("parts_full_pull", count), []).append(side.full())
        for side in sides.values():
            for publisher in side.publishers:
                publisher.close()
    for name in ("parts_full_pull", "parts_delta"):
        own, one = (seconds[name, count][WARMING:] for count in (PARTS, 1))
        program.print_figure(name, "s", weights.flat.nbytes, own, one)


if __name__ == "__main__":
    main()
