"""The figures: which program measures them, how long it takes, and what they are to reach."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    name: str
    reach: str  # what the ratio of value and baseline is to be
    about: str
    inverse: bool = False  # the ratio is baseline / value


@dataclass(frozen=True)
class Program:
    path: str  # below tests/bench: a Python program, or a binary of Bazel's
    seconds: int  # that a whole run takes, roughly, on two cores
    figures: "tuple[Figure, ...]"  # none: it has series only

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2].removesuffix(".py").removesuffix("_bench")


PROGRAMS = (
    Program(
        "plan/plan_bench",
        10,
        (
            Figure("plan_compile_qwen3_30b_a3b", "<= 1", "against 1 s on one core"),
            Figure("plan_compile_deepseek_v3", "<= 1", "against 10 s on one core"),
        ),
    ),
    Program("plan/execute_bench", 15, (Figure("plan_execute", ">= 0.7", "TP4 shards into HF bytes, against memcpy"),)),
    Program(
        "plan/publish_memory_bench", 15, (Figure("publish_extra_memory", "<= 1", "of a local rank, against 16 MiB"),)
    ),
    Program(
        "placement/write_batches_bench",
        60,
        (Figure("write_batches_tp4", "<= 2", "a delta packed for TP4 ranks, against a replica"),),
    ),
    Program("sync/local_pull_bench.py", 30, (Figure("colocated_full_pull", "<= 0.5", "out of memory, against lanes"),)),
    Program(
        "placement/ring_bench.py", 40, (Figure("ring_pipelining", "<= 0.75", "a ring of two buckets, against one"),)
    ),
    Program("placement/placement_bench", 5, (Figure("placement_compile_qwen3_30b_a3b", "<= 1", "TP8, against 1 s"),)),
    Program(
        "delta/delta_bench",
        60,
        (
            Figure("diff_encode_fast", ">= 0.85", "compare, hash, encode, against reading"),
            Figure("diff_encode_compact", ">= 0.6", "likewise, with the entropy stage"),
            Figure("payload_bytes_per_change", "<= 1.1", "compact at 0.9 %, against entropy"),
            Figure("decode_apply_verify", ">= 0.6", "of the receiver, against reading"),
        ),
    ),
    Program(
        "delta/compare_bench",
        60,
        (
            Figure(
                "compare_while_copying", ">= 1", "publish and diff, if ranks compared as they copy, against as it is"
            ),
        ),
    ),
    Program(
        "sync/full_pull_bench.py", 60, (Figure("full_pull", ">= 0.9", "over lanes, against plain sendfile and recv"),)
    ),
    Program(
        "sync/sync_bench.py",
        120,
        (
            Figure("delta_sync", ">= 10", "publish to committed, against a NumPy pipeline", inverse=True),
            Figure("delta_sync_scraped", "<= 1.05", "the same while Prometheus scrapes both daemons"),
        ),
    ),
    Program(
        "sync/tls_bench.py",
        120,
        (
            Figure("full_pull_tls", ">= 0.9", "with TLS, against 1 / (1/plain + 1/cipher of one core)"),
            Figure("delta_sync_tls", ">= 0.9", "publish to committed, with TLS against without", inverse=True),
        ),
    ),
    Program(
        "sync/publish_bench.py",
        120,
        (
            Figure("publish_blocked", "<= 1", "of a trainer, against a copy by PyTorch with as many threads"),
            Figure("publish_threads", "<= 0.8", "of a trainer, by two threads against one"),
        ),
    ),
    Program(
        "sync/stream_bench.py",
        60,
        (
            Figure("stream_blocked", "<= 1.1", "of a trainer, from a generator against a mapping"),
            Figure("stream_extra_memory", "<= 1", "of a generator's trainer, against one tensor and 16 MiB"),
        ),
    ),
    Program(
        "sync/bridge_bench.py",
        240,
        (
            Figure("bridge_open", "<= 12", "a publisher of a recorded bridge, against one export by it"),
            Figure("bridge_open_again", "<= 4", "the same, recorded before"),
            Figure("bridge_open_memory", "<= 8", "of a rank while it is recorded, against an export's"),
            Figure("bridge_publish", "<= 0.1", "by the record, against from_stream over the bridge"),
            Figure("bridge_publish_rules", "<= 1.1", "by the record, against the family's rules"),
        ),
    ),
    Program(
        "sync/fanout_bench.py",
        120,
        (
            Figure("fanout_cpu", "<= 0.05", "agent, the 8th receiver against the whole first sync"),
            Figure("fanout_cpu_tls", "<= 0.1", "the same with TLS"),
        ),
    ),
    Program(
        "sync/idle_bench.py",
        120,
        (
            Figure("agent_rss", "<= 1", "without slots and deltas, against 256 MiB"),
            Figure("receiver_rss", "<= 1", "without replicas, against 256 MiB"),
            Figure("idle_cpu", "<= 1", "both daemons, against 0.2 % of a core"),
            Figure("idle_cpu_scraped", "<= 1", "while Prometheus would scrape them each second, against 0.3 %"),
        ),
    ),
    Program("plan/layout_bench", 15, (Figure("layout_100k", "<= 1", "control plane of 100,000 tensors, against 1 s"),)),
    Program(
        "wan/wan_bench.py",
        450,
        (
            Figure("wan_full_pull", ">= 0.85", "the worst emulated WAN, against iperf3"),
            Figure("wan_delta_latency", "<= 1", "likewise, against 2 round trips + bytes/rate + no link"),
        ),
    ),
    Program(
        "wan/log_bench.py",
        60,
        (Figure("log_readers", "<= 16", "to the last of 16 readers of a log over a WAN, against one of the agent"),),
    ),
    Program(
        "placement/pause_bench.py",
        120,
        (
            Figure("pause_ratio", "<= 0.25", "of TP4 in place, against reloading the file"),
            Figure("pause_floor_ratio", "<= 0.2", "what memory allows: as many writes by a plain loop"),
            Figure("pause_whole_ratio", "<= 2", "the same, where all is written"),
        ),
    ),
    Program(
        "placement/engines_bench.py",
        90,
        (Figure("engines_eight", "<= 8", "publish to the last of eight engines on one receiver, against one engine"),),
    ),
    Program("delta/delta_sweep", 270, ()),
)
NAMES = tuple(figure.name for program in PROGRAMS for figure in program.figures)
GROUPS = tuple(program.name for program in PROGRAMS if program.figures and program.name not in NAMES)


def overview() -> str:
    """A line for each program: how long it takes, and its figures."""
    lines = [
        f"{program.seconds / 60:5.1f} min  {', '.join(figure.name for figure in program.figures) or 'series for plots'}"
        for program in PROGRAMS
    ]
    total = sum(program.seconds for program in PROGRAMS)
    return "\n".join([*lines, f"{total / 60:5.1f} min  all of them"])


if __name__ == "__main__":
    print(overview())
