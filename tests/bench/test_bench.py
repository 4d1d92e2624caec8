"""The benchmarks, small: whether they still run and say what they measured. No figure is judged here."""

import json
import math
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

RUN = Path(__file__).with_name("run.sh")
FIGURES = {
    "plan_compile_qwen3_30b_a3b",
    "plan_compile_deepseek_v3",
    "plan_execute",
    "publish_extra_memory",
    "scatter_tp4",
    "colocated_full_pull",
    "ring_pipelining",
    "placement_compile_qwen3_30b_a3b",
    "diff_encode_fast",
    "diff_encode_compact",
    "payload_bytes_per_change",
    "decode_apply_verify",
    "delta_sync",
    "publish_blocked",
    "fanout_cpu",
    "agent_rss",
    "receiver_rss",
    "idle_cpu",
    "full_pull",
    "layout_100k",
    "wan_full_pull",
    "wan_delta_latency",
    "pause_ratio",
    "pause_flip_ratio",
}
NEED_NETWORK_NAMESPACES = {"wan_full_pull", "wan_delta_latency"}
PLOTS = {
    "apply_by_density.svg",
    "bytes_per_change.svg",
    "folded_bytes.svg",
    "latency_breakdown.svg",
    "scaling_over_size.svg",
    "scaling_over_threads.svg",
    "throughput_by_density.svg",
}


def test_every_benchmark_runs_and_has_a_value_a_baseline_a_ratio_and_its_plots(tmp_path):
    report = tmp_path / "report.json"
    subprocess.run([RUN, "--quick", "--json", report, "--plots", tmp_path / "plots"], check=True, timeout=300)
    written = json.loads(report.read_text())
    assert written["machine"]["cores"] >= 1
    absent = set(written["not_measured"])
    assert absent <= NEED_NETWORK_NAMESPACES
    assert {result["name"] for result in written["results"]} == FIGURES - absent
    for result in written["results"]:
        assert set(result) == {"name", "value", "unit", "baseline", "ratio", "spread"}
        assert math.isfinite(result["ratio"]) and result["value"] >= 0 and result["baseline"] > 0
    drawn = {path.name: ElementTree.parse(path).getroot() for path in (tmp_path / "plots").iterdir()}
    assert set(drawn) == PLOTS
    for name, root in drawn.items():
        marks = [root.findall(f"{{http://www.w3.org/2000/svg}}{kind}") for kind in ("polyline", "rect")]
        assert root.tag.endswith("svg") and sum(map(len, marks)) > 2, name


def test_only_takes_the_names_of_figures():
    refused = subprocess.run([RUN, "--only", "nothing"], capture_output=True, text=True)
    assert refused.returncode == 64 and "plan_execute" in refused.stderr
