"""docs/scale.md: memory, bytes and seconds of large models on many hosts, by closed formulas. For reference.py."""

# Of benchmarks on two cores (docs/performance.md); the lower end where it gives a range.
LINK_SHARE = 0.86  # parts_delta: 3.44 links of 4; parts_full_pull has 3.60
COMPARE_BYTES_PER_S = 13e9 / 2  # diff_encode_fast: of the model, which is in two slots
APPLY_BYTES_PER_S = 23e9  # decode_apply_verify
DELTA_BYTES = 1.67  # of a changed element: delta_sweep, --codec fast

PARAMETERS = {"30B": 30e9, "235B": 235e9, "671B": 671e9, "1T": 1e12}
TRAINER_HOSTS = (1, 4, 16, 64)
ENGINE_HOSTS = (1, 16, 128)
LINKS = {"100": 100e9 / 8, "400": 400e9 / 8}  # Gbit/s: bytes/s
DENSITY = 0.01
RETAINED = 4  # deltas, as in docs/howto/sizing.md

TEXT = """# What it takes at scale

This page is for engineers who plan a fleet for models that no host holds twice. It computes memory, bytes and seconds. No row was
measured at its size: the rates in the formulas come from real daemons on two cores. The page is made by
`tests/docs/scale.py`; change its numbers to yours.

## Formulas

| | formula | |
|---|---|---|
| model | M = 2 × parameters | bfloat16 |
| version with 1 % changed | d = {delta} B × 1 % × parameters | `tests/bench/run.sh --only delta` |
| trainer host, `--segment-dir` | (2 M + 3 R) ÷ T, R = {retained} d | T hosts, [a part on each](howto/parts.md) |
| engine host, `--root` | 2 M × share | share: 1, or that of the parts that its ranks need (`--some-parts`) |
| bytes that leave a trainer host | E × share × M ÷ T, or of d | E engine hosts; each pulls from all trainer hosts |
| seconds of transfer | the larger of E × share × M ÷ T and share × M, ÷ ({share:.2f} × link) | `tests/bench/run.sh --only parts`: four links give 3.44 to 3.60 times one, and the lower share is used throughout |
| seconds to compare at a trainer host | M ÷ T ÷ {compare:.1f} GB/s | `--only delta`, two cores |
| seconds to apply at an engine host | share × M ÷ {apply:.0f} GB/s | likewise |

What is not in them: FSDP over H hosts moves (H − 1) ÷ H of M between trainer hosts in each publish, unless each host has a replica;
`lockstepctl plan --by-host` says what a layout moves. More cores compare and apply faster, up to the memory's speed; that was not measured. A link
that is shared with training is smaller. From a [log](log.md), egress does not grow with E.

## Memory of a host

In the two directories, in GB of 10⁹ bytes. An engine host that needs one half or one eighth of the parts takes as much of it.

{memory}

## Seconds of a full version

From the first byte to the last at all engine hosts, at {links} Gbit/s. Each engine host takes the whole model.

{full}

## Seconds of a version with 1 % changed

Compare and apply take as long as here on two cores. The transfer is at {links} Gbit/s. The three come one after the other, but deltas of a part
below 192 MiB stream: their transfer runs while the agent compares.

{delta_table}
"""


def transfer_s(size: float, trainers: int, engines: int, link: float) -> float:
    """The slower of a trainer host's egress and an engine host's ingress."""
    return max(engines * size / trainers, size) / (LINK_SHARE * link)


def table(head: "list[str]", rows: "list[list[str]]") -> str:
    """Numbers to the right, but for the first column."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(head) - 1), *lines[1:]])


def seconds(values: "list[float]") -> str:
    """At each link."""
    return " / ".join(
        f"{value:,.2f}" if value < 1 else f"{value:,.1f}" if value < 10 else f"{value:,.0f}" for value in values
    )


def page() -> str:
    """docs/scale.md."""
    memory, full, delta_rows = [], [], []
    for name, parameters in PARAMETERS.items():
        model, delta = 2 * parameters, DELTA_BYTES * DENSITY * parameters
        trainer = [(2 * model + 3 * RETAINED * delta) / hosts / 1e9 for hosts in TRAINER_HOSTS]
        memory.append([name, f"{model / 1e9:,.0f}", f"{delta / 1e9:,.1f}", *(f"{each:,.0f}" for each in trainer)])
        memory[-1].append(f"{2 * model / 1e9:,.0f}")
        for trainers in TRAINER_HOSTS:
            row = [f"{name}, {trainers} trainer host{'s' if trainers > 1 else ''}"]
            links = LINKS.values()
            full.append(row + [seconds([transfer_s(model, trainers, n, at) for at in links]) for n in ENGINE_HOSTS])
            compute = [model / trainers / COMPARE_BYTES_PER_S, model / APPLY_BYTES_PER_S]
            transfers = [seconds([transfer_s(delta, trainers, n, at) for at in links]) for n in ENGINE_HOSTS]
            delta_rows.append(row + [seconds([each]) for each in compute] + transfers)
    engines = [f"{n} engine host{'s' if n > 1 else ''}" for n in ENGINE_HOSTS]
    return TEXT.format(
        delta=DELTA_BYTES,
        retained=RETAINED,
        share=LINK_SHARE,
        compare=COMPARE_BYTES_PER_S / 1e9,
        apply=APPLY_BYTES_PER_S / 1e9,
        links=" / ".join(LINKS),
        memory=table(["model", "M", "d", *(f"trainer host, T = {n}" for n in TRAINER_HOSTS), "engine host"], memory),
        full=table(["", *engines], full),
        delta_table=table(["", "compare", "apply", *(f"transfer, {each}" for each in engines)], delta_rows),
    )
