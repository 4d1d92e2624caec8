"""What it costs to record a trainer's bridge, and what publishes cost then: Megatron-core's model of a Qwen3-MoE on two ranks, TP2
and EP2, which mbridge exports; that model, and one of a quarter of its size.

The baseline of an opening is one export by the bridge, that of a publish is `from_stream` over it; a family's rules stand beside
both. Seconds are the slower rank's. Bytes between ranks are what TCP delivered to both, by the sockets' own counters. Memory is the
most that a rank had in it above what it had before; that of a publish by rules, in warm slots, is a figure of its own. All of them
take turns. A table of medians goes to stderr, too.
"""

import contextlib
import ctypes
import gc
import os
import re
import socket as sockets
import statistics
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import program
import torch
import torch.distributed as dist
from harness import Agent, Cluster
from hf_models import tiny_config
from ranks import Rank, Ranks

import lockstep

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # they miss Transformer Engine
    import mbridge_loader
    from megatron_models import build_chunks, megatron_on_cpu
    from topologies import topology_of

LAYER = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 64, "dtype": "bfloat16"}
EXPERTS = {"num_experts": 16, "moe_intermediate_size": 768}
VOCABULARY_PER_LAYER = 1024
LAYER_BYTES = 85_000_000  # with its share of the embedding and the head
LAYERS = 8
COPIES = 14.0  # weights, their stand-ins, what the heap keeps of exports, and two slots of three models
OPENINGS = 3  # repeats of what takes long
WARMING = 2  # publishes of each kind: both slots were written then
CHANGED = 97  # of so many elements one changes from version to version
MEMORY_LIMIT = 16 << 20  # of a publish by rules
BYTES_RECEIVED = 128  # its place in Linux's struct tcp_info
BY_RECORD, BY_RULES, BY_STREAM = "by_record", "by_rules", "from_stream"  # models of the agent
EXPORT, OPEN_BY_RULES = "one export by the bridge", "opening by the family's rules"
OPEN, OPEN_AGAIN = "opening, the bridge recorded", "opening again, recorded before"
PUBLISH = {
    BY_RECORD: "`publish` by the record",
    BY_RULES: "`publish` by rules",
    BY_STREAM: "`publish` by `from_stream` over the bridge",
}
# name, of what, which of its costs, against that of what
FIGURES = (
    ("bridge_open", OPEN, "seconds", EXPORT),
    ("bridge_open_again", OPEN_AGAIN, "seconds", EXPORT),
    ("bridge_open_memory", OPEN, "memory", EXPORT),
    ("bridge_publish", PUBLISH[BY_RECORD], "seconds", PUBLISH[BY_STREAM]),
    ("bridge_publish_rules", PUBLISH[BY_RECORD], "seconds", PUBLISH[BY_RULES]),
)


@dataclass(frozen=True)
class Cost:
    """Of what all ranks do together: the slower one's seconds, the bytes that both received, the most memory that one takes, and how
    often the exporter ran."""

    seconds: float
    bytes_between_ranks: float
    memory: float
    passes: float


def median(costs: "list[Cost]") -> Cost:
    return Cost(*(statistics.median(values) for values in zip(*(asdict(cost).values() for cost in costs))))


# ---- on a rank ----


def build(rank: Rank, config: Any) -> None:
    rank.hf, rank.publishers, rank.passes = config, {}, 0
    warnings.simplefilter("ignore")
    rank.chunks = build_chunks(config, rank.topology, te_names=True)


def export(rank: Rank) -> "Iterator[tuple[str, torch.Tensor]]":
    rank.passes += 1
    with mbridge_loader.exported(rank.chunks, rank.hf, rank.topology) as tensors:
        yield from tensors


def export_once(rank: Rank) -> None:
    for _ in export(rank):
        pass


def open_by_record(rank: Rank, socket: Path, cache: Path) -> None:
    os.environ["XDG_CACHE_HOME"] = str(cache)
    rank.publishers[BY_RECORD] = lockstep.Publisher.from_megatron(
        rank.chunks, recorded_from=lambda: export(rank), socket=socket, model=BY_RECORD
    )


def open_by_rules(rank: Rank, socket: Path) -> None:
    rank.publishers[BY_RULES] = lockstep.Publisher.from_megatron(rank.chunks, rank.hf, socket=socket, model=BY_RULES)


def open_stream(rank: Rank, socket: Path) -> None:
    layout = [meta for meta, _ in rank.publishers[BY_RULES].layout]
    rank.publishers[BY_STREAM] = lockstep.Publisher.from_stream(
        layout, socket=socket, model=BY_STREAM, rank=rank.number
    )


def model_bytes(rank: Rank) -> int:
    return sum(meta.nbytes for meta, _ in rank.publishers[BY_RULES].layout)


def close_all(rank: Rank) -> None:
    while rank.publishers:
        rank.publishers.popitem()[1].close()


def change(rank: Rank) -> None:
    with torch.no_grad():
        for chunk in rank.chunks:
            for parameter in chunk.parameters():
                parameter.view(-1)[::CHANGED].neg_()


def publish(rank: Rank, kind: str, version: int) -> None:
    tensors = {"tensors": export(rank)} if kind == BY_STREAM else {}
    rank.publishers[kind].publish(version=version, **tensors)


