"""Replica over directories of the shape of raas_receiver/replica/FORMAT.md, moved as a receiver moves them."""

import fcntl
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import lockstep
from lockstep.engine import _replica


class Published:
    """A receiver's directory with two files, brought forward by turns."""

    def __init__(self, path: Path, name: str = "model.safetensors") -> None:
        self.path, self._name = path, name
        (path / ".lockstep").mkdir(parents=True)

    def publish(self, directory: str, tensors: "dict[str, torch.Tensor]", replica: int = 0, run: str = "") -> Path:
        file = self.path / ".lockstep" / f"replica-{replica}.safetensors"
        file.unlink(missing_ok=True)
        save_file(tensors, file, metadata={"format": "pt"})
        (self.path / directory).mkdir()
        os.link(file, self.path / directory / self._name)
        said = {"run": (run or directory[-1]) * 32, "label": f"of {run}"}
        (self.path / directory / "lockstep.json").write_text(json.dumps(said))
        self.switch(directory)
        return file

    def switch(self, directory: str) -> None:
        fresh = self.path / ".lockstep" / "tmp-current"
        fresh.symlink_to(directory)
        fresh.rename(self.path / "current")

    def withdraw(self, directory: str) -> None:
        gone = self.path / ".lockstep" / "tmp-gone"
        (self.path / directory).rename(gone)
        for file in gone.iterdir():
            file.unlink()
        gone.rmdir()


@pytest.fixture
def published(tmp_path):
    return Published(tmp_path / "actor")


def some_tensors(value: float) -> "dict[str, torch.Tensor]":
    return {
        "w": torch.full((3, 5), value, dtype=torch.bfloat16),
        "scale": torch.full((), value, dtype=torch.float32),
        "ids": torch.arange(7),
        "f8": torch.full((2, 2), value).to(torch.float8_e4m3fn),
        "none": torch.empty(0, 4),
        "mask": torch.tensor([True, False]),
    }


def can_be_written(file: Path) -> bool:
    """Whether a receiver gets the write lease that it takes before it changes a file."""
    fd = os.open(file, os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def test_every_tensor_is_there_with_its_dtype_shape_and_bytes(published):
    tensors = some_tensors(2.5)
    published.publish("v7", tensors)
    with lockstep.Replica(published.path) as replica:
        assert (replica.version, replica.run, Path(replica.directory)) == (7, "7" * 32, published.path / "v7")
        state = replica.state_dict()
    assert set(state) == set(tensors)
    for name, tensor in tensors.items():
        assert state[name].dtype == tensor.dtype and state[name].shape == tensor.shape, name
        assert (
            torch.equal(state[name].view(torch.uint8), tensor.view(torch.uint8))
            if tensor.dim()
            else (state[name] == tensor)
        ), name


def test_tensors_lie_over_the_file_and_writing_to_one_does_not_change_it(published):
    file = published.publish("v1", some_tensors(1.0))
    before = file.read_bytes()
    replica = lockstep.Replica(published.path)
    first, second = replica.state_dict(), replica.state_dict()
    assert first["w"].data_ptr() == second["w"].data_ptr()
    maps = Path("/proc/self/maps").read_text().splitlines()
    mapped = next(line.split()[0] for line in maps if str(published.path) in line)
    begin, end = (int(part, 16) for part in mapped.split("-"))
    assert begin <= first["w"].data_ptr() < end
    first["w"].fill_(9)
    assert file.read_bytes() == before


def test_no_process_can_write_the_file_while_the_replica_or_a_tensor_of_it_lives(published):
    file = published.publish("v1", some_tensors(1.0))
    assert can_be_written(file)
    replica = lockstep.Replica(published.path)
    kept = replica.state_dict()["w"]
    assert not can_be_written(file)
    replica.close()
    assert not can_be_written(file)
    del kept
    assert can_be_written(file)
    with pytest.raises(lockstep.NotFoundError, match="closed"):
        replica.state_dict()


def test_refresh_goes_to_the_newest_and_leaves_old_tensors_as_they_are(published):
    published.publish("v1", some_tensors(1.0), 0)
    replica = lockstep.Replica(published.path)
    old = replica.state_dict()
    assert replica.refresh() is False
    published.publish("v2-0a1b2c3d", some_tensors(2.0), 1)
    published.withdraw("v1")
    assert replica.version == 1 and replica.refresh() is True
    assert (replica.version, replica.run) == (2, "d" * 32)
    assert replica.state_dict()["scale"] == 2 and old["scale"] == 1


def test_an_adapters_directory_is_a_replica_too(tmp_path):
    published = Published(tmp_path / "lora", "adapter_model.safetensors")
    published.publish("v1", {"a": torch.ones(2)})
    assert lockstep.Replica(published.path).state_dict()["a"].tolist() == [1, 1]


def test_nothing_published_is_not_found_and_other_directories_are_bad(tmp_path):
    with pytest.raises(lockstep.NotFoundError, match="wait_for"):
        lockstep.Replica(tmp_path)
    (tmp_path / "current").symlink_to("../../etc")
    with pytest.raises(lockstep.BadDataError, match="no version"):
        lockstep.Replica(tmp_path)


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"abc", "no safetensors"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "a header of"),
        ((2).to_bytes(8, "little") + b"[]", "not understood"),
        ((8).to_bytes(8, "little") + b'{"a": 1}', "not understood"),
    ],
)
def test_a_file_that_is_not_safetensors_is_refused(published, content, problem):
    file = published.publish("v1", {"a": torch.ones(2)})
    file.write_bytes(content)
    with pytest.raises(lockstep.BadDataError, match=problem):
        lockstep.Replica(published.path).state_dict()


