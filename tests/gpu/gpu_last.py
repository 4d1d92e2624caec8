"""What is known of the last run on a GPU, and whether the sources that run there have changed since.

gpu_last.py                    one line: never run, changed since (and what), or as they were
gpu_last.py --sources          {"digest", "commit", "sources": {path: digest}} of the checkout, for a pack
gpu_last.py --table            the figures of tests/gpu/last.json as docs/performance.md has them
gpu_last.py --merge FILE...    one record of several runs' last.json, the earliest first

tests/gpu/last.json is the last.json of a run of tests/gpu/run.sh on a machine with a GPU, or of several that were merged,
unchanged; nothing else makes one.
"""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAST = ROOT / "tests/gpu/last.json"
KEYS = ("digest", "sources", "date", "device", "driver", "finished", "passed", "failed", "not_run", "figures")

# What speaks to a GPU says so in its text; these do not, and what they do depends on one all the same.
ALSO = (
    "export_plugin/exporter/copy_engine.h",
    "export_plugin/exporter/exporter.cc",
    "export_plugin/in_place.cc",
    "tests/gpu/run.sh",
)
WHERE = ("export_plugin", "kernels", "raas_receiver", "python/lockstep", "trainer_agent", "bazel")
ENDS = (".cc", ".h", ".hpp", ".cu", ".cuh", ".py", ".bzl")
SPEAKS = re.compile(
    r"cuda_runtime|\bcuda[A-Z]\w+\(|\bnccl[A-Z]\w+\(|torch\.cuda|_share_cuda_|is_cuda|nvcc|__global__|//bazel:cuda"
)
HERE = re.compile(r"tests/gpu/(test_)?gpu_(?!last\b)\w+\.py")

NOT_ASKED = "not asked for"  # of a step that --only left out
NEVER = "Nothing has been measured on a GPU: no GPU code of this project has run on one yet."


def sources(root: Path = ROOT) -> "dict[str, str]":
    """Every source that a run on a GPU depends on and a machine without one does not prove, and the digest of its text."""
    found = {}
    for name in _tracked(root):
        path = root / name
        if not path.is_file():
            continue
        text = path.read_bytes()
        if name in ALSO or HERE.fullmatch(name) or (_is_product(name) and SPEAKS.search(text.decode(errors="replace"))):
            found[name] = hashlib.sha256(text).hexdigest()[:16]
    return found


def digest_of(found: "dict[str, str]") -> str:
    """Of all of them together, by name and text."""
    return hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()


def described(root: Path = ROOT) -> "dict[str, object]":
    """What a pack says it was made of."""
    found = sources(root)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True)
    return {"digest": digest_of(found), "commit": commit.stdout.strip(), "sources": found}


def read(path: Path = LAST) -> "dict[str, object] | None":
    """The last run's record; None where there was none. ValueError: it is not one."""
    if not path.exists():
        return None
    last = json.loads(path.read_text())
    missing = [key for key in KEYS if key not in last]
    if missing:
        raise ValueError(f"{path} has no {', '.join(missing)}: it must be the last.json of a run of tests/gpu/run.sh")
    if not (last["device"] and last["driver"] and last["date"]):
        raise ValueError(f"{path} names no device, driver or date: that was no run on a GPU")
    if last["digest"] != digest_of(last["sources"]):
        raise ValueError(f"{path}: its digest is not that of the sources that it lists; do not edit it")
    return last


def standing(last: "dict[str, object] | None", now: "dict[str, str]") -> str:
    """One line for a reader of the tests' output."""
    if last is None:
        return "GPU code has never run on a GPU: there is no tests/gpu/last.json (tests/gpu/pack.sh, tests/gpu/run.sh)"
    then = last["sources"]
    changed = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    ran = f"on {last['device']} on {last['date']}: {_counts(last)}"
    if changed:
        few = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if len(changed) > 5 else "")
        return f"GPU code has changed since it last ran, {ran}. Changed: {few}"
    return f"GPU code is what last ran {ran}"


