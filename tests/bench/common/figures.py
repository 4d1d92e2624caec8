"""The figures: which program measures each, what it is to reach, and how long programs take."""

from dataclasses import dataclass
from pathlib import Path

# Below tests/bench, Python or a binary of Bazel's: the seconds that a whole run takes, roughly, on two cores.
PROGRAMS = {
    "plan/plan_bench": 15,
    "plan/execute_bench": 15,
    "plan/layout_bench": 15,
    "delta/delta_bench": 90,
    "delta/compare_bench": 60,
    "delta/quantise_bench": 30,
    "sync/full_pull_bench.py": 60,
    "sync/sync_bench.py": 120,
    "sync/tls_bench.py": 120,
    "sync/publish_bench.py": 120,
    "sync/stream_bench.py": 60,
    "sync/derive_bench.py": 120,
    "sync/parts_bench.py": 180,
    "sync/bridge_bench.py": 240,
    "sync/fanout_bench.py": 120,
    "sync/idle_bench.py": 120,
    "wan/wan_bench.py": 450,
    "wan/log_bench.py": 60,
    "placement/pause_bench.py": 120,
    "placement/engines_bench.py": 90,
    "placement/ring_bench.py": 40,
    "delta/delta_sweep": 200,
}


@dataclass(frozen=True)
class Figure:
    program: str
    name: str
    reach: str  # what the ratio of value and baseline is to be
    about: str
    inverse: bool = False  # the ratio is baseline / value