@pytest.mark.parametrize("offsets", ["[0, 9]", "[4, 12]", "[-8, 0]", "[8, 0]"])
def test_a_tensor_outside_its_file_is_refused_by_name(published, offsets):
    file = published.publish("v1", {"a": torch.ones(2)})
    header = f'{{"a": {{"dtype": "F32", "shape": [2], "data_offsets": {offsets}}}}}'.encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(lockstep.BadDataError, match='tensor "a"'):
        lockstep.Replica(published.path).state_dict()


def test_a_version_that_is_withdrawn_between_link_and_file_is_left_for_the_newest(published, monkeypatch):
    published.publish("v1", some_tensors(1.0), 0)
    read = os.readlink

    def late(path: str) -> str:
        name = read(path)
        if name == "v1":
            published.publish("v2", some_tensors(2.0), 1)
            published.withdraw("v1")
        return name

    monkeypatch.setattr(_replica.os, "readlink", late)
    replica = lockstep.Replica(published.path)
    assert replica.version == 2 and replica.state_dict()["scale"] == 2


def test_run_and_label_are_of_the_weights_where_another_runs_version_took_the_name_meanwhile(published, monkeypatch):
    published.publish("v1", some_tensors(1.0), run="a")
    opens = os.open

    def late(path, *arguments, **options):
        if os.fspath(path).endswith("model.safetensors"):
            monkeypatch.setattr(_replica.os, "open", opens)
            published.withdraw("v1")
            published.publish("v1", some_tensors(2.0), run="b")
        return opens(path, *arguments, **options)

    monkeypatch.setattr(_replica.os, "open", late)
    replica = lockstep.Replica(published.path)
    assert replica.state_dict()["scale"] == 2 and (replica.run, replica.label) == ("b" * 32, "of b")


def test_a_file_under_the_receivers_lease_is_not_waited_for(published, monkeypatch):
    file = published.publish("v1", some_tensors(1.0), 0)
    monkeypatch.setattr(_replica, "_OPEN_SECONDS", 0.1)
    # As a receiver has it: the kernel signals that a file is opened.
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    fd = os.open(file, os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        begin = time.monotonic()
        with pytest.raises(lockstep.UnavailableError, match="can be opened"):
            lockstep.Replica(published.path)
        assert time.monotonic() - begin < 30  # the kernel would wait 45
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def test_wait_for_answers_the_version_and_its_timeout_says_what_is_there(published):
    with pytest.raises(lockstep.DeadlineError, match="nothing is there"):
        lockstep.wait_for(published.path, timeout=0.02)
    published.publish("v3", {"a": torch.ones(2)}, 0)
    assert lockstep.wait_for(published.path) == 3
    assert lockstep.wait_for(published.path, 2) == 3
    with pytest.raises(lockstep.DeadlineError, match="version 5 was not published within 0.02 s; version 3"):
        lockstep.wait_for(published.path, 5, timeout=0.02)
    later = threading.Timer(0.1, lambda: published.publish("v5", {"a": torch.ones(2)}, 1))
    later.start()
    assert lockstep.wait_for(published.path, 4, timeout=60) == 5
    later.join()


def test_waiting_for_what_comes_after_an_earlier_runs_version(published):
    assert lockstep.published(published.path) is None
    published.publish("v40", {"a": torch.ones(2)}, 0)
    before = lockstep.published(published.path)
    assert (before.version, before.run) == (40, "")
    assert lockstep.wait_for(published.path, 1, timeout=1) == 40
    with pytest.raises(lockstep.DeadlineError, match="version 40, as before, is there"):
        lockstep.wait_for(published.path, 1, timeout=0.05, after=before)
    later = threading.Timer(0.1, lambda: published.publish("v1", {"a": torch.ones(2)}, 1))
    later.start()
    assert lockstep.wait_for(published.path, 1, timeout=60, after=before) == 1
    later.join()


def test_a_version_of_the_same_number_in_another_run_is_not_what_was_there_before(published):
    published.publish("v3", {"a": torch.ones(2)}, 0)
    before = lockstep.published(published.path)
    published.publish("v3-0a1b2c3d", {"a": torch.ones(2)}, 1)
    assert lockstep.wait_for(published.path, 3, timeout=1, after=before) == 3
    assert lockstep.published(published.path).run == "0a1b2c3d"


def test_a_link_to_a_version_that_is_gone_publishes_nothing(published):
    published.publish("v3", {"a": torch.ones(2)}, 0)
    published.withdraw("v3")
    assert lockstep.published(published.path) is None
