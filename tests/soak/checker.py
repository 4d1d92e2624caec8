"""The judge of a soak: hashes what receivers show and engines were given, and compares it with what trainers wrote down.

    checker.py PLACES.json    [{"name", "root", "truth", "given"}, ...]

A process of its own that shares no code with the product; the standard library is all it needs. Every place is read as an
engine reads (raas_receiver/replica/FORMAT.md): the directory behind `current` is opened, then the file in it; from then on
no receiver may write that file. A directory that was withdrawn in between is no reading, and is read again.
On stdout it prints JSON lines: {"readings", "bytes", "discarded"} every second, and {"wrong"} for each reading that differs.
"""

import hashlib
import json
import os
import struct
import sys
import time
from pathlib import Path

AGAIN_S = 2  # what is shown without a change is read again: it must stay what it is
CHUNK = 1 << 20


def hashes_of(file: "int | Path") -> "dict[str, str]":
    """SHA-256 of each tensor of a safetensors file. ValueError when it is not a whole and valid one."""
    with open(file, "rb", closefd=not isinstance(file, int)) as stream:
        (header_bytes,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(header_bytes))
        header.pop("__metadata__", None)
        found, end = {}, 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            first, last = entry["data_offsets"]
            digest, left = hashlib.sha256(), last - first
            while left > 0 and (piece := stream.read(min(CHUNK, left))):
                digest.update(piece)
                left -= len(piece)
            if first != end or left > 0:
                raise ValueError(f"{name} is not where it should be")
            found[name], end = digest.hexdigest(), last
        if stream.read(1):
            raise ValueError("there is something behind the last tensor")
    return found


class Tail:
    """The lines of a growing file of JSON lines; one that is being written is left for later."""

    def __init__(self, path: "str | Path") -> None:
        self.path = Path(path)
        self.at = 0

    def entries(self) -> "list[dict]":
        if not self.path.exists() or self.path.stat().st_size == self.at:
            return []
        with self.path.open("rb") as stream:
            stream.seek(self.at)
            whole = stream.read().rpartition(b"\n")[0]
        self.at += len(whole) + 1 if whole else 0
        return [entry for entry in map(parsed, whole.splitlines()) if entry is not None]


def parsed(line: bytes) -> "dict | None":
    """None for what is no JSON object, as the last line of a process that was killed."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


class Truth:
    """What a trainer wrote down before it published."""

    def __init__(self, path: str) -> None:
        self.tail = Tail(path)
        self.versions: "dict[tuple[str, int], dict]" = {}

    def difference(self, run: str, version: int, label: str, hashes: "dict[str, str]") -> "str | None":
        """`run` may be its first digits."""
        for entry in self.tail.entries():
            self.versions[entry["run"], entry["version"]] = entry
        known = next((entry for (r, v), entry in self.versions.items() if v == version and r.startswith(run)), None)
        if known is None or known["label"] != label:
            return f"run {run} version {version} label {label!r}, which no trainer published"
        wrong = [name for name in sorted({*known["sha256"], *hashes}) if known["sha256"].get(name) != hashes.get(name)]
        return f"version {version}: wrong tensor {wrong[0]} ({len(wrong)} of {len(hashes)} differ)" if wrong else None


class Place:
    """A receiver's directory of one model, and what its engine was given."""

    def __init__(self, name: str, root: str, truth: Truth, given: str) -> None:
        self.name, self.root, self.truth, self.given = name, os.path.realpath(root), truth, Tail(given)
        self.seen: "tuple | None" = None
        self.read_at = 0.0
        self.readings = self.bytes = self.discarded = 0

    def wrong(self) -> "list[str]":
        """What is wrong with what was shown since the last call."""
        found = []
        for entry in self.given.entries():
            self.readings += 1
            if entry.get("violation"):
                found.append(f"its engine: {entry['violation']}")
            elif entry["version"]:
                difference = self.truth.difference(entry["run"], entry["version"], entry["label"], entry["sha256"])
                found += [f"its engine was given {difference}"] if difference else []
        shown = self._shown()
        return found + ([f"it shows {shown}"] if shown else [])

    def _shown(self) -> "str | None":
        try:
            directory = os.open(os.path.join(self.root, "current"), os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # nothing yet, or switched just now
            return None
        try:
            return self._in(directory)
        except OSError:  # withdrawn in the middle; or a lease: the receiver is about to write the file
            self.discarded += 1
            return None
        finally:
            os.close(directory)

    def _in(self, directory: int) -> "str | None":
        seen = (os.fstat(directory).st_ino, os.fstat(directory).st_ctime_ns)
        if seen == self.seen and time.monotonic() - self.read_at < AGAIN_S:
            return None
        with open(os.open("lockstep.json", os.O_RDONLY, dir_fd=directory)) as stream:
            notes = json.load(stream)
        file = os.open("model.safetensors", os.O_RDONLY | os.O_NONBLOCK, dir_fd=directory)
        try:
            if os.path.dirname(os.readlink(f"/proc/self/fd/{directory}")) != self.root:
                self.discarded += 1
                return None
            self.seen, self.read_at = seen, time.monotonic()
            self.readings += 1
            self.bytes += os.fstat(file).st_size
            try:
                hashes = hashes_of(file)
            except (ValueError, KeyError, struct.error) as error:
                return f"version {notes['version']}: no safetensors file: {error}"
            return self.truth.difference(notes["run"], notes["version"], notes["label"], hashes)
        finally:
            os.close(file)


def main() -> None:
    places, truths = [], {}
    for place in json.loads(Path(sys.argv[1]).read_text()):
        truth = truths.setdefault(place["truth"], Truth(place["truth"]))
        places.append(Place(place["name"], place["root"], truth, place["given"]))
    told, parent = time.monotonic(), os.getppid()
    while os.getppid() == parent:
        for place in places:
            for wrong in place.wrong():
                print(json.dumps({"wrong": f"{place.name}: {wrong}"}), flush=True)
        if time.monotonic() - told > 1:
            told = time.monotonic()
            totals = {what: sum(getattr(p, what) for p in places) for what in ("readings", "bytes", "discarded")}
            print(json.dumps(totals), flush=True)
        time.sleep(0.02)


if __name__ == "__main__":
    main()
