"""What the demo has to show: a table for people, a file for programs."""

import json
from statistics import median

ABSOLUTE_BYTES_PER_CHANGE = 6  # u32 index and bf16 value: what a delta costs without a codec


def summarize(model, outcome):
    """The result as --json writes it."""
    deltas = [sync for _, sync in outcome.syncs if sync.mode == "delta" and sync.changed_elements]
    changed = sum(sync.changed_elements for sync in deltas)
    return {
        "model_bytes": model.model_bytes,
        "steps": [
            {
                "version": sync.to.version,
                "receiver": receiver,
                "mode": sync.mode,
                "changed_elements": sync.changed_elements,
                "density": sync.changed_elements / model.elements,
                "payload_bytes": sync.payload_bytes,
                "publish_to_commit_ms": sync.publish_to_commit_us / 1000,
                "verified": sync.verified,
            }
            for receiver, sync in outcome.syncs
        ],
        "final_digest_equal": all(digest == outcome.trainer_digest for digest in outcome.replica_digests.values()),
        "model": model.title,
        "elements": model.elements,
        "trainer": [vars(version) for version in outcome.versions],
        "payload_bytes_per_changed_element": sum(sync.payload_bytes for sync in deltas) / changed if changed else None,
        "complaints": outcome.complaints,
    }


def write_json(path, result):
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


COLUMNS = ("version", "receiver", "mode", "changed", "density", "payload", "x smaller", "publish->commit", "verified")


def print_report(model, outcome, result):
    rows = [_row(step, model) for step in result["steps"]]
    widths = [max(len(row[i]) for row in (COLUMNS, *rows)) for i in range(len(COLUMNS))]
    print()
    for row in (COLUMNS, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths)))
    print()
    print(f"model: {model.title}, {len(model.metas)} tensors, {_bytes(model.model_bytes)}")
    _print_delta_cost(result)
    steps = outcome.versions[1:]
    print(
        f"trainer: {median(v.step_ms for v in steps):.0f} ms per step, "
        f"{median(v.blocked_ms for v in steps):.1f} ms of them in Lockstep's calls (medians)"
    )
    print(f"trainer    sha256 {outcome.trainer_digest}")
    for name, digest in outcome.replica_digests.items():
        print(f"receiver {name} sha256 {digest}  {'equal' if digest == outcome.trainer_digest else 'DIFFERENT'}")
    for complaint in outcome.complaints:
        print(f"WRONG: {complaint}")
    if not outcome.complaints:
        print("every replica holds the trainer's bytes, every sync was verified")


def _row(step, model):
    full = step["mode"] == "full"
    return (
        str(step["version"]),
        step["receiver"],
        step["mode"],
        "-" if full else f"{step['changed_elements']:,}",
        "-" if full else f"{step['density']:.3%}",
        _bytes(step["payload_bytes"]),
        f"{model.model_bytes / step['payload_bytes']:.1f}" if step["payload_bytes"] else "-",
        f"{step['publish_to_commit_ms']:,.0f} ms",
        "yes" if step["verified"] else "NO",
    )


def _print_delta_cost(result):
    cost = result["payload_bytes_per_changed_element"]
    if cost:
        print(
            f"deltas: {cost:.2f} bytes per changed element, "
            f"{ABSOLUTE_BYTES_PER_CHANGE / cost:.1f} x smaller than index and value"
        )


def _bytes(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
