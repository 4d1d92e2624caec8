"""How long an engine stands still for a version that is written into its ranks' memory, against loading a directory:
each rank opens the published file and copies its slices of every tensor into the same memory, as engines' loaders do.

Real daemons; four tensor-parallel ranks of a Llama as processes with host memory; 3 GB in bfloat16, less where memory is
short, 1 % of the elements changed in each version. What memory allows of the pauses is measured between the versions: each
rank writes as much, to random places, by the plainest loop.
"""

import ctypes
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import program
import torch
from engine_ranks import Job, attach, hold
from harness import MODEL, Cluster, Receiver, wait_until
from paths import BINARIES
from processes import Trainer
from ranks import Rank, Ranks
from safetensors import safe_open
from slicing import places
from weights import Weights, elements, llama

RANKS = 4
CHANGED = 0.01
HEADS, KEY_VALUE_HEADS = 16, 8
LAYERS, QUICK_LAYERS = 22, 1
REPEATS = 7
# The trainer's, two slots, two replicas, an engine's; one for lists and processes.
COPIES = 7.0
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
COLUMNS = ("o_proj", "down_proj")


def model_bytes(layers: int) -> int:
    return 2 * elements(llama(layers))


def fitting_layers(options: program.Options) -> int:
    """As many as `options` have memory for."""
    layers = 0
    while model_bytes(layers + 1) <= options.model_bytes:
        layers += 1
    return layers or sys.exit(program.EX_OSERR)


def jobs(engines: "list[str]", ranks: int, layers: int, socket: Path) -> "list[Job]":
    """Of every rank of each engine."""
    read_by_slicing = SimpleNamespace(
        model_type="llama",
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
    )
    return [
        Job(engine, rank, ranks, place, read_by_slicing, socket, MODEL)
        for engine in engines
        for rank, place in enumerate(places(ranks))
    ]


def build(rank: Rank, jobs: "list[Job]", layers: int) -> None:
    """Parameters of this rank, and the memory behind them."""
    meta = {name: torch.empty(shape, dtype=torch.bfloat16, device="meta") for name, shape in llama(layers).items()}
    hold(rank, jobs[rank.number], meta)


@torch.no_grad()
def reload(rank: Rank, path: Path) -> None:
    """What a rank does when it is notified of a new file: one copy of its slice of each tensor, out of the
    mapped file, into its parameters."""
    with safe_open(path, framework="pt") as file:
        for name, parameter in rank.module.named_parameters():
            kind = name.split(".")[-2]
            row = 0
            for part in FUSED.get(kind, (kind,)):
                whole = file.get_tensor(name.replace(kind, part))  # a view of the mapping
                if kind in COLUMNS:
                    whole = whole.chunk(RANKS, dim=1)[rank.number]
                elif "norm" not in kind:
                    whole = whole.chunk(RANKS)[rank.number]
                parameter[row : row + len(whole)].copy_(whole)
                row += len(whole)


def list_writes(rank: Rank) -> None:
    """As many places of each parameter as a version changes, rising, and what is there: to be written again."""
    generator = torch.Generator().manual_seed(rank.number)
    rank.writes = []
    for parameter in rank.module.parameters():
        bits = parameter.view(torch.int16).view(-1)
        count = max(1, int(bits.numel() * CHANGED))
        where = torch.randint(0, bits.numel(), (count,), generator=generator).sort().values
        rank.writes.append((bits, where.to(torch.int32), bits[where].clone()))


def write_plainly(rank: Rank) -> "tuple[float, float]":
    """When this rank began and ended its writes."""
    loop = ctypes.CDLL(str(BINARIES / "placement/scatter_loop.so")).lockstep_bench_scatter
    loop.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t]
    begin = time.perf_counter()
    for bits, where, values in rank.writes:
        loop(bits.data_ptr(), where.data_ptr(), values.data_ptr(), len(where))
    return begin, time.perf_counter()


def serving(receiver: Receiver, version: int, engines: int = 1) -> "list[dict]":
    """What the receiver says of its engines, once that many serve a version."""

    def all_serve() -> "list[dict]":
        found = [one for one in receiver.model_status()["rank_groups"] if one["serving"]["version"] == version]
        return found if len(found) == engines else []

    return wait_until(all_serve, f"version {version} is served", timeout_s=120)


def measure(cluster: Cluster, ranks: Ranks, layers: int, repeats: int) -> "list[list[float]]":
    """Seconds of the engine's pauses, of the same writes by a plain loop, and of reloading the version."""
    agent = cluster.agent()
    socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=socket)
    ranks.call(build, jobs(["engine"], RANKS, layers, socket), layers)
    trainer = Trainer(agent, Weights(llama(layers)))
    trainer.publish()
    ranks.call(attach)
    ranks.call(list_writes)
    rows = []
    for _ in range(2 + repeats):
        trainer.publish()
        [served] = serving(receiver, trainer.version)
        spans = ranks.call(write_plainly)
        begin = time.perf_counter()
        ranks.call(reload, receiver.file())
        reloaded = time.perf_counter() - begin
        floor = max(end for _, end in spans) - min(begin for begin, _ in spans)
        rows.append((served["last_pause_us"] / 1e6, floor, reloaded))
    trainer.close()
    return [list(column) for column in zip(*rows[2:])]  # memory is warm then


def main() -> None:
    options = program.options(COPIES, model_bytes(LAYERS), model_bytes(QUICK_LAYERS), repeats=REPEATS)
    torch.set_num_threads(1)
    layers = fitting_layers(options)
    with Cluster() as cluster, Ranks(RANKS, timeout_s=300) as ranks:
        pauses, floors, reloads = measure(cluster, ranks, layers, options.repeats)
    program.print_figure("pause_ratio", "s", model_bytes(layers), pauses, reloads)
    program.print_figure("pause_floor_ratio", "s", model_bytes(layers), floors, reloads)


if __name__ == "__main__":
    main()
