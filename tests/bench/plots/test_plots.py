"""The plots: marks stand where their values are, every file is the same whenever it is drawn."""

import re
import xml.etree.ElementTree as ElementTree

import plots
import pytest

pytestmark = pytest.mark.nightly
MACHINE = {"cpu": "a <CPU>", "cores": 2}
STAGES = {"diff": 0.1, "pull": 0.3}


def sweep_row(level: str, **columns: float) -> dict:
    speeds = ("read_both", "diff_encode", "read_one", "decode_apply_verify")
    sizes = ("bytes_per_change", "entropy_bytes_per_change")
    return {"level": level, "gigabytes": 2.0, **dict.fromkeys(speeds, 10.0), **dict.fromkeys(sizes, 1.5), **columns}


def rows_of(column: str, values: "list[float]") -> "list[dict]":
    return [sweep_row(level, **{column: value}) for level in ("compact", "fast") for value in values]


SERIES = {
    "by_density": {"rows": rows_of("density", [0.5, 0.0005, 0.01])},
    "by_threads": {"rows": rows_of("threads", [1, 2])},
    "by_size": {"rows": rows_of("gigabytes", [0.3, 6.0])},
    "delta_sync_stages": {
        "rows": [
            {"kind": "numpy", "stages": {name: 10 * value for name, value in STAGES.items()}},
            {"kind": "delta", "stages": {"publish": 9.0, **STAGES, "total": 0.35}},
        ]
    },
}


def test_every_plot_is_drawn_the_same_twice_and_without_a_date(tmp_path):
    for folder in ("one", "two"):
        plots.draw_all(SERIES, MACHINE, tmp_path / folder)
    assert {path.stem for path in (tmp_path / "one").iterdir()} == set(plots.PLOTS)
    for path in (tmp_path / "one").iterdir():
        text = path.read_text()
        assert text == (tmp_path / "two" / path.name).read_text()
        assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
        assert not re.search(r"<dc:date>", text)


def test_every_plot_has_a_title_named_axes_and_a_legend():
    for name, (series, draw) in plots.PLOTS.items():
        figure = draw(SERIES[series]["rows"], "")
        assert figure.get_suptitle() and figure.legends, name
        assert figure.axes[-1].get_xlabel() and (figure.axes[0].get_ylabel() or figure.get_supylabel()), name


def test_a_plot_whose_series_is_missing_is_left_out(tmp_path):
    plots.draw_all({"by_threads": SERIES["by_threads"]}, MACHINE, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["scaling_over_threads.svg"]


def test_points_stand_where_their_values_are_by_rising_density():
    [axes] = plots.throughput_by_density(SERIES["by_density"]["rows"], "").axes
    bound, fast, compact = axes.get_lines()
    assert bound.get_linestyle() == "--"
    for line in (bound, fast, compact):
        assert list(line.get_xdata()) == pytest.approx([0.05, 1, 50]) and list(line.get_ydata()) == [10] * 3
    assert axes.get_xscale() == "log" and axes.get_ylim()[0] == 0


def test_every_level_that_was_measured_has_a_line_of_its_own_colour():
    rows = [sweep_row(level, density=0.01, threads=1) for level in ("fast", "compact", "another")]
    for draw in (plots.bytes_per_change, plots.scaling_over_threads):
        [axes] = draw(rows, "").axes
        _, *lines = axes.get_lines()
        assert [line.get_label().rpartition(" ")[2] for line in lines] == ["fast", "compact", "another"]
        assert len({line.get_color() for line in lines}) == 3


def test_parts_of_a_bar_are_as_long_as_their_stages_and_bars_of_like_length_share_an_axis():
    short, long = plots.latency_breakdown(SERIES["delta_sync_stages"]["rows"], "").axes
    for axes, times in ((short, 1), (long, 10)):
        assert [bar.get_width() for bar in axes.patches] == pytest.approx([100 * times, 300 * times])
        assert axes.patches[1].get_x() == pytest.approx(100 * times)
    assert [text.get_text() for text in short.texts] == ["350 ms"]  # the total, though stages that overlap are longer