def received_bytes() -> int:
    """By this process's TCP connections, since each was made."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            if os.readlink(entry).startswith("socket:"):
                total += received_by(int(entry.name))
    return total


def received_by(descriptor: int) -> int:
    with sockets.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family not in (sockets.AF_INET, sockets.AF_INET6):
            return 0
        info = connection.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, 256)
        return int(struct.unpack_from("Q", info, BYTES_RECEIVED)[0])


def memory_bytes(kind: str) -> int:
    """VmRSS, or VmHWM: the most of it since that was reset."""
    return int(re.search(rf"{kind}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) << 10


def measured(rank: Rank, act: "Callable[..., None]", *arguments: Any) -> Cost:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    rank.passes = 0
    dist.barrier()
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    memory, received = memory_bytes("VmRSS"), received_bytes()
    begin = time.perf_counter()
    with megatron_on_cpu():
        act(rank, *arguments)
    seconds = time.perf_counter() - begin
    return Cost(seconds, received_bytes() - received, memory_bytes("VmHWM") - memory, rank.passes)


# ---- of all ranks ----


def together(ranks: Ranks, act: "Callable[..., None]", *arguments: Any) -> Cost:
    costs = ranks.call(measured, act, *arguments)
    return Cost(
        max(cost.seconds for cost in costs),
        sum(cost.bytes_between_ranks for cost in costs),
        max(cost.memory for cost in costs),
        costs[0].passes,
    )


def openings(ranks: Ranks, agent: Agent, repeats: int) -> "dict[str, list[Cost]]":
    """Publishers by the record and by rules stay open."""
    costs: "dict[str, list[Cost]]" = {what: [] for what in (EXPORT, OPEN, OPEN_AGAIN, OPEN_BY_RULES)}
    for _ in range(repeats):
        ranks.call(close_all)
        costs[EXPORT].append(together(ranks, export_once))
        with tempfile.TemporaryDirectory() as cache:
            costs[OPEN].append(together(ranks, open_by_record, agent.socket, cache))
            ranks.call(close_all)
            costs[OPEN_AGAIN].append(together(ranks, open_by_record, agent.socket, cache))
        costs[OPEN_BY_RULES].append(together(ranks, open_by_rules, agent.socket))
    return costs


def publishes(ranks: Ranks, agent: Agent, repeats: int) -> "dict[str, list[Cost]]":
    ranks.call(open_stream, agent.socket)
    costs: "dict[str, list[Cost]]" = {BY_RECORD: [], BY_RULES: [], BY_STREAM: []}
    for version in range(1, WARMING + repeats + 1):
        ranks.call(change)
        for kind, of_kind in costs.items():
            of_kind.append(together(ranks, publish, kind, version))
            agent.wait_for(version, kind)
    return {PUBLISH[kind]: of_kind[WARMING:] for kind, of_kind in costs.items()}


def measure(layers: int, repeats: int) -> "tuple[int, dict[str, list[Cost]]]":
    """Bytes of a model of so many layers, and all costs of it."""
    config = tiny_config(
        "qwen3_moe", **LAYER, **EXPERTS, vocab_size=VOCABULARY_PER_LAYER * layers, num_hidden_layers=layers
    )
    with Cluster() as cluster, Ranks(topology_of("tp2ep2"), timeout_s=600) as ranks:
        agent = cluster.agent()
        ranks.call(build, config)
        costs = openings(ranks, agent, min(repeats, OPENINGS))
        costs.update(publishes(ranks, agent, repeats))
        return ranks.call(model_bytes)[0], costs


def two_digits(number: float) -> str:
    return f"{number:.2g}" if number < 10 else f"{number:.0f}"


def of_bytes(number: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def print_table(total: int, rows: "list[dict[str, Any]]") -> None:
    """As docs/performance.md has it."""
    head = f"\n{of_bytes(total)}:\n| what | time | of an export | passes of the bridge | between ranks | memory of a rank |"
    print(head, "|---|---:|---:|---:|---:|---:|", sep="\n", file=sys.stderr)
    for of in rows:
        time_taken, exports, passes = f"{two_digits(of['seconds'])} s", two_digits(of["exports"]), f"{of['passes']:.0f}"
        costs = of["what"], time_taken, exports, passes, of_bytes(of["bytes_between_ranks"]), of_bytes(of["memory"])
        print(f"| {' | '.join(costs)} |", file=sys.stderr)


def main() -> None:
    options = program.options(COPIES, LAYERS * LAYER_BYTES, LAYER_BYTES, repeats=5)
    largest = max(1, options.model_bytes // LAYER_BYTES)
    for layers in sorted({largest, max(1, largest // 4)}):
        total, costs = measure(layers, options.repeats)
        medians = {what: median(of) for what, of in costs.items()}
        rows = [
            {"what": what, **asdict(cost), "exports": cost.seconds / medians[EXPORT].seconds}
            for what, cost in medians.items()
        ]
        program.print_series("bridge", "", total, rows)
        print_table(total, rows)

    for name, what, of, baseline in FIGURES:
        values, baselines = ([getattr(cost, of) for cost in costs[whose]] for whose in (what, baseline))
        program.print_figure(name, "s" if of == "seconds" else "B", total, values, baselines)
    memory = [cost.memory for cost in costs[PUBLISH[BY_RULES]]]
    program.print_figure("publish_extra_memory", "B", total, memory, [MEMORY_LIMIT])


if __name__ == "__main__":
    main()
