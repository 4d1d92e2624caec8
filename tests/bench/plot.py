"""A small writer of charts as SVG: lines over linear or logarithmic axes, and stacked bars. Standard library only.

Sizes and places are in pixels, from the top left corner.
"""

import math
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

WIDTH = 760
LEFT, RIGHT, TOP = 74, 24, 58
PLOT_HEIGHT = 300
LEGEND_ROW = 20
# Okabe and Ito's colours, which most eyes can tell apart, in an order that puts the darker ones first.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#b2a100", "#000000")
FONT = 'font-family="DejaVu Sans, Verdana, sans-serif"'
INK, FAINT = "#222222", "#dddddd"


@dataclass(frozen=True)
class Axis:
    """What an axis shows. A logarithmic one needs values above 0; a linear one begins at 0."""

    label: str  # with the unit
    logarithmic: bool = False
    whole: bool = False  # ticks at whole numbers only


@dataclass(frozen=True)
class Line:
    """Points (x, y) under one name; `bound` is drawn dashed: what others are compared with."""

    label: str
    points: "list[tuple[float, float]]"
    colour: int = 0
    bound: bool = False


@dataclass(frozen=True)
class Bar:
    """Parts (name, value) of one total, which may be larger than their sum."""

    label: str
    parts: "list[tuple[str, float]]"
    total: float


@dataclass
class Drawing:
    """An SVG document that grows."""

    title: str
    height: int = 0
    elements: "list[str]" = field(default_factory=list)

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str = FAINT, extra: str = "") -> None:
        place = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
        self.elements.append(f'<line {place} stroke="{colour}" {extra}/>')

    def text(self, x: float, y: float, words: str, anchor: str = "start", size: int = 12, extra: str = "") -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
        self.elements.append(f'<text {place} fill="{INK}" {FONT} {extra}>{escape(words)}</text>')

    def rectangle(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
        self.elements.append(f'<rect {place} fill="{colour}"/>')

    def svg(self) -> str:
        """The whole document."""
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
        head += f'height="{self.height}" role="img"><title>{escape(self.title)}</title>'
        paper = f'<rect width="{WIDTH}" height="{self.height}" fill="#ffffff"/>'
        return "\n".join([head, paper, *self.elements, "</svg>"]) + "\n"


@dataclass(frozen=True)
class Scale:
    """Values to pixels along one axis, between the first tick and the last."""

    axis: Axis
    ticks: "list[float]"
    first: float  # pixel of the first tick
    last: float

    def __call__(self, value: float) -> float:
        low, high = self._place(self.ticks[0]), self._place(self.ticks[-1])
        share = (self._place(value) - low) / (high - low)
        return self.first + min(1.0, max(0.0, share)) * (self.last - self.first)

    def _place(self, value: float) -> float:
        return math.log10(value) if self.axis.logarithmic else value


def ticks_for(axis: Axis, values: "list[float]") -> "list[float]":
    """Round values around `values`: 1, 2 and 5 times powers of ten, or steps of such."""
    high = max(values)
    if axis.logarithmic:
        low = min(values)
        decades = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
        round_ones = [digit * 10.0**power for power in decades for digit in (1, 2, 5)]
        first = max(i for i, tick in enumerate(round_ones) if tick <= low * 1.0001)
        last = min(i for i, tick in enumerate(round_ones) if tick >= high * 0.9999)
        return round_ones[first : max(last, first + 1) + 1]
    if high <= 0:
        return [0.0, 1.0]
    rough = high / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough * 0.9999)
    step = max(1.0, step) if axis.whole else step
    return [step * i for i in range(math.ceil(high / step - 0.0001) + 1)]


def number(value: float) -> str:
    return f"{value:.6g}"


def rounded(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def draw_frame(drawing: Drawing, x: Scale, y: Scale) -> None:
    """Grid, ticks and labels of both axes."""
    for tick in y.ticks:
        drawing.line(x.first, y(tick), x.last, y(tick))
        drawing.text(x.first - 8, y(tick) + 4, number(tick), "end")
    for tick in x.ticks:
        drawing.line(x(tick), y.first, x(tick), y.last)
        drawing.text(x(tick), y.first + 18, number(tick), "middle")
    drawing.line(x.first, y.first, x.last, y.first, INK)
    drawing.line(x.first, y.first, x.first, y.last, INK)
    drawing.text((x.first + x.last) / 2, y.first + 40, x.axis.label, "middle", 13)
    middle = (y.first + y.last) / 2
    drawing.text(20, middle, y.axis.label, "middle", 13, f'transform="rotate(-90 20 {middle:.1f})"')


def draw_line(drawing: Drawing, x: Scale, y: Scale, line: Line) -> None:
    colour = COLOURS[line.colour]
    style = 'stroke-dasharray="6 4" stroke-width="2"' if line.bound else 'stroke-width="2.5"'
    points = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in line.points)
    drawing.elements.append(f'<polyline points="{points}" fill="none" stroke="{colour}" {style}/>')
    if line.bound:
        return
    for at, value in line.points:
        drawing.elements.append(f'<circle cx="{x(at):.1f}" cy="{y(value):.1f}" r="3.5" fill="{colour}"/>')


