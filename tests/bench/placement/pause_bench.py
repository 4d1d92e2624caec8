"""How long an engine stands still for a version that is written into its ranks' memory, against loading a directory:
each rank opens the published file and copies its slices of every tensor into the same memory, as engines' loaders do.

Real daemons; four tensor-parallel ranks of a Llama as processes with host memory; 3 GB in bfloat16, less where memory is
short, 1 % of the elements changed in each version. What memory allows of the pauses is measured between the versions: each
rank writes as much, to random places, by the plainest loop. One JSON line per figure.
"""

import ctypes
import math
import time
from pathlib import Path
from types import SimpleNamespace

import program
import torch
from engine_ranks import Job, attach, hold
from harness import MODEL, Cluster, wait_until
from paths import ROOT
from ranks import Rank, Ranks
from safetensors import safe_open
from slicing import places

RANKS = 4
CHANGED = 0.01
HIDDEN, INTERMEDIATE, HEADS, KEY_VALUE_HEADS, VOCABULARY = 2048, 8192, 16, 8, 32_000
LAYERS, QUICK_LAYERS = 22, 1
REPEATS, QUICK_REPEATS = 7, 3
# The trainer's, two slots, two replicas, an engine's; one for lists and processes.
COPIES = 7.0


def shapes(layers: int) -> "dict[str, tuple[int, ...]]":
    """A Llama's tensors by their HuggingFace names."""
    key_value = HIDDEN * KEY_VALUE_HEADS // HEADS
    found: "dict[str, tuple[int, ...]]" = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(layers):
        rows = {
            "input_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (key_value, HIDDEN),
            "self_attn.v_proj": (key_value, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "post_attention_layernorm": (HIDDEN,),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
        found.update({f"model.layers.{layer}.{name}.weight": shape for name, shape in rows.items()})
    return {**found, "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


def model_bytes(layers: int) -> int:
    """In bfloat16."""
    return 2 * sum(math.prod(shape) for shape in shapes(layers).values())


def fitting_layers(wanted: int, copies: float) -> int:
    """As many as memory allows, up to `wanted`."""
    fitting = program.fitting_bytes(model_bytes(wanted), copies)
    layers = max((layers for layers in range(1, wanted + 1) if model_bytes(layers) <= fitting), default=0)
    if layers == 0:
        raise SystemExit(program.EX_OSERR)
    return layers


def configuration(layers: int) -> SimpleNamespace:
    """What slicing.py reads of a configuration."""
    return SimpleNamespace(
        model_type="llama",
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_VALUE_HEADS,
    )


def build(rank: Rank, jobs: "list[Job]", layers: int) -> None:
    """Parameters of this rank, and the memory behind them."""
    meta = {name: torch.empty(shape, dtype=torch.bfloat16, device="meta") for name, shape in shapes(layers).items()}
    hold(rank, jobs[rank.number], meta)


FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
COLUMNS = ("o_proj", "down_proj")


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


def change(tensors: "dict[str, torch.Tensor]", generator: torch.Generator) -> None:
    """One ulp up or down, at uniformly random places."""
    for tensor in tensors.values():
        bits = tensor.view(torch.int16).view(-1)
        count = max(1, int(bits.numel() * CHANGED))
        places_changed = torch.randint(0, bits.numel(), (count,), generator=generator)
        bits[places_changed] += torch.randint(0, 2, (count,), generator=generator, dtype=torch.int16) * 2 - 1


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
    loop = ctypes.CDLL(str(ROOT / "bazel-bin/tests/bench/placement/scatter_loop.so")).lockstep_bench_scatter
    loop.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t]
    begin = time.perf_counter()
    for bits, where, values in rank.writes:
        loop(bits.data_ptr(), where.data_ptr(), values.data_ptr(), len(where))
    return begin, time.perf_counter()


def measure(
    cluster: Cluster, ranks: Ranks, layers: int, repeats: int
) -> "tuple[list[float], list[float], list[float], list[float]]":
    """Seconds of the engine's pauses, of the same writes by a plain loop, of pauses in which all is written, and of
    reloading the version."""
    agent = cluster.agent()
    socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=socket)
    jobs = [
        Job("engine", rank, RANKS, place, configuration(layers), socket, MODEL)
        for rank, place in enumerate(places(RANKS))
    ]
    ranks.call(build, jobs, layers)
    tensors = {name: torch.full(shape, 0.02, dtype=torch.bfloat16) for name, shape in shapes(layers).items()}
    generator = torch.Generator().manual_seed(1)
    pauses, floors, reloads = [], [], []
    with agent.publisher(tensors) as publisher:
        publisher.publish(version=1, tensors=tensors)
        ranks.call(attach)
        ranks.call(list_writes)
        for version in range(2, repeats + 4):
            change(tensors, generator)
            publisher.publish(version=version, tensors=tensors)
            served = wait_until(lambda: serving(receiver, version), f"version {version} is served", timeout_s=120)
            spans = ranks.call(write_plainly)
            begin = time.perf_counter()
            ranks.call(reload, receiver.file())
            if version > 3:  # memory is warm
                pauses.append(served["last_pause_us"] / 1e6)
                floors.append(max(end for _, end in spans) - min(begin for begin, _ in spans))
                reloads.append(time.perf_counter() - begin)
        wholes = []
        for _ in range(repeats):
            ranks.call(spoil)
            receiver.ask("pull", "--full")
            [served] = receiver.model_status()["rank_groups"]
            wholes.append(served["last_pause_us"] / 1e6)
            ranks.call(reload, receiver.file())
    return pauses, floors, wholes, reloads


def spoil(rank: Rank) -> None:
    """One element, so that all of the rank is written again."""
    next(rank.module.parameters()).view(torch.int16).view(-1)[0] ^= 1


def serving(receiver: object, version: int) -> "dict":
    """What the receiver says of the engine, once it serves a version."""
    return next((one for one in receiver.model_status()["rank_groups"] if one["serving"]["version"] == version), {})


def main() -> None:
    """Prints the figures."""
    quick = program.is_quick()
    torch.set_num_threads(1)
    repeats = QUICK_REPEATS if quick else REPEATS
    layers = fitting_layers(QUICK_LAYERS if quick else LAYERS, COPIES)
    with Cluster() as cluster, Ranks(RANKS, timeout_s=300) as ranks:
        pauses, floors, wholes, reloads = measure(cluster, ranks, layers, repeats)
    program.print_figure("pause_ratio", "s", model_bytes(layers), pauses, reloads)
    program.print_figure("pause_floor_ratio", "s", model_bytes(layers), floors, reloads)
    program.print_figure("pause_whole_ratio", "s", model_bytes(layers), wholes, reloads[: len(wholes)])


if __name__ == "__main__":
    main()
