"""The weights that a conformance server serves: really read from safetensors, tensor by tensor, so that a load that
fails half-way leaves a real mix."""

import hashlib
import json
from pathlib import Path

GARBAGE = "garbage"


class LoadFailed(Exception):
    """`touched`: tensors were replaced before it failed."""

    def __init__(self, message: str, touched: bool) -> None:
        super().__init__(message)
        self.touched = touched


def tensors_in(directory: Path) -> "list[tuple[str, str]]":
    """(name, SHA-256 of the bytes) of every tensor in the directory's safetensors files, in the order of the bytes."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise LoadFailed(f"{directory} has no weights", touched=False)
    found = []
    for file in files:
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
            header.pop("__metadata__", None)
            for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
                begin, end = entry["data_offsets"]
                found.append((name, hashlib.sha256(stream.read(end - begin)).hexdigest()))
    return found


def digest_of(tensors: "dict[str, str]") -> str:
    return hashlib.sha256(json.dumps(sorted(tensors.items())).encode()).hexdigest()


class ServedModel:
    """Tensors by name, each with the load that it came from."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory)
        self.tensors = dict(tensors_in(directory))
        self.loads = {name: 0 for name in self.tensors}
        self.load = 0

    def digest(self) -> str:
        return digest_of(self.tensors)

    def mixed(self) -> bool:
        return len(set(self.loads.values())) > 1 or GARBAGE in self.tensors.values()

    def put(self, name: str, sha256: str) -> None:
        if name not in self.tensors:
            raise LoadFailed(f"the model has no {name}", touched=True)
        self.tensors[name] = sha256
        self.loads[name] = self.load

    def read(self, directory: Path, fails_half_way: bool) -> None:
        """All tensors of `directory` that the model has, or half of them and then LoadFailed."""
        found = tensors_in(directory)
        self.load += 1
        for index, (name, sha256) in enumerate(found):
            if fails_half_way and index >= len(found) // 2:
                raise LoadFailed(f"{name} cannot be read", touched=True)
            if name in self.tensors:
                self.put(name, sha256)
