"""The plots of docs/figures, drawn from the series that the benchmark programs print. The same rows make the same
file."""

from collections.abc import Callable
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


def line_figure(
    title: str, subtitle: str, x: str, y: str, lines: "dict[str, Points]", bound: "dict[str, Points] | None" = None
) -> Figure:
    """A line for each label, with values from 0 on. `bound`: what they are compared with, dashed. `x` and `y` name the
    axes with their units."""
    figure, [axes] = new_figure(title, subtitle)
    axes.set(xlabel=x, ylabel=y)
    for label, line in (bound or {}).items():
        axes.plot(*zip(*line), color=GREY, linestyle="--", linewidth=1.5, label=label)
    for (label, line), colour in zip(lines.items(), COLOURS):
        axes.plot(*zip(*line), color=colour, marker="o", markersize=4, linewidth=2, label=label)
    axes.set_ylim(bottom=0)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def new_figure(title: str, subtitle: str, heights: "tuple[int, ...]" = (1,)) -> "tuple[Figure, list[Axes]]":
    """A figure with an axis below the other for each of the relative heights."""
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axes = figure.subplots(len(heights), squeeze=False, height_ratios=heights)[:, 0]
    figure.suptitle(title, fontweight="bold")
    axes[0].set_title(subtitle, fontsize=9)
    return figure, list(axes)


def logarithmic(axes: Axes, ticks: "list[float]") -> None:
    """Ticks where there are points."""
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def points(rows: Rows, x: str, y: str, level: str, times: float = 1.0) -> Points:
    """(x · times, y) of the rows of a level, by rising x."""
    return sorted((row[x] * times, row[y]) for row in rows if row["level"] == level)


def by_level(rows: Rows, label: str, x: str, y: str, times: float = 1.0) -> "dict[str, Points]":
    """A line for each codec level, as the rows have them."""
    levels = dict.fromkeys(row["level"] for row in rows)
    return {f"{label}, {level}": points(rows, x, y, level, times) for level in levels}


def gigabytes(rows: Rows) -> str:
    return f"{rows[0]['gigabytes']:.2g} GB in bf16"


def by_density(
    rows: Rows, title: str, subtitle: str, y: str, bound: "tuple[str, str]", lines: "tuple[str, str]"
) -> Figure:
    """`bound` and `lines`: a label and the column of what is drawn, the latter for each level."""
    below = {bound[0]: points(rows, "density", bound[1], "fast", 100)}
    figure = line_figure(title, subtitle, DENSITY, y, by_level(rows, lines[0], "density", lines[1], 100), below)
    logarithmic(figure.axes[0], sorted({round(100 * row["density"], 3) for row in rows}))
    return figure


def throughput_by_density(rows: Rows, machine: str) -> Figure:
    subtitle = f"the agent's pass over {gigabytes(rows)}, changes of Adam; {machine}"
    bound = ("only reading both slots", "read_both")
    lines = ("compare, hash and encode", "diff_encode")
    return by_density(rows, "Throughput of the agent by density", subtitle, MODEL_SPEED, bound, lines)


def apply_by_density(rows: Rows, machine: str) -> Figure:
    subtitle = f"the receiver's pass over {gigabytes(rows)}, changes of Adam; {machine}"
    bound = ("only reading the model", "read_one")
    lines = ("decode, apply and verify", "decode_apply_verify")
    return by_density(rows, "Throughput of the receiver by density", subtitle, MODEL_SPEED, bound, lines)


def bytes_per_change(rows: Rows, machine: str) -> Figure:
    subtitle = f"whole payloads, headers and tables included; {gigabytes(rows)}, changes of Adam"
    bound = ("order-0 entropy of gaps and steps", "entropy_bytes_per_change")
    lines = ("payload", "bytes_per_change")
    return by_density(rows, "Bytes per changed element by density", subtitle, "bytes per changed element", bound, lines)


def scaling_over_threads(rows: Rows, machine: str) -> Figure:
    subtitle = f"{gigabytes(rows)}, 1 % changed; {machine}"
    lines = by_level(rows, "compare, hash and encode", "threads", "diff_encode")
    bound = {"only reading both slots": points(rows, "threads", "read_both", "fast")}
    figure = line_figure("Throughput of the agent by threads", subtitle, "number of threads", MODEL_SPEED, lines, bound)
    figure.axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def scaling_over_size(rows: Rows, machine: str) -> Figure:
    def seconds(speed: str, level: str) -> Points:
        return sorted((row["gigabytes"], row["gigabytes"] / row[speed]) for row in rows if row["level"] == level)

    lines = {
        "compare, hash and encode, fast": seconds("diff_encode", "fast"),
        "compare, hash and encode, compact": seconds("diff_encode", "compact"),
        "decode, apply and verify, fast": seconds("decode_apply_verify", "fast"),
    }
    bound = {"only reading both slots": seconds("read_both", "fast")}
    subtitle = f"1 % changed by Adam; {machine}"
    x, y = "size of the model in bf16, GB", "time of a pass, s"
    figure = line_figure("Time of a pass by size of the model", subtitle, x, y, lines, bound)
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
    """The trainer's copy comes before the clock starts."""
    return {name: 1000 * value for name, value in row["stages"].items() if name not in ("publish", "total")}


def total_ms(row: dict) -> float:
    """Stages that overlap may add up to more."""
    return 1000 * row["stages"]["total"] if "total" in row["stages"] else sum(stages_ms(row).values())


# File -> the series that it needs, and what draws it.
PLOTS: "dict[str, tuple[str, Callable[[Rows, str], Figure]]]" = {
    "throughput_by_density": ("by_density", throughput_by_density),
    "apply_by_density": ("by_density", apply_by_density),
    "bytes_per_change": ("by_density", bytes_per_change),
    "latency_breakdown": ("delta_sync_stages", latency_breakdown),
    "scaling_over_threads": ("by_threads", scaling_over_threads),
    "scaling_over_size": ("by_size", scaling_over_size),
}
