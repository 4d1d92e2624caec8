"""Replica: the version that a receiver publishes (raas_receiver/replica/FORMAT.md), as tensors over its file."""

import contextlib
import json
import mmap
import os
import re
import time
from typing import Any, NamedTuple, Tuple, Union

import torch

from lockstep.core import arguments
from lockstep.core.errors import BadDataError, DeadlineError, NotFoundError, UnavailableError
from lockstep.engine._dtypes import torch_dtype

Path = Union[str, "os.PathLike[str]"]

_VERSION_NAME = re.compile(r"v([1-9][0-9]{0,16})(?:-([0-9a-f]{8}))?")
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors")
_MAX_HEADER_BYTES = 1 << 30
_OPEN_SECONDS = 10.0
_POLL_SECONDS = 0.01


class Replica:
    """One version, held stable: a receiver writes no file that is open or mapped.

    The lease lasts as long as this object is open or any tensor from it lives. The receiver follows meanwhile, in other
    files. One thread at a time.

    Args:
        path: the receiver's directory of the model, ``<root>/<model>``.

    Raises:
        NotFoundError: nothing is published there (yet); see ``wait_for``.
        BadDataError: it is not a receiver's directory, or the file is not safetensors.
    """

    def __init__(self, path: Path) -> None:
        self._path = os.fspath(path)
        self._map: "mmap.mmap | None" = None
        self._open()

    @property
    def version(self) -> int:
        """The version's number."""
        return self._version

    @property
    def run(self) -> str:
        """The version's run, 32 hex digits."""
        return self._run

    @property
    def label(self) -> str:
        """What its trainer calls the version; "" for nothing."""
        return self._label

    @property
    def directory(self) -> str:
        """The directory that an engine loads. It may go when the receiver has published two more versions."""
        return self._directory

    def state_dict(self) -> "dict[str, torch.Tensor]":
        """Every tensor by its HuggingFace name, in the file's order, on the CPU, over the file's pages: nothing is
        copied. Writing to one changes pages of this process alone."""
        if self._map is None:
            raise NotFoundError(f"the replica of {self._path} is closed")
        return _tensors(self._map, self._directory)

    def refresh(self) -> bool:
        """Goes to the version that is published now; False when that is this one. Tensors given out do not change."""
        before = self._version, self._run, self._inode
        self._open()
        return (self._version, self._run, self._inode) != before

    def close(self) -> None:
        """Ends the lease, once no tensor of it lives."""
        self._map = None

    def __enter__(self) -> "Replica":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _open(self) -> None:
        directory, fd, said = _open_current(self._path)
        try:
            size = os.fstat(fd).st_size
            if size < 8:
                raise BadDataError(f"{directory}: {size} bytes are no safetensors file")
            # Private and writable: PyTorch has no read-only tensors, and the file must not change by one.
            self._map = mmap.mmap(fd, size, access=mmap.ACCESS_COPY)
            self._inode = os.fstat(fd).st_ino
        finally:
            os.close(fd)  # the mapping has a descriptor of its own
        self._directory = directory
        self._version, _ = _parse_name(os.path.basename(directory), self._path)
        self._run, self._label = str(said.get("run", "")), str(said.get("label", ""))


class Published(NamedTuple):
    """What a receiver's directory of a model shows at one moment."""

    version: int
    run: str  # its first eight hex digits where the directory's name has them, else ""
    directory_id: int  # tells two directories of one name apart


def published(path: Path) -> "Published | None":
    """What ``path``, the receiver's directory of a model, publishes now; None for nothing."""
    directory = os.fspath(path)
    name = _current_name(directory)
    while name is not None:
        version, run = _parse_name(name, directory)
        try:
            return Published(version, run, os.stat(os.path.join(directory, name)).st_ino)
        except FileNotFoundError:  # withdrawn meanwhile, for a newer one
            before, name = name, _current_name(directory)
            if name == before:
                break
    return None


def _current_name(directory: str) -> "str | None":
    try:
        return os.readlink(os.path.join(directory, "current"))
    except FileNotFoundError:
        return None