def draw_legend(drawing: Drawing, entries: "list[tuple[str, str, str]]", top: float) -> float:
    """Entries (name, colour, style of the stroke) in columns of two; answers where they end."""
    for i, (name, colour, style) in enumerate(entries):
        x, y = LEFT + (i % 2) * (WIDTH - LEFT - RIGHT) / 2, top + (i // 2) * LEGEND_ROW
        drawing.line(x, y - 4, x + 26, y - 4, colour, style)
        drawing.text(x + 34, y, name)
    return top + math.ceil(len(entries) / 2) * LEGEND_ROW


def draw_title(drawing: Drawing, subtitle: str) -> None:
    drawing.text(LEFT, 24, drawing.title, size=16, extra='font-weight="bold"')
    drawing.text(LEFT, 43, subtitle)


def line_chart(title: str, subtitle: str, x_axis: Axis, y_axis: Axis, lines: "list[Line]") -> str:
    """The SVG of `lines`, each with at least one point."""
    drawing = Drawing(title)
    draw_title(drawing, subtitle)
    across = [at for line in lines for at, _ in line.points]
    up = [value for line in lines for _, value in line.points]
    x = Scale(x_axis, ticks_for(x_axis, across), LEFT, WIDTH - RIGHT)
    y = Scale(y_axis, ticks_for(y_axis, up), TOP + PLOT_HEIGHT, TOP)
    draw_frame(drawing, x, y)
    for line in lines:
        draw_line(drawing, x, y, line)
    dashed, solid = 'stroke-width="2" stroke-dasharray="6 4"', 'stroke-width="3"'
    entries = [(line.label, COLOURS[line.colour], dashed if line.bound else solid) for line in lines]
    drawing.height = math.ceil(draw_legend(drawing, entries, TOP + PLOT_HEIGHT + 68))
    return drawing.svg()


BAR_HEIGHT, BAR_APART, LABELS = 30, 14, 150
LABEL_OF_TOTAL = 90


def bar_chart(title: str, subtitle: str, axis: Axis, groups: "list[list[Bar]]", unit: str) -> str:
    """The SVG of stacked bars; each group has an axis of its own, for totals that are far apart."""
    drawing = Drawing(title)
    draw_title(drawing, subtitle)
    names = list(dict.fromkeys(name for bars in groups for bar in bars for name, _ in bar.parts))
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    top = float(TOP + 6)
    for bars in groups:
        top = draw_bars(drawing, bars, axis, colours, unit, top)
    entries = [(name, colours[name], 'stroke-width="10"') for name in names]
    drawing.height = math.ceil(draw_legend(drawing, entries, top + 12))
    return drawing.svg()


def draw_bars(
    drawing: Drawing, bars: "list[Bar]", axis: Axis, colours: "dict[str, str]", unit: str, top: float
) -> float:
    """One group below `top`; answers where it ends."""
    ends = [max(bar.total, sum(value for _, value in bar.parts)) for bar in bars]
    bottom = top + len(bars) * (BAR_HEIGHT + BAR_APART)
    x = Scale(axis, ticks_for(axis, ends), LEFT + LABELS, WIDTH - RIGHT - LABEL_OF_TOTAL)
    for tick in x.ticks:
        drawing.line(x(tick), top, x(tick), bottom)
        drawing.text(x(tick), bottom + 16, number(tick), "middle")
    for i, (bar, end) in enumerate(zip(bars, ends)):
        y = top + i * (BAR_HEIGHT + BAR_APART) + BAR_APART / 2
        drawing.text(LEFT + LABELS - 10, y + BAR_HEIGHT / 2 + 4, bar.label, "end", 13)
        begin = 0.0
        for name, value in bar.parts:
            drawing.rectangle(x(begin), y, x(begin + value) - x(begin), BAR_HEIGHT, colours[name])
            begin += value
        drawing.text(x(end) + 8, y + BAR_HEIGHT / 2 + 4, f"{rounded(bar.total)} {unit}", size=13)
    drawing.line(x.first, bottom, x.last, bottom, INK)
    drawing.text((x.first + x.last) / 2, bottom + 36, axis.label, "middle", 13)
    return bottom + 56