def record(run: "dict[str, object]", date: str) -> "dict[str, object] | None":
    """last.json of a run's facts, outcomes and figures (keys of `gpu_run.Run`); None when no GPU was seen."""
    if not (run.get("device") and run.get("driver")):
        return None
    steps = run["steps"]
    by = {what: [step["step"] for step in steps if step["outcome"] == what] for what in ("passed", "failed", "not run")}
    if not by["passed"]:
        return None
    return {
        "digest": run["digest"],
        "commit": run["commit"],
        "date": date,
        "device": run["device"],
        "driver": run["driver"],
        "finished": run["finished"],
        "passed": by["passed"],
        "failed": by["failed"],
        "not_run": {step["step"]: step["why"] for step in steps if step["outcome"] == "not run"},
        "shared_bytes": run.get("shared_bytes", 0),
        "figures": [{**figure, "step": step["step"]} for step in steps for figure in step["figures"]],
        "sources": run["sources"],
    }


def merged(earlier: "dict[str, object]", later: "dict[str, object]") -> "dict[str, object] | None":
    """One record of two runs: a step is as it ran last. None where they are not of the same sources, device and driver."""
    if any(earlier[key] != later[key] for key in ("digest", "device", "driver")):
        return None
    ran = {*later["passed"], *later["failed"]}
    kept = {what: [step for step in earlier[what] if step not in ran] for what in ("passed", "failed")}
    known = {*ran, *kept["passed"], *kept["failed"]}
    asked = {step: why for step, why in later["not_run"].items() if why != NOT_ASKED}
    not_run = {**later["not_run"], **earlier["not_run"], **asked}
    return {
        **later,
        "finished": earlier["finished"] or later["finished"],
        "passed": kept["passed"] + later["passed"],
        "failed": kept["failed"] + later["failed"],
        "not_run": {step: why for step, why in not_run.items() if step not in known},
        "figures": [figure for figure in earlier["figures"] if figure["step"] not in ran] + later["figures"],
    }


def merged_files(paths: "list[Path]") -> "dict[str, object]":
    """ValueError: one of them is no record, or not of the same sources, device and driver as those before it."""
    found: "dict[str, object] | None" = None
    for path in paths:
        one = read(path)
        if one is None:
            raise ValueError(f"there is no {path}")
        found = one if found is None else merged(found, one)
        if found is None:
            raise ValueError(f"{path} is of other sources, or of another GPU or driver, than those before it")
    return found


def table(last: "dict[str, object] | None") -> str:
    """Markdown for docs/performance.md."""
    if last is None:
        return NEVER
    lines = [
        f"`tests/gpu/run.sh` on {last['device']}, driver {last['driver']}, {last['date']}: {_counts(last)}.",
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


def _counts(last: "dict[str, object]") -> str:
    counts = f"{len(last['passed'])} steps passed, {len(last['failed'])} failed, {len(last['not_run'])} not run"
    return counts if last["finished"] else counts + ", and it was cut off"


def _tracked(root: Path) -> "list[str]":
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return sorted(set(listed.stdout.split("\n")) - {""})


def _is_product(name: str) -> bool:
    """Also tests that run on a GPU; no others."""
    in_product = name.endswith(ENDS) and name.startswith(tuple(folder + "/" for folder in WHERE))
    return in_product and ("_test." not in name or "cuda" in name or "nccl" in name)


def main() -> None:
    if sys.argv[1:] == ["--sources"]:
        print(json.dumps(described(), indent=1))
    elif sys.argv[1:] == ["--table"]:
        print(table(read()))
    elif sys.argv[1:2] == ["--merge"] and sys.argv[2:]:
        try:
            print(json.dumps(merged_files([Path(path) for path in sys.argv[2:]]), indent=1))
        except ValueError as error:
            sys.exit(str(error))
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        try:
            print(standing(read(), sources()))
        except ValueError as error:  # test_last.py fails of it
            print(error)


if __name__ == "__main__":
    main()