FIGURES = (
    Figure("plan/plan_bench", "plan_compile_qwen3_30b_a3b", "<= 1", "against 1 s on one core"),
    Figure("plan/plan_bench", "plan_compile_deepseek_v3", "<= 1", "against 10 s on one core"),
    Figure("plan/plan_bench", "placement_compile_qwen3_30b_a3b", "<= 1", "TP8, against 1 s"),
    Figure("plan/execute_bench", "plan_execute", ">= 0.7", "TP4 shards into HF bytes, against memcpy"),
    Figure("plan/layout_bench", "layout_100k", "<= 1", "control plane of 100,000 tensors, against 1 s"),
    Figure("delta/delta_bench", "diff_encode_fast", ">= 0.85", "compare, hash, encode, against reading"),
    Figure("delta/delta_bench", "diff_encode_compact", ">= 0.6", "likewise, with the entropy stage"),
    Figure("delta/delta_bench", "payload_bytes_per_change", "<= 1.1", "compact at 0.9 %, against entropy"),
    Figure("delta/delta_bench", "decode_apply_verify", ">= 0.6", "of the receiver, against reading"),
    Figure("delta/delta_bench", "write_batches_tp4", "<= 2", "a delta packed for TP4 ranks, against a replica"),
    Figure("delta/compare_bench", "compare_while_copying", ">= 1", "ranks compare as they copy, against as it is"),
    Figure("delta/quantise_bench", "quantise_fp8_block", ">= 0.15", "bf16 to FP8 by blocks, against reading it"),
    Figure("delta/quantise_bench", "quantise_fp8_channel", ">= 0.2", "with a scale for each row"),
    Figure("delta/quantise_bench", "quantise_fp8_tensor", ">= 0.2", "with one scale, of a pass before"),
    Figure("delta/quantise_bench", "quantise_mxfp8", ">= 0.15", "bf16 to MXFP8"),
    Figure("delta/quantise_bench", "quantise_nvfp4", ">= 0.05", "bf16 to NVFP4"),
    Figure("sync/full_pull_bench.py", "full_pull", ">= 0.9", "over lanes, against plain sendfile and recv"),
    Figure("sync/full_pull_bench.py", "colocated_full_pull", "<= 0.5", "out of memory, against lanes"),
    Figure("sync/sync_bench.py", "delta_sync", ">= 10", "publish to committed, against a NumPy pipeline", inverse=True),
    Figure("sync/sync_bench.py", "delta_sync_scraped", "<= 1.05", "the same while Prometheus scrapes both daemons"),
    Figure("sync/tls_bench.py", "full_pull_tls", ">= 0.9", "with TLS, against 1 / (1/plain + 1/cipher of one core)"),
    Figure("sync/tls_bench.py", "delta_sync_tls", ">= 0.9", "publish to committed, against without TLS", inverse=True),
    Figure("sync/publish_bench.py", "publish_blocked", "<= 1", "of a trainer, against a copy by PyTorch"),
    Figure("sync/publish_bench.py", "publish_threads", "<= 0.8", "of a trainer, by two threads against one"),
    Figure("sync/stream_bench.py", "stream_blocked", "<= 1.1", "of a trainer, from a generator against a mapping"),
    Figure("sync/stream_bench.py", "stream_extra_memory", "<= 1", "of such a trainer, against one tensor and 16 MiB"),
    Figure("sync/derive_bench.py", "derive_sync", "<= 3", "an FP8 model derived by the agent, against its source"),
    Figure("sync/derive_bench.py", "derive_blocked", "<= 1.1", "of a trainer, with a derived model against without"),
    Figure("sync/parts_bench.py", "parts_full_pull", ">= 3.6", "from four agents, against one", inverse=True),
    Figure("sync/parts_bench.py", "parts_delta", ">= 3.6", "likewise, of a delta", inverse=True),
    Figure("sync/parts_bench.py", "parts_blocked", "<= 0.5", "of a trainer on four hosts, against one agent for all"),
    Figure(
        "sync/bridge_bench.py", "bridge_open", "<= 12", "a publisher of a recorded bridge, against one export by it"
    ),
    Figure("sync/bridge_bench.py", "bridge_open_again", "<= 4", "the same, recorded before"),
    Figure("sync/bridge_bench.py", "bridge_open_memory", "<= 8", "of a rank while it is recorded, against an export's"),
    Figure("sync/bridge_bench.py", "bridge_publish", "<= 0.1", "by the record, against from_stream over the bridge"),
    Figure("sync/bridge_bench.py", "bridge_publish_rules", "<= 1.1", "by the record, against the family's rules"),
    Figure("sync/bridge_bench.py", "publish_extra_memory", "<= 1", "of a rank that publishes by rules, against 16 MiB"),
    Figure("sync/fanout_bench.py", "fanout_cpu", "<= 0.05", "agent, the 8th receiver against the whole first sync"),
    Figure("sync/fanout_bench.py", "fanout_cpu_tls", "<= 0.1", "the same with TLS"),
    Figure("sync/idle_bench.py", "agent_rss", "<= 1", "without slots and deltas, against 256 MiB"),
    Figure("sync/idle_bench.py", "receiver_rss", "<= 1", "without replicas, against 256 MiB"),
    Figure("sync/idle_bench.py", "idle_cpu", "<= 1", "both daemons, against 0.2 % of a core"),
    Figure("sync/idle_bench.py", "idle_cpu_scraped", "<= 1", "the same, scraped each second, against 0.3 %"),
    Figure("wan/wan_bench.py", "wan_full_pull", ">= 0.85", "the worst emulated WAN, against iperf3"),
    Figure("wan/wan_bench.py", "wan_delta_latency", "<= 1", "likewise, against 2 round trips + bytes/rate + no link"),
    Figure(
        "wan/log_bench.py",
        "log_readers",
        "<= 16",
        "the last of 16 readers of a log over a WAN, against one of the agent",
    ),
    Figure("placement/pause_bench.py", "pause_ratio", "<= 0.25", "of TP4 in place, against reloading the file"),
    Figure("placement/pause_bench.py", "pause_floor_ratio", "<= 0.2", "as many writes by a plain loop"),
    Figure("placement/engines_bench.py", "engines_eight", "<= 8", "the last of eight engines, against one engine"),
    Figure("placement/ring_bench.py", "ring_pipelining", "<= 0.75", "a ring of two buckets, against one"),
)
NAMES = tuple(figure.name for figure in FIGURES)


def group(program: str) -> str:
    """What --only calls all figures of a program."""
    return Path(program).stem.removesuffix("_bench")


GROUPS = tuple(sorted({group(figure.program) for figure in FIGURES} - set(NAMES)))


def figures_of(program: str) -> "list[Figure]":
    return [figure for figure in FIGURES if figure.program == program]


def overview() -> str:
    """A line for each program: how long it takes, and its figures."""
    lines = [
        f"{seconds / 60:5.1f} min  {', '.join(figure.name for figure in figures_of(program)) or 'series for plots'}"
        for program, seconds in PROGRAMS.items()
    ]
    return "\n".join([*lines, f"{sum(PROGRAMS.values()) / 60:5.1f} min  all of them"])


if __name__ == "__main__":
    print(overview())
