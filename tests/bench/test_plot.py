"""The chart writer: axes hold their values, marks stand where their values are, words are escaped."""

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from plot import LEFT, PLOT_HEIGHT, RIGHT, TOP, WIDTH, Axis, Bar, Line, bar_chart, line_chart, ticks_for  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("values", [[0.05, 50], [1], [3, 7, 900], [0.0007, 0.002]])
def test_ticks_hold_the_values_between_them(values):
    logarithmic = ticks_for(Axis("", logarithmic=True), values)
    linear = ticks_for(Axis(""), values)
    for ticks in (logarithmic, linear):
        assert ticks == sorted(set(ticks)) and len(ticks) >= 2
        assert ticks[0] <= min(values) and max(values) <= ticks[-1] * 1.0001
    assert linear[0] == 0


def test_ticks_of_a_whole_axis_are_whole():
    assert ticks_for(Axis("", whole=True), [1, 2]) == [0, 1, 2]
    assert 0.5 in ticks_for(Axis(""), [1, 2])


def test_points_stand_where_their_values_are():
    text = line_chart("a < b", "", Axis("x", logarithmic=True), Axis("y"), [Line("one", [(1, 0), (10, 5), (100, 10)])])
    root = ElementTree.fromstring(text)
    points = root.find(f"{SVG}polyline").get("points").split()
    x = [float(point.split(",")[0]) for point in points]
    y = [float(point.split(",")[1]) for point in points]
    assert x == pytest.approx([LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT], abs=0.1)
    assert y == pytest.approx([TOP + PLOT_HEIGHT, TOP + PLOT_HEIGHT / 2, TOP], abs=0.1)
    assert root.find(f"{SVG}title").text == "a < b"


def test_parts_of_a_bar_are_as_wide_as_their_values_on_the_axis_of_its_group():
    groups = [[Bar("small", [("p", 1), ("q", 3)], 4)], [Bar("large", [("p", 100), ("q", 300)], 400)]]
    root = ElementTree.fromstring(bar_chart("t", "", Axis("ms"), groups, "ms"))
    widths = [float(part.get("width")) for part in root.findall(f"{SVG}rect")[1:]]  # the first is the paper
    assert len(widths) == 4
    assert widths[1] == pytest.approx(3 * widths[0], abs=0.3) and widths[2:] == pytest.approx(widths[:2], abs=0.1)
    assert "400 ms" in [text.text for text in root.findall(f"{SVG}text")]
