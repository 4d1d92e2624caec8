"""What is no argument gets an error that says what was given and what is wanted, before an agent is asked."""

import numpy as np
import pytest
import torch

import lockstep
from lockstep.core import arguments
from lockstep.core.tensors import describe, named


def publisher(tensors=None, *, socket="/nowhere.sock", model="actor", **options) -> lockstep.Publisher:
    tensors = {"a": np.zeros(1)} if tensors is None else tensors
    return lockstep.Publisher(socket, model, tensors, connect_timeout_ms=1, **options)


@pytest.mark.parametrize(
    "tensors, there",
    [
        (torch.nn.Linear(2, 2), "a Linear is a module"),
        (torch.nn.Sequential(torch.nn.Linear(2, 2)), "a Sequential is a module"),
        (list(torch.nn.Linear(2, 2).parameters()), "entry 0 of the model's tensors is a Parameter and has no name"),
        (torch.zeros(2, 2), "a Tensor was given"),
        ([torch.zeros(2, 2)], "entry 0 of the model's tensors is a Tensor and has no name"),
        ({0: torch.zeros(2)}, r"entry 0 of the model's tensors is \(int, Tensor\)"),
        ([("a", torch.zeros(2)), ("b",)], "entry 1 of the model's tensors is a tuple"),
        ("model.safetensors", "a str was given"),
        (7, "a int was given"),
        (None, "a NoneType was given"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_are_no_named_tensors_is_said_with_what_to_give(tensors, there):
    for take in (describe, named):
        with pytest.raises(lockstep.BadDataError, match=f"{there}.*module.state_dict"):
            take(tensors)


def test_a_module_is_refused_by_all_that_take_named_tensors():
    module = torch.nn.Linear(2, 2)
    for take in (publisher, lockstep.named_tensors, lockstep.without_ties):
        with pytest.raises(lockstep.BadDataError, match="a Linear is a module"):
            take(module)
    with pytest.raises(lockstep.BadDataError, match="is a Parameter and has no name"):
        publisher(module.parameters())


def test_named_parameters_and_descriptions_are_named_tensors():
    module = torch.nn.Linear(2, 3)
    assert [meta.name for meta in describe(module.named_parameters())] == ["weight", "bias"]
    assert describe(iter([lockstep.TensorMeta("x", "F32", (1,))])) == [lockstep.TensorMeta("x", "F32", (1,))]


@pytest.mark.parametrize(
    "version, problem",
    [
        ("4", "version is '4', of type str; give a whole number from 1"),
        (4.0, "version is 4.0, of type float; give a whole number"),
        (None, "version is None"),
        (0, "version 0: versions go from 1"),
        (1 << 56, "versions go from 1"),
    ],
)
def test_a_version_that_is_none_is_named(version, problem):
    with pytest.raises(lockstep.BadDataError, match=problem):
        arguments.version_number(version)


def test_any_whole_number_is_a_version():
    assert arguments.version_number(np.int64(4)) == arguments.version_number(torch.tensor(4)) == 4


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"model": 7}, "model is 7, of type int; give the model's name"),
        ({"run": bytes(16)}, "run is .*, of type bytes; give None for a new run, or 32 hex digits"),
        ({"socket": 3}, "socket is 3, of type int; give a path"),
    ],
    ids=["model", "run", "socket"],
)
def test_arguments_of_another_type_are_named(options, problem):
    with pytest.raises(lockstep.BadDataError, match=problem):
        publisher(**options)
    exporter = {"socket": "/nowhere.sock", "model": "actor", **options}
    with pytest.raises(lockstep.BadDataError, match=problem):
        lockstep.Exporter([lockstep.named_tensors({"a": np.zeros(1)})], **exporter)


def test_a_follower_names_a_model_of_another_type(tmp_path):
    with pytest.raises(lockstep.BadDataError, match="model 7: names are"):
        lockstep.Follower(torch.nn.Linear(2, 2), model=7, socket=tmp_path / "engine.sock")
