"""The record of the last run on a GPU, and whether the sources that run there have changed since.

gpu_last.py                        one line for tests/run.sh: when GPU code ran, and what has changed since
gpu_last.py --table [LAST.json]    the figures of tests/gpu/last.json as docs/performance.md has them
gpu_last.py --record JUNIT.xml...  a new record, of pytest's reports

tests/gpu/last.json is the last.json of a run of tests/gpu/run.sh on a machine with a GPU, unchanged.
"""

import datetime
import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LAST = ROOT / "tests/gpu/last.json"
# Product sources that speak to a GPU, those that such sources decide for, and the tests.
SPEAKS = r"cuda_runtime|cuda[A-Z]\w+\(|nccl[A-Z]\w+\(|torch\.cuda|_share_cuda_|is_cuda|nvcc|__global__|//bazel:cuda"
WHERE = ("bazel", "common", "export_plugin", "kernels", "raas_receiver", "python/lockstep", "trainer_agent")
ALSO = ("export_plugin/exporter/copy_engine.h", "export_plugin/exporter/exporter.cc", "export_plugin/in_place.cc")
TESTS = ("tests/gpu/*.py", ":!tests/gpu/*last.py")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def record(reports: "list[Path]") -> "dict[str, Any]":
    """Of pytest's reports, or of those that run.sh put there before."""
    last: "dict[str, Any]" = {"commit": commit(), "date": datetime.date.today().isoformat()}
    last.update(device="no GPU", driver="none", passed=[], failed=[], not_run={}, figures=[])
    for report in reports:
        root = ElementTree.parse(report).getroot()
        for named in root.iter("property"):
            if named.get("name") == "figure":
                last["figures"].append(json.loads(named.get("value", "")))
            else:
                last[named.get("name", "")] = named.get("value")
        for case in root.iter("testcase"):
            name, skip = f"{report.stem}.{case.get('name')}", case.find("skipped")
            if case.find("failure") is not None or case.find("error") is not None:
                last["failed"].append(name)
            elif skip is not None:
                last["not_run"][name] = skip.get("message")
            else:
                last["passed"].append(name)
    return last


def commit() -> str:
    """Of the pack, or the checkout; one that git does not know where it had changes."""
    packed = ROOT / "commit"
    return (packed.read_text() if packed.exists() else git("describe", "--always", "--dirty", "--abbrev=40")).strip()


def written(last: "dict[str, Any]") -> str:
    """JSON with a line for each key and figure."""
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in last.items() if key != "figures"]
    figures = ",\n".join(f"  {json.dumps(figure)}" for figure in last["figures"])
    return "{\n" + ",\n".join(lines) + f',\n "figures": [\n{figures}\n ]\n}}'


def counts(last: "dict[str, Any]") -> str:
    return f"{len(last['passed'])} steps passed, {len(last['failed'])} failed, {len(last['not_run'])} not run"


def note(last: "dict[str, Any]") -> str:
    ran = f"GPU code last ran on {last['device']} on {last['date']}: {counts(last)}"
    try:
        speaking = git("grep", "-lE", SPEAKS, "--", *WHERE).splitlines()
        changed = git("diff", "--name-only", last["commit"], "--", *speaking, *ALSO, *TESTS).splitlines()
    except (OSError, subprocess.CalledProcessError):
        return f"{ran}. Git does not tell what has changed since"
    if not changed:
        return f"{ran}. Nothing of it has changed since"
    return f"{ran}. Changed since: {', '.join(changed[:5])}" + (f" and {len(changed) - 5} more" if changed[5:] else "")


def table(last: "dict[str, Any]") -> str:
    """Markdown for docs/performance.md."""
    lines = [
        f"`tests/gpu/run.sh` on {last['device']}, driver {last['driver']}, {last['date']}: {counts(last)}.",
        "",
        "| figure | | against | ratio | goal |",
        "|---|---|---|---:|---|",
    ]
    for figure in last["figures"]:
        ratio = f"{figure['ratio']:.3g}" if "ratio" in figure else ""
        goal = f"{figure['goal']}{'' if figure['met'] else ', missed'}" if "goal" in figure else ""
        of = figure.get("of", "")
        lines.append(f"| `{figure['name']}` | {figure['value']:.4g} {figure['unit']} | {of} | {ratio} | {goal} |")
    return "\n".join(lines)


def main(arguments: "list[str]") -> None:
    if arguments[:1] == ["--record"]:
        print(written(record([Path(report) for report in arguments[1:]])))
    elif arguments[:1] == ["--table"]:
        print(table(json.loads(Path(*arguments[1:] or [LAST]).read_text())))
    else:
        print(note(json.loads(LAST.read_text())))


if __name__ == "__main__":
    main(sys.argv[1:])