def wait_for(
    path: Path,
    version: "int | None" = None,
    timeout: "float | None" = None,
    *,
    after: "Published | None" = None,
) -> int:
    """Waits until ``path`` publishes a version, or one that is ``version`` or later; returns its number.

    A receiver publishes the last version of an earlier run until the new run has one, and versions of a new run begin
    again: ``wait_for(path, 1)`` is answered at once by version 40 of a run that has ended. To wait for what comes next,
    say what was there before the trainer was started:

        before = lockstep.published(path)
        ...
        lockstep.wait_for(path, 1, after=before)

    Args:
        path: the receiver's directory of the model; it need not exist yet.
        version: None for any. The number is all that is compared, not the run.
        timeout: seconds; None waits for ever.
        after: what ``published`` gave; that it is still published does not count. None: whatever is there counts.

    Raises:
        BadDataError: ``version`` is no number of a version.
        DeadlineError: the time is up; the text has what is published.
    """
    if version is not None:
        version = arguments.version_number(version)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        found = published(path)
        if found is not None and found != after and (version is None or found.version >= version):
            return found.version
        if deadline is not None and time.monotonic() >= deadline:
            wanted = "a version" if version is None else f"version {version}"
            there = "nothing" if found is None else f"version {found.version}"
            still = ", as before," if found is not None and found == after else ""
            raise DeadlineError(f"{path}: {wanted} was not published within {timeout:g} s; {there}{still} is there")
        time.sleep(_POLL_SECONDS)


def _parse_name(name: str, path: str) -> "Tuple[int, str]":
    match = _VERSION_NAME.fullmatch(name)
    if match is None:
        raise BadDataError(f"{path}/current points to {name!r}, which is no version; give a receiver's <root>/<model>")
    return int(match[1]), match[2] or ""


def _open_current(path: str) -> "Tuple[str, int, dict[str, Any]]":
    """The published directory, a descriptor of its weights, and what is said of the version.

    Between reading the link and opening the file the version may be withdrawn and its file taken for another one. Then
    the name is gone, or the receiver's lease makes opening fail: both are tried again. A file that still has its name
    after it was opened is the version, and from then on it is not written. Both files are looked up in one open
    directory: another run's may take the name.
    """
    deadline = time.monotonic() + _OPEN_SECONDS
    while True:
        try:
            name = os.readlink(os.path.join(path, "current"))
        except FileNotFoundError:
            raise NotFoundError(f"{path} publishes no version yet; lockstep.wait_for() waits for one") from None
        _parse_name(name, path)
        directory = os.path.join(path, name)
        with contextlib.suppress(FileNotFoundError):
            opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                said = _said_in(opened)
                fd = _open_weights(opened)
            finally:
                os.close(opened)
            if fd is not None:
                return directory, fd, said
        if time.monotonic() >= deadline:
            raise UnavailableError(
                f"{directory} has no lockstep.json, or no weights that can be opened; is {path} a receiver's directory?"
            )
        time.sleep(_POLL_SECONDS)


def _said_in(directory: int) -> "dict[str, Any]":
    """Run, label and more."""
    with open(os.open("lockstep.json", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory), "rb") as file:
        return dict(json.load(file))


def _open_weights(directory: int) -> "int | None":
    for name in _WEIGHTS:
        try:
            # Without waiting: a reader that is too late would wait for the receiver's lease to end.
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
        except (FileNotFoundError, BlockingIOError):
            continue
        try:
            if os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=directory)):
                return fd
        except FileNotFoundError:
            pass
        os.close(fd)
    return None


def _tensors(data: mmap.mmap, directory: str) -> "dict[str, torch.Tensor]":
    header_bytes = int.from_bytes(data[:8], "little")
    begin = 8 + header_bytes
    if header_bytes > _MAX_HEADER_BYTES or begin > len(data):
        raise BadDataError(f"{directory}: a header of {header_bytes} bytes in a file of {len(data)}")
    try:
        header = json.loads(data[8:begin])
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        return {name: _tensor(data, begin, name, entry) for name, entry in entries.items()}
    except BadDataError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise BadDataError(f"{directory}: its safetensors header is not understood: {error}") from error


def _tensor(data: mmap.mmap, begin: int, name: str, entry: "dict[str, Any]") -> torch.Tensor:
    dtype, packed = torch_dtype(name, entry["dtype"])
    shape = list(entry["shape"])
    if packed != 1:
        shape[-1] //= packed
    first, end = entry["data_offsets"]
    count = 1
    for extent in shape:
        count *= extent
    if not (0 <= first <= end <= len(data) - begin and count * dtype.itemsize == end - first and min(shape + [0]) >= 0):
        raise BadDataError(f'tensor "{name}" of {entry["dtype"]} {entry["shape"]} does not lie at {first} to {end}')
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=begin + first).reshape(shape)
