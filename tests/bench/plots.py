"""The plots of docs/figures, drawn from the series that the benchmark programs print."""

from pathlib import Path

from plot import Axis, Bar, Line, bar_chart, line_chart

Rows = "list[dict]"

LEVELS = (("fast", 0), ("compact", 1))
MODEL_SPEED = Axis("GB of the model a second")
DENSITY = Axis("changed elements, %", logarithmic=True)
TOGETHER = 4.0  # totals that differ by no more than this share an axis


def draw_all(series: "dict[str, dict]", machine: dict, directory: Path) -> "list[Path]":
    """Writes every plot whose series is there (name -> {"unit", "rows"}); answers the files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (needed, draw) in PLOTS.items():
        rows = series.get(needed, {}).get("rows")
        if not rows:
            continue
        path = directory / f"{name}.svg"
        path.write_text(draw(rows, f"{machine['cpu']}, {machine['cores']} cores"))
        written.append(path)
    return written


def points(rows: Rows, x: str, y: str, level: str, times: float = 1.0) -> "list[tuple[float, float]]":
    """(x · times, y) of the rows of a level, by rising x."""
    return sorted((row[x] * times, row[y]) for row in rows if row["level"] == level)


def sizes(rows: Rows) -> str:
    return f"{rows[0]['gigabytes']:.2g} GB in bf16"


def throughput_by_density(rows: Rows, machine: str) -> str:
    lines = [Line("only reading both halves", points(rows, "density", "read_both", "fast", 100), 6, bound=True)]
    for level, colour in LEVELS:
        found = points(rows, "density", "diff_encode", level, 100)
        lines.append(Line(f"compare, hash and encode, {level}", found, colour))
    subtitle = f"the agent's pass over {sizes(rows)}, changes of Adam; {machine}"
    return line_chart("Throughput of the agent by density", subtitle, DENSITY, MODEL_SPEED, lines)


def apply_by_density(rows: Rows, machine: str) -> str:
    lines = [Line("only reading the model", points(rows, "density", "read_one", "fast", 100), 6, bound=True)]
    for level, colour in LEVELS:
        found = points(rows, "density", "decode_apply_verify", level, 100)
        lines.append(Line(f"decode, apply and verify, {level}", found, colour))
    subtitle = f"the receiver's pass over {sizes(rows)}, changes of Adam; {machine}"
    return line_chart("Throughput of the receiver by density", subtitle, DENSITY, MODEL_SPEED, lines)


def bytes_per_change(rows: Rows, machine: str) -> str:
    bound = points(rows, "density", "entropy_bytes_per_change", "fast", 100)
    lines = [Line("order-0 entropy of gaps and steps", bound, 6, bound=True)]
    for level, colour in LEVELS:
        lines.append(Line(f"payload, {level}", points(rows, "density", "bytes_per_change", level, 100), colour))
    subtitle = f"whole payloads, headers and tables included; {sizes(rows)}, changes of Adam"
    return line_chart("Bytes per changed element by density", subtitle, DENSITY, Axis("bytes per change"), lines)


def scaling_over_threads(rows: Rows, machine: str) -> str:
    lines = [Line("only reading both halves", points(rows, "threads", "read_both", "fast"), 6, bound=True)]
    for level, colour in LEVELS:
        found = points(rows, "threads", "diff_encode", level)
        lines.append(Line(f"compare, hash and encode, {level}", found, colour))
    subtitle = f"{sizes(rows)}, 1 % changed; {machine}"
    return line_chart("Throughput of the agent by threads", subtitle, Axis("threads", whole=True), MODEL_SPEED, lines)


def scaling_over_size(rows: Rows, machine: str) -> str:
    def seconds(speed: str, level: str) -> "list[tuple[float, float]]":
        return sorted((row["gigabytes"], row["gigabytes"] / row[speed]) for row in rows if row["level"] == level)

    lines = [
        Line("compare, hash and encode, fast", seconds("diff_encode", "fast"), 0),
        Line("compare, hash and encode, compact", seconds("diff_encode", "compact"), 1),
        Line("decode, apply and verify, fast", seconds("decode_apply_verify", "fast"), 2),
        Line("only reading both halves", seconds("read_both", "fast"), 6, bound=True),
    ]
    subtitle = f"1 % changed by Adam; {machine}"
    return line_chart("Time of a pass by size of the model", subtitle, Axis("GB in bf16"), Axis("seconds"), lines)


def folded_bytes(rows: Rows, machine: str) -> str:
    def mebibytes(name: str) -> "list[tuple[float, float]]":
        return [(row["steps"], row[name] / 2**20) for row in rows]

    lines = [
        Line("one after the other", mebibytes("chain_bytes"), 1),
        Line("folded into one", mebibytes("folded_bytes"), 0),
    ]
    subtitle = f"{sizes(rows)}, 1 % changed by Adam in each version, compact"
    versions = Axis("versions behind", logarithmic=True)
    return line_chart("What a receiver that is behind is sent", subtitle, versions, Axis("MiB"), lines)


def latency_breakdown(rows: Rows, machine: str) -> str:
    bars = sorted((stages_of(row) for row in rows), key=lambda bar: bar.total)
    groups: "list[list[Bar]]" = []
    for bar in bars:
        if groups and bar.total <= TOGETHER * groups[-1][0].total:
            groups[-1].append(bar)
        else:
            groups.append([bar])
    subtitle = f"medians; totals from the trainer's commit to the replica's; {machine}"
    return bar_chart("Where a sync's time goes", subtitle, Axis("milliseconds"), groups, "ms")


def stages_of(row: dict) -> Bar:
    """Of a row {"kind", "stages": {name: seconds}}. The trainer's copy comes before the clock starts; stages that
    overlap may add up to more than the total."""
    milliseconds = {name: 1000 * value for name, value in row["stages"].items() if name != "publish"}
    total = milliseconds.pop("total", None)
    return Bar(row["kind"], list(milliseconds.items()), sum(milliseconds.values()) if total is None else total)


# File -> the series that it needs, and what draws it.
PLOTS = {
    "throughput_by_density": ("by_density", throughput_by_density),
    "apply_by_density": ("by_density", apply_by_density),
    "bytes_per_change": ("by_density", bytes_per_change),
    "latency_breakdown": ("delta_sync_stages", latency_breakdown),
    "scaling_over_threads": ("by_threads", scaling_over_threads),
    "scaling_over_size": ("by_size", scaling_over_size),
    "folded_bytes": ("by_steps", folded_bytes),
}
