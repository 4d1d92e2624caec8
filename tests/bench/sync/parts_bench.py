"""A model in four parts against all of it at one agent, in turns.

Pulls: each agent's lanes have 1 Gbit/s, which stands for its link. The seconds that a receiver pulls, in full and by the delta of 20 %
changed elements.

Publishing: four ranks have a quarter each, as pipeline stages do. The seconds until publish has returned on all of them: with an agent
for each rank's host, and with one agent, to whose host three ranks send theirs.
"""

import json
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import program
import torch
from harness import MODEL, Cluster
from ports import ReservedPort
from processes import WARMING, check, wait_published
from ranks import Rank, Ranks
from weights import Weights

import lockstep

COPIES = 11.0  # the trainer's; of both, two slots and two replicas; deltas
PARTS = 4
BYTES_PER_S = 125_000_000
MOST_BYTES = 512 << 20  # four seconds of one link
BLOCKED_BYTES = 1 << 30  # of a trainer whose ranks share one machine's memory bandwidth
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


def open_rank(rank: Rank, elements: int, port: int, sockets: "list[Path]", by_host: bool) -> None:
    """This rank's quarter, in eight tensors."""
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank.number, world_size=PARTS
        )
        generator = torch.Generator().manual_seed(rank.number)
        rank.tensors = {
            f"stage.{rank.number}.{number}": torch.randn(elements // PARTS // 8, generator=generator).bfloat16()
            for number in range(8)
        }
    rank.publishers = getattr(rank, "publishers", {})
    rank.publishers[by_host] = lockstep.Publisher.from_tensors(
        rank.tensors,
        model=MODEL,
        socket=sockets[rank.number if by_host else 0],
        by_host=by_host,
        on_agent_host=by_host or rank.number == 0,
    )


def publish_rank(rank: Rank, by_host: bool) -> float:
    """The seconds that publish takes, begun on all ranks at once."""
    for tensor in rank.tensors.values():
        tensor[:: int(100 / DENSITY)] += 1
    torch.distributed.barrier()
    began = time.monotonic()
    rank.publishers[by_host].publish()
    return time.monotonic() - began


def blocked(model_bytes: int, times: int) -> "dict[bool, list[float]]":
    """The slowest rank's seconds, by whether each has its host's agent."""
    seconds: "dict[bool, list[float]]" = {True: [], False: []}
    with Cluster() as cluster, Ranks(PARTS) as ranks, ReservedPort() as port:
        agents = {
            by_host: [cluster.agent(name=f"agent-{by_host}-{n}") for n in range(PARTS if by_host else 1)]
            for by_host in seconds
        }
        for by_host, own in agents.items():
            ranks.call(open_rank, model_bytes // 2, port.number, [agent.socket for agent in own], by_host)
        for version in range(1, WARMING + times + 1):
            for by_host, all_ranks in seconds.items():
                all_ranks.append(max(ranks.call(publish_rank, by_host)))
                for agent in agents[by_host]:
                    agent.wait_for(version)
    return seconds


def main() -> None:
    options = program.options(COPIES, quick_bytes=400_000_000)  # with tensors for all parts
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
    size = min(options.model_bytes, BLOCKED_BYTES)
    of = {by_host: values[WARMING:] for by_host, values in blocked(size, options.repeats).items()}
    program.print_figure("parts_blocked", "s", size, of[True], of[False])


if __name__ == "__main__":
    main()
