"""What a run has measured so far: lines of a table, and a JSON file that is whole at any moment."""

import json
import os
import platform
import re
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

from figures import NAMES, Figure

ROW = f"{{:<{max(map(len, NAMES))}}}  {{:>16}}  {{:>16}}  {{:>7}}  {{:>8}}  {{:>6}}  {{:>8}}  {{}}"


@dataclass
class Report:
    """Results and series in the order in which they were measured. Every change is written to `file`, if there is one."""

    machine: dict
    quick: bool
    file: "Path | None" = None
    finished: bool = False
    results: "list[dict]" = field(default_factory=list)
    not_measured: "list[str]" = field(default_factory=list)
    series: "dict[str, dict]" = field(default_factory=dict)  # name -> {"unit", "rows"}
    seconds: "dict[str, float]" = field(default_factory=dict)  # that each program took

    def add_result(self, figure: Figure, measured: dict) -> None:
        result = summary(figure, measured)
        self.results.append(result)
        self.write()
        print(row(figure, result), flush=True)

    def add_series(self, line: dict) -> None:
        self.series.setdefault(line["series"], {"unit": line["unit"], "rows": []})["rows"] += line["rows"]
        self.write()

    def write(self) -> None:
        """A reader of the file sees the state before or after, and never a part."""
        if self.file is None:
            return
        content = {key: value for key, value in asdict(self).items() if key != "file"}
        partial = self.file.with_name(self.file.name + ".partial")
        partial.write_text(json.dumps(content, indent=2) + "\n")
        os.replace(partial, self.file)

    def print_heading(self) -> None:
        machine = self.machine
        print(f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB" + self.quick * ", quick")
        print(ROW.format("figure", "value", "baseline", "ratio", "to reach", "spread", "model", ""), flush=True)


def summary(figure: Figure, measured: dict) -> dict:
    """Medians, and the ratio of each value to its baseline where there are as many: those were measured in turns, and
    how fast a machine is changes while it measures."""
    values, baselines = measured["values"], measured["baselines"]
    value, baseline = statistics.median(values), statistics.median(baselines)
    pairs = zip(values, baselines) if len(values) == len(baselines) else [(value, baseline)]
    return {
        "name": figure.name,
        "value": value,
        "unit": measured["unit"],
        "baseline": baseline,
        "ratio": statistics.median(theirs / ours if figure.inverse else ours / theirs for ours, theirs in pairs),
        "spread": (max(values) - min(values)) / value if value else 0.0,
        "model_bytes": measured["model_bytes"],
    }


def row(figure: Figure, result: dict) -> str:
    return ROW.format(
        result["name"],
        f"{result['value']:.4g} {result['unit']}",
        f"{result['baseline']:.4g} {result['unit']}",
        f"{result['ratio']:.3f}",
        figure.reach,
        f"{100 * result['spread']:.0f} %",
        f"{result['model_bytes'] / 1e9:.3g} GB",
        figure.about,
    )


def describe_machine(isa: "str | None") -> dict:
    named = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    return {
        "cpu": named[1] if named else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        **({"isa": isa} if isa else {}),
    }
