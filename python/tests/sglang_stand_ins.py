"""Stand-ins that have the interfaces of SGLang's server, as far as the plugin uses them, around SGLang's own modules: for test_plugins.py."""

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from lockstep.engine import sglang as sglang_plugin


def module_of(monkeypatch, name: str, **members: Any) -> ModuleType:
    """Makes ``name`` importable, and the packages that it lies in."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        path = ".".join(parts[:depth])
        if path not in sys.modules:
            package = ModuleType(path)
            package.__path__ = []
            monkeypatch.setitem(sys.modules, path, package)
    for key, value in members.items():
        setattr(sys.modules[name], key, value)
    return sys.modules[name]


SGLANG = Path(__file__).resolve().parents[2] / ".cache" / "sglang"


def own_module(monkeypatch, name: str) -> ModuleType:
    """SGLang's own, run from its file: importing its packages takes a GPU's libraries."""
    path = (SGLANG / name.replace(".", "/")).with_suffix(".py")
    assert path.exists(), f"{path} is missing: tests/run.sh installs it"
    module_of(monkeypatch, name.rpartition(".")[0])
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


class ModelRunner:
    """As much of SGLang's as there is to hook."""

    def __init__(self, model: "torch.nn.Module | None", is_draft_worker: bool = False) -> None:
        self.model = model
        self.is_draft_worker = is_draft_worker

    def load_model(self) -> str:
        return "loaded"


class Request:
    """One to SGLang's manager of weights: what is not given is None."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update({"selector": "all", **fields})

    def __getattr__(self, name: str) -> None:
        return None


class Memory:
    """What takes a process' memory away, and gives it back."""

    def __init__(self, seen: "list[tuple[str, object]]") -> None:
        self._seen = seen

    def pause(self, tag: str) -> None:
        self._seen.append((f"released {tag}", sglang_plugin._follower.served))

    def resume(self, tag: str) -> None:
        self._seen.append((f"resumed {tag}", sglang_plugin._follower.served))


class Updater:
    """What writes the weights of a model runner: each writes one parameter, and notes what is served then."""

    def __init__(self, model: torch.nn.Module, seen: "list[tuple[str, object]]") -> None:
        self._model, self._seen = model, seen

    def __getattr__(self, name: str) -> Any:
        def write(*_: Any, **__: Any) -> "tuple[bool, str]":
            self._seen.append((name, sglang_plugin._follower.served))
            self._model.kv_b_proj.weight.data.fill_(9.0)
            if "broken" in self._seen:
                raise RuntimeError("a disk is gone")
            return True, "done"

        return write

    def begin_weight_update(self) -> None:
        """Of a session."""

    def end_weight_update(self, *, run_post_load: bool) -> None:
        self._seen.append(("ended", run_post_load))


def manager_of(model: torch.nn.Module) -> "tuple[Any, list[Any]]":
    """SGLang's manager of the weights of ``model``, and what is called below it."""
    seen: "list[Any]" = []

    def reset(**arguments: Any) -> None:
        if arguments["action"] == "reset_tensors":
            Updater(model, seen).reset_tensors()

    runner = SimpleNamespace(model=model, weight_updater=Updater(model, seen), check_weights=reset)
    worker = SimpleNamespace(
        model_runner=runner,
        weight_update_runners=lambda: [("target", runner)],
        deserialize_own_rank=lambda given: given,
    )
    module = sys.modules["sglang.srt.managers.scheduler_components.weight_updater"]
    manager = module.SchedulerWeightUpdaterManager(
        tp_worker=worker,
        draft_worker=None,
        memory_saver_adapter=Memory(seen),
        flush_cache=lambda **_: True,
        is_fully_idle=lambda **_: True,
    )
    manager.scheduler = SimpleNamespace(
        record_weight_version_change=lambda **_: None, _engine_paused=True, disaggregation_mode=None
    )
    return manager, seen


class Struct:
    """msgspec's."""

    def __init_subclass__(cls, frozen: bool = False) -> None:
        dataclasses.dataclass(frozen=frozen)(cls)


class Scheduler:
    def get_internal_state(self, _: Any) -> SimpleNamespace:
        return SimpleNamespace(internal_state={"memory": 1})
