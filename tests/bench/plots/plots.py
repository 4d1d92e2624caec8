"""The plots of docs/figures, drawn from the series that the benchmark programs print. The same rows make the same
file."""

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator

Rows = "list[dict]"
Points = "list[tuple[float, float]]"

WIDTH, HEIGHT = 7.6, 4.6  # inches
# Okabe and Ito's colours, which most eyes can tell apart.
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#7f7f7f"
COLOURS = (BLUE, ORANGE, GREEN, "#cc79a7", "#e69f00", "#56b4e9", GREY, "#b2a100")
MODEL_SPEED = "speed, GB of model per s"
DENSITY = "changed elements, %"
AGENT, RECEIVER = "compare, hash and encode", "decode, apply and verify"
READ_BOTH = "only reading both slots"
# The bars' names.
WAYS = {"delta": "delta", "full": "full pull", "numpy": "NumPy pipeline"}
TOGETHER = 4.0  # the longest bar of an axis is at most so many times the shortest one

STYLES = {
    "svg.hashsalt": "lockstep",  # names inside the file
    "svg.fonttype": "none",  # text as text
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "legend.frameon": False,
}
matplotlib.rcParams.update(STYLES)


def draw_all(series: "dict[str, dict]", machine: dict, directory: Path) -> None:
    """Writes every plot that has its series in `series` (name -> {"unit", "rows"})."""
    for name, (needed, draw) in PLOTS.items():
        rows = series.get(needed, {}).get("rows")
        if rows:
            save(draw(rows, f"{machine['cpu']}, {machine['cores']} cores"), directory / f"{name}.svg")


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def new_figure(title: str, subtitle: str, heights: "tuple[int, ...]" = (1,)) -> "tuple[Figure, list[Axes]]":
    """A figure with an axis below the other for each of the relative heights."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0]
    figure.suptitle(title, fontweight="bold")
    axes[0].set_title(subtitle, fontsize=9)
    return figure, list(axes)


def line_figure(
    title: str, subtitle: str, x: str, y: str, lines: "dict[str, Points]", bound: "tuple[str, Points]"
) -> Figure:
    """A line for each label, with values from 0 on. `bound`: what they are compared with, dashed. `x` and `y` name the
    axes with their units."""
    figure, [axes] = new_figure(title, subtitle)
    axes.set(xlabel=x, ylabel=y)
    axes.plot(*zip(*bound[1]), color=GREY, linestyle="--", linewidth=1.5, label=bound[0])
    for (label, line), colour in zip(lines.items(), COLOURS):
        axes.plot(*zip(*line), color=colour, marker="o", markersize=4, linewidth=2, label=label)
    axes.set_ylim(bottom=0)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def points(rows: Rows, x: str, y: str, level: str = "fast", times: float = 1.0) -> Points:
    """(x · times, y) of the rows of a codec level, by rising x."""
    return sorted((row[x] * times, row[y]) for row in rows if row["level"] == level)


def by_level(rows: Rows, label: str, x: str, y: str, times: float = 1.0) -> "dict[str, Points]":
    """A line for each codec level, as the rows have them."""
    levels = dict.fromkeys(row["level"] for row in rows)
    return {f"{label}, {level}": points(rows, x, y, level, times) for level in levels}


def gigabytes(rows: Rows) -> str:
    return f"{rows[0]['gigabytes']:.2g} GB in bf16"


def by_density(title: str, subtitle: str, y: str, bound: "tuple[str, str]", line: "tuple[str, str]"):
    """Draws a line for each level over densities. `bound` and `line`: a label, and the column of what is drawn."""

    def draw(rows: Rows, machine: str) -> Figure:
        of = subtitle.format(model=gigabytes(rows), machine=machine)
        below = bound[0], points(rows, "density", bound[1], times=100)
        figure = line_figure(title, of, DENSITY, y, by_level(rows, line[0], "density", line[1], 100), below)
        ticks = sorted({round(100 * row["density"], 3) for row in rows})
        figure.axes[0].set_xscale("log")
        figure.axes[0].set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        figure.axes[0].xaxis.set_minor_locator(NullLocator())
        return figure

    return draw


def scaling_over_threads(rows: Rows, machine: str) -> Figure:
    subtitle = f"{gigabytes(rows)}, 1 % changed; {machine}"
    lines = by_level(rows, AGENT, "threads", "diff_encode")
    bound = READ_BOTH, points(rows, "threads", "read_both")
    figure = line_figure("Throughput of the agent by threads", subtitle, "number of threads", MODEL_SPEED, lines, bound)
    figure.axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def scaling_over_size(rows: Rows, machine: str) -> Figure:
    def seconds(speed: str, level: str = "fast") -> Points:
        return [(size, size / of_size) for size, of_size in points(rows, "gigabytes", speed, level)]

    lines = {
        f"{AGENT}, fast": seconds("diff_encode"),
        f"{AGENT}, compact": seconds("diff_encode", "compact"),
        f"{RECEIVER}, fast": seconds("decode_apply_verify"),
    }
    x, y, bound = "size of the model in bf16, GB", "time of a pass, s", (READ_BOTH, seconds("read_both"))
    figure = line_figure("Time of a pass by size of the model", f"1 % changed by Adam; {machine}", x, y, lines, bound)
    figure.axes[0].set_xlim(left=0)
    return figure


def latency_breakdown(rows: Rows, machine: str) -> Figure:
    """Stacked bars of rows {"kind", "stages": {name: seconds}}; those of like length share an axis."""
    bars = sorted(rows, key=total_ms)
    groups: "list[list[dict]]" = []
    for bar in bars:
        if groups and total_ms(bar) <= TOGETHER * total_ms(groups[-1][0]):
            groups[-1].append(bar)
        else:
            groups.append([bar])
    names = list(dict.fromkeys(name for bar in bars for name in stages_ms(bar)))
    colours = dict(zip(names, COLOURS))
    subtitle = f"medians; totals from the trainer's commit to the replica's; {machine}"
    figure, all_axes = new_figure("Where a sync's time goes", subtitle, tuple(map(len, groups)))
    for axes, group in zip(all_axes, groups):
        add_bars(axes, group, colours)
    all_axes[-1].set_xlabel("time, ms")
    figure.supylabel("sync by", fontsize="medium")
    handles = [Patch(color=colour, label=name) for name, colour in colours.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), title="stage")
    return figure


def add_bars(axes: Axes, bars: Rows, colours: "dict[str, str]") -> None:
    for place, bar in enumerate(bars):
        left = 0.0
        for name, value in stages_ms(bar).items():
            axes.barh(place, value, left=left, height=0.6, color=colours[name])
            left += value
        axes.annotate(f"{total_ms(bar):.0f} ms", (left, place), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(bars)), [WAYS.get(bar["kind"], bar["kind"]) for bar in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.grid(visible=False, axis="y")


def stages_ms(row: dict) -> "dict[str, float]":
    return {name: 1000 * value for name, value in row["stages"].items() if name != "total"}


def total_ms(row: dict) -> float:
    """Stages that overlap may add up to more."""
    return 1000 * row["stages"]["total"] if "total" in row["stages"] else sum(stages_ms(row).values())


# File -> the series that it needs, and what draws it.
PLOTS = {
    "throughput_by_density": (
        "by_density",
        by_density(
            "Throughput of the agent by density",
            "the agent's pass over {model}, changes of Adam; {machine}",
            MODEL_SPEED,
            (READ_BOTH, "read_both"),
            (AGENT, "diff_encode"),
        ),
    ),
    "apply_by_density": (
        "by_density",
        by_density(
            "Throughput of the receiver by density",
            "the receiver's pass over {model}, changes of Adam; {machine}",
            MODEL_SPEED,
            ("only reading the model", "read_one"),
            (RECEIVER, "decode_apply_verify"),
        ),
    ),
    "bytes_per_change": (
        "by_density",
        by_density(
            "Bytes per changed element by density",
            "whole payloads, headers and tables included; {model}, changes of Adam",
            "bytes per changed element",
            ("order-0 entropy of gaps and steps", "entropy_bytes_per_change"),
            ("payload", "bytes_per_change"),
        ),
    ),
    "latency_breakdown": ("delta_sync_stages", latency_breakdown),
    "scaling_over_threads": ("by_threads", scaling_over_threads),
    "scaling_over_size": ("by_size", scaling_over_size),
}
