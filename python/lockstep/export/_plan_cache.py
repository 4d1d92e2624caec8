"""Pieces that were found once, in files of the user's cache. A file that is not whole is none, and what one says is proved again. For
``_recorded``."""

import hashlib
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any, Mapping, Sequence

from lockstep.export._look import Piece, Source


def cache_file(key: Any) -> Path:
    """Where the pieces are that were found where ``key``, of JSON, was the same: in ``$XDG_CACHE_HOME``, or ``~/.cache``."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "lockstep", "bridges", f"{digest[:32]}.json")


def load(file: Path, sources: "Sequence[Source]") -> "list[Piece] | None":
    """None: there are none, or the file is not what was saved."""
    try:
        digest, text = file.read_bytes().split(b"\n", 1)
        if digest != _digest(text):
            return None
        return [_piece(entry, sources) for entry in json.loads(text)]
    except (OSError, ValueError, TypeError, KeyError, IndexError):
        return None


def save(file: Path, pieces: "Sequence[Piece]", sources: "Sequence[Source]") -> None:
    """Whole, or not at all. A directory that cannot be written to is a warning."""
    numbers = {source: number for number, source in enumerate(sources)}
    text = json.dumps([{**vars(piece), "source": numbers[piece.source]} for piece in pieces]).encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=file.parent) as own:
            new = Path(own, file.name)
            new.write_bytes(_digest(text) + b"\n" + text)
            new.replace(file)
    except OSError as error:
        warnings.warn(f"{file}: {error.strerror}; the next start records the bridge again", stacklevel=2)


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()


def _piece(entry: "Mapping[str, Any]", sources: "Sequence[Source]") -> Piece:
    tuples = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
    return Piece(**{**entry, **tuples, "source": sources[entry["source"]]})
