"""Records the loader of every causal architecture that the registry of vLLM, or of SGLang, has, tiny, and shows what became
of it.

    PYTHONPATH=python:tests:tests/integration .cache/venv/bin/python -W ignore tests/engines/record_registry.py [NAME...]
        [--engine vllm|sglang] [--images | --drafts] [--places PLACE...] [--least N] [--json FILE] [--cost]

With --images, those of vLLM's models with images that transformers has, too. With --drafts, the layers of vLLM's models that draft (MTP). A line for each architecture, or several where its places differ: the places, how many pieces were recorded, and one of

    recorded     and equal, element by element, to what the real loader does (index_values.py)
    computes     the same, and some elements are more than copies: the steps, proved on random values
    in part      the same, but the loader leaves parameters unwritten that are named
    refused      by the recorder: the operation, and the parameter
    not loaded   the engine's loader fails by itself
    not built    the engine does not build it on a CPU, or from this configuration
    WRONG        the recording says something else than what the loader does

"in memory" stands where vLLM does not build the model on the "meta" device, so that the recorder's twin has memory.

``--cost`` prints instead what a rank takes to record two models as they are published.

Exit status: 0; 1 when one is wrong, or fewer than N architectures are recorded or compute wherever they are built and loaded.
"""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from engine_program import EngineProgram
from sglang_process import SglangProgram
from vllm_process import VllmProgram

_TESTS = Path(__file__).resolve().parents[1]
PLACES = ("tp1", "tp2.0", "tp2.1", "tp4.1", "tp8.5", "ep2.0", "ep2.1", "pp2.0", "pp2.1")
TOWER = "tower2.1"  # as tp2.1, and each rank has the whole tower of images
GOOD = ("recorded", "computes")

Row = "dict[str, Any]"


def recordings(engine: str = "vllm", models: str = "") -> EngineProgram:
    """The program that records. ``models``: the package of SGLang's; empty: all."""
    if engine == "sglang":
        return SglangProgram("sglang_recordings.py", _TESTS / "layouts", models=models)
    return VllmProgram("vllm_recordings.py", _TESTS.parent / "python", _TESTS / "layouts")


def rows_of(program: EngineProgram, architecture: str, places: "list[str]", **kind: bool) -> "list[Row]":
    """What became of an architecture at each place."""
    rows = [{"place": at, **program.ask("check", architecture=architecture, place=at, **kind)} for at in places]
    for row in rows:
        if row["result"] == "recorded" and row["unwritten"]:
            row["result"], row["why"] = "in part", f"unwritten: {_some(row['unwritten'])}"
        elif row["result"] == "recorded" and row["computed"]:
            row["result"], row["why"] = "computes", ", ".join(row["computed"])
    return rows


def is_good(rows: "list[Row]") -> bool:
    """Whether an architecture is recorded wherever vLLM itself builds and loads it."""
    loaded = [row["result"] for row in rows if row["result"] not in ("not built", "not loaded")]
    return bool(loaded) and all(result in GOOD for result in loaded)


def lines_of(architecture: str, rows: "list[Row]") -> "list[str]":
    """The table's lines; places with the same result share one."""
    lines = []
    for result, why in dict.fromkeys((row["result"], row["why"]) for row in rows):
        own = [row for row in rows if (row["result"], row["why"]) == (result, why)]
        places = "all" if len(own) == len(rows) else " ".join(row["place"] for row in own)
        pieces = "-".join(map(str, sorted({row.get("pieces", 0) for row in own})[:: max(1, len(own) - 1)][:2]))
        where = "" if own[0].get("on", "meta") == "meta" else "in memory "
        result = "WRONG" if result == "wrong" else result
        lines.append(f"{architecture:32} {places:24} {pieces:>8} {result:11} {where}{why}".rstrip())
    return lines


def _some(names: "list[str]") -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def main(arguments: "list[str]") -> int:
    """Prints the table. The exit status."""
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    parser.add_argument("--images", action="store_true")
    parser.add_argument("--drafts", action="store_true")
    parser.add_argument("--places", nargs="+", choices=(*PLACES, TOWER), default=PLACES)
    parser.add_argument("--least", type=int, default=0)
    parser.add_argument("--json")
    parser.add_argument("--cost", action="store_true")
    options = parser.parse_args(arguments)
    program = recordings(options.engine)
    if options.cost:
        return _costs(program)
    table = {}
    draft = {"draft": True} if options.drafts else {}
    kind = {name: True for name in ("images", "drafts") if getattr(options, name)}
    for name in options.names or program.ask("architectures", **kind):
        table[name] = rows_of(program, name, options.places, **draft)
        print(*lines_of(name, table[name]), sep="\n", flush=True)
    program.close()
    if options.json:
        Path(options.json).write_text(json.dumps(table, indent=1))
    return summary(table, options.least)


def _costs(program: VllmProgram) -> int:
    """Prints what a rank takes to record models as they are published."""
    for name in ("Qwen3-30B-A3B", "DeepSeek-V3"):
        cost = program.ask("cost", name=name)
        print(
            f"{name}, one of {cost['ranks']} ranks: {cost['tensors']} tensors, {cost['entries']} parameters of {cost['slices']} slices; "
            f"twin {cost['twin_s']:.1f} s, recording {cost['record_s']:.1f} s, +{cost['grown_bytes'] / 1e6:.0f} MB"
        )
    return 0


def summary(table: "dict[str, list[Row]]", least: int) -> int:
    """Prints the last line. The exit status."""
    counts = Counter(row["result"] for rows in table.values() for row in rows)
    good = sum(map(is_good, table.values()))
    print(f"{good} of {len(table)} architectures are recorded and proved; of places:", dict(counts.most_common()))
    return int(good < least or counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
