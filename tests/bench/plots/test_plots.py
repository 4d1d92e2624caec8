"""The plots: marks stand where their values are, every file is the same whenever it is drawn."""

import xml.etree.ElementTree as ElementTree

import plots
import pytest

pytestmark = pytest.mark.nightly
STAGES = {"diff": 0.1, "pull": 0.3}
SPEEDS = dict.fromkeys(("read_both", "diff_encode", "read_one", "decode_apply_verify"), 10.0)
SIZES = dict.fromkeys(("bytes_per_change", "entropy_bytes_per_change"), 1.5)


def rows_of(column: str, values: "list[float]") -> "list[dict]":
    of_all = {"gigabytes": 2.0, **SPEEDS, **SIZES}
    return [{**of_all, "level": level, column: value} for level in ("compact", "fast") for value in values]


SERIES = {
    "by_density": {"rows": rows_of("density", [0.5, 0.0005, 0.01])},
    "by_threads": {"rows": rows_of("threads", [1, 2])},
    "by_size": {"rows": rows_of("gigabytes", [0.3, 6.0])},
    "delta_sync_stages": {
        "rows": [
            {"kind": "numpy", "stages": {name: 10 * value for name, value in STAGES.items()}},
            {"kind": "delta", "stages": {**STAGES, "total": 0.35}},
        ]
    },
}


def test_every_plot_is_drawn_the_same_twice_and_without_a_date(tmp_path):
    for folder in ("one", "two"):
        plots.draw_all(SERIES, {"cpu": "a <CPU>", "cores": 2}, tmp_path / folder)
    assert {path.stem for path in (tmp_path / "one").iterdir()} == set(plots.PLOTS)
    for path in (tmp_path / "one").iterdir():
        text = path.read_text()
        assert text == (tmp_path / "two" / path.name).read_text() and "<dc:date>" not in text
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"


def test_points_stand_where_their_values_are_by_rising_density_with_a_line_for_each_level():
    _, draw = plots.PLOTS["throughput_by_density"]
    [axes] = draw(SERIES["by_density"]["rows"], "").axes
    bound, *levels = axes.get_lines()
    assert bound.get_linestyle() == "--"
    assert [line.get_label().rpartition(" ")[2] for line in levels] == ["compact", "fast"]
    for line in (bound, *levels):
        assert list(line.get_xdata()) == pytest.approx([0.05, 1, 50]) and list(line.get_ydata()) == [10] * 3
    assert axes.get_xscale() == "log" and axes.get_ylim()[0] == 0


def test_parts_of_a_bar_are_as_long_as_their_stages_and_bars_of_like_length_share_an_axis():
    short, long = plots.latency_breakdown(SERIES["delta_sync_stages"]["rows"], "").axes
    for axes, times in ((short, 1), (long, 10)):
        assert [bar.get_width() for bar in axes.patches] == pytest.approx([100 * times, 300 * times])
        assert axes.patches[1].get_x() == pytest.approx(100 * times)
    assert [text.get_text() for text in short.texts] == ["350 ms"]  # the total, though stages that overlap are longer
