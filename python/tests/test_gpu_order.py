"""What is queued on a GPU is done before the library copies: torch.cuda and the library stand in, and record calls."""

import ctypes
import json
import threading

import pytest
import torch

import lockstep
from lockstep.core import abi

DEVICES = [torch.device("cuda", 0), torch.device("cuda", 1)]


class GpuTensor:
    """A tensor of the CPU that says that it is on a GPU."""

    is_cuda = True

    def __init__(self, device: torch.device) -> None:
        self._tensor = torch.zeros(4, dtype=torch.bfloat16)
        self.device = device

    def __getattr__(self, name):
        return getattr(self._tensor, name)


class Library:
    """The library's functions, all of which succeed; those that move bytes are recorded."""

    DESCRIPTION = json.dumps({"tensors": [], "plan": "p", "writes": True, "pin_trouble": ""}).encode()

    def __init__(self, events: list) -> None:
        self._events = events

    def __getattr__(self, name):
        answers = {"lockstep_run": b"0" * 32}
        answers["lockstep_describe"] = self.DESCRIPTION

        def call(*arguments):
            if name in ("lockstep_import", "lockstep_publish", "lockstep_fill"):
                self._events.append(name)
            return answers.get(name, 0)

        return call


@pytest.fixture
def events(monkeypatch):
    recorded = []
    library = Library(recorded)
    monkeypatch.setattr(abi, "load", lambda: library)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: recorded.append(torch.device(device)))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: pytest.fail("one stream is not the whole device"))
    return recorded


@pytest.fixture
def tensors():
    held = {f"t{i}": GpuTensor(DEVICES[i % 2]) for i in range(4)}
    return {**held, "on_the_cpu": torch.zeros(4, dtype=torch.bfloat16)}


@pytest.fixture
def exporter(events, tensors, tmp_path):
    made = lockstep.Publisher.from_tensors(tensors, socket=tmp_path / "export.sock", model="actor", on_agent_host=True)
    events.clear()
    yield made
    made.close()


def waited_then(events: list, call: str) -> bool:
    *before, last = events
    return last == call and len(before) == len(DEVICES) and set(before) == set(DEVICES)


def test_an_import_writes_after_each_device_has_done_what_it_was_given(events, tensors, tmp_path):
    lockstep.Importer.from_named_tensors(tensors).load(tmp_path)
    assert waited_then(events, "lockstep_import")


def test_a_publish_reads_after_each_device_has_done_what_it_was_given(events, exporter):
    exporter.publish(version=1)
    assert waited_then(events, "lockstep_publish")


def test_a_publish_from_another_thread_waits_for_the_devices_too(events, exporter):
    thread = threading.Thread(target=exporter.publish, args=(1,))
    thread.start()
    thread.join()
    assert waited_then(events, "lockstep_publish")


def test_a_bucket_is_filled_after_each_device_has_done_what_it_was_given(events, exporter):
    memory = ctypes.create_string_buffer(8)
    with exporter._filling() as fill:
        fill(0, 8, ctypes.addressof(memory))
    assert waited_then(events, "lockstep_fill")


def test_tensors_of_the_cpu_need_no_torch_cuda(events, tmp_path):
    lockstep.Importer.from_named_tensors({"t": torch.zeros(4)}).load(tmp_path)
    assert events == ["lockstep_import"]
