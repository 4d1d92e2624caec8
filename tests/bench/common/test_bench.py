"""The benchmarks, small: whether they still run and say what they measured. No figure is judged here."""

import json
import math
import signal
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import program
import pytest
from figures import NAMES, PROGRAMS, Figure
from plots import PLOTS
from report import Report

pytestmark = pytest.mark.nightly
RUN = Path(__file__).parents[1] / "run.sh"
NEED_NETWORK_NAMESPACES = {"wan_full_pull", "wan_delta_latency", "log_readers"}
RESULT_KEYS = {"name", "value", "unit", "baseline", "ratio", "spread", "model_bytes"}


def test_every_benchmark_runs_and_has_a_value_a_baseline_a_ratio_and_its_plots(tmp_path):
    report = tmp_path / "report.json"
    subprocess.run([RUN, "--quick", "--json", report, "--plots", tmp_path / "plots"], check=True, timeout=600)
    written = json.loads(report.read_text())
    assert written["machine"]["cores"] >= 1 and written["finished"] and written["quick"]
    absent = set(written["not_measured"])
    assert absent <= NEED_NETWORK_NAMESPACES
    assert {result["name"] for result in written["results"]} == set(NAMES) - absent
    for result in written["results"]:
        assert set(result) == RESULT_KEYS
        assert math.isfinite(result["ratio"]) and result["value"] >= 0 and result["baseline"] > 0
        assert result["model_bytes"] > 0
    assert set(written["seconds"]) == set(PROGRAMS)
    drawn = {path.stem: ElementTree.parse(path).getroot() for path in (tmp_path / "plots").iterdir()}
    assert set(drawn) == set(PLOTS)


def test_only_takes_the_names_of_figures():
    refused = subprocess.run([RUN, "--only", "nothing"], capture_output=True, text=True)
    assert refused.returncode == 64 and "plan_execute" in refused.stderr


def test_a_run_that_is_interrupted_leaves_what_it_has_measured_and_says_that_it_is_not_finished(tmp_path):
    file = tmp_path / "report.json"
    figures = ["--only", "plan_compile_qwen3_30b_a3b", "--only", "idle_cpu"]
    with subprocess.Popen([RUN, *figures, "--json", file], stdout=subprocess.PIPE, text=True) as run:
        try:
            while not run.stdout.readline().startswith("plan_compile_qwen3_30b_a3b"):
                assert run.poll() is None
            run.send_signal(signal.SIGTERM)
            assert run.wait(60) == 128 + signal.SIGTERM
        finally:
            run.kill()
    written = json.loads(file.read_text())
    assert not written["finished"]
    assert [result["name"] for result in written["results"]] == ["plan_compile_qwen3_30b_a3b"]


def test_the_ratio_is_of_neighbours_in_time_where_there_are_as_many_baselines_as_values():
    machine = {"cpu": "any", "cores": 1, "memory_gib": 1}
    report = Report(machine, quick=True)
    measured = {"name": "x", "unit": "s", "model_bytes": 1, "values": [1.0, 2.0, 30.0], "baselines": [2.0, 4.0, 10.0]}
    report.add_result(Figure("", "x", "<= 1", ""), measured)
    report.add_result(Figure("", "x", ">= 1", "", inverse=True), measured)
    report.add_result(Figure("", "x", "<= 1", ""), {**measured, "baselines": [4.0]})
    assert [result["ratio"] for result in report.results] == [0.5, 2.0, 0.5]


def test_where_memory_is_short_a_smaller_model_is_measured_and_said(monkeypatch, capsys):
    monkeypatch.setattr(program, "available_bytes", lambda: program.ROOM_BYTES + 500_000_000)
    assert program.fitting_bytes(10_000_000, copies=5) == 10_000_000
    assert capsys.readouterr().err == ""
    assert program.fitting_bytes(3_000_000_000, copies=5) == 100_000_000
    assert "3 GB are wanted" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        program.fitting_bytes(3_000_000_000, copies=1000)
    assert ended.value.code == 71
