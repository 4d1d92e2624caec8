"""What is no argument gets an error that says what was given and what is wanted, before an agent is asked."""

import re

import numpy as np
import pytest
import torch

import lockstep
from lockstep.core import arguments
from lockstep.core.errors import from_code
from lockstep.core.tensors import bytes_of, describe, named


def publisher(tensors=None, *, socket="/nowhere.sock", model="actor", **options) -> lockstep.Publisher:
    tensors = {"a": np.zeros(1)} if tensors is None else tensors
    return lockstep.Publisher.in_place(tensors, model=model, socket=socket, connect_timeout=0.001, **options)


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


def test_errors_are_those_that_python_has_for_them():
    kinds = {
        lockstep.BadDataError: ValueError,
        lockstep.NotFoundError: FileNotFoundError,
        lockstep.UnavailableError: ConnectionError,
        lockstep.DeadlineError: TimeoutError,
        lockstep.PermissionDeniedError: PermissionError,
        lockstep.IoError: OSError,
    }
    for kind, builtin in kinds.items():
        error = from_code(kind.code, "what failed")
        assert type(error) is kind and isinstance(error, builtin) and str(error) == "what failed"
    with pytest.raises(ConnectionError, match="/nowhere"):
        publisher()


def test_a_tensor_without_values_is_refused_by_name():
    with pytest.raises(lockstep.BadDataError, match='tensor "a": it is on the device "meta" and has no values'):
        bytes_of("a", torch.empty(2, device="meta"))


def test_a_version_to_wait_for_is_a_number(tmp_path):
    with pytest.raises(lockstep.BadDataError, match="version is '1', of type str"):
        lockstep.wait_for(tmp_path, "1", timeout=60)


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"reconnect_timeout": -1}, "reconnect_timeout is -1, of type int; give seconds, or None for no limit"),
        ({"call_timeout": "10"}, "call_timeout is '10', of type str; give seconds"),
        ({"call_timeout": float("nan")}, "call_timeout is nan"),
        ({"threads": -1}, "threads is -1; give a whole number from 0 on"),
        ({"rank": 1.5}, "rank is 1.5, of type float"),
        ({"ranks": 0}, "ranks is 0; give a whole number from 1 on"),
        ({"ranks": 2}, "ranks is 2, and each tensor has one writer; give owns="),
        ({"ranks": 2, "owns": ["a", "x"]}, 'tensor "x": owns= has it, and the layout does not'),
        ({"owns": ["a", "a"]}, 'tensor "a": owns= has it twice'),
    ],
)
def test_what_the_library_would_misunderstand_is_refused(options, problem):
    with pytest.raises(lockstep.BadDataError, match=re.escape(problem)):
        publisher(**options)


def test_the_agents_socket_has_a_default(monkeypatch):
    monkeypatch.delenv("LOCKSTEP_EXPORT_SOCKET", raising=False)
    assert arguments.export_socket(None) == "/run/trainer-agent/export.sock"
    monkeypatch.setenv("LOCKSTEP_EXPORT_SOCKET", "/elsewhere.sock")
    with pytest.raises(lockstep.UnavailableError, match="/elsewhere.sock"):
        publisher(socket=None)
    with pytest.raises(lockstep.UnavailableError, match="/elsewhere.sock"):
        lockstep.Publisher.from_tensors({"a": torch.zeros(1)}, model="actor", connect_timeout=0, on_agent_host=True)


def test_times_are_seconds():
    assert [arguments.milliseconds("x", value) for value in (0, 0.2, 60, None)] == [1, 200, 60_000, (1 << 32) - 1]


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
        ({"model": "actor\0x"}, r"model is 'actor\\x00x', with a NUL character in it"),
        ({"model": "actor\udc80"}, r"model is 'actor\\udc80', of type str; give the model's name"),
        ({"socket": "/no\0where"}, r"socket is '/no\\x00where', with a NUL character in it"),
    ],
    ids=["model", "run", "socket", "model's NUL", "model's surrogate", "socket's NUL"],
)
def test_arguments_that_are_none_are_named(options, problem):
    with pytest.raises(lockstep.BadDataError, match=problem):
        publisher(**options)
    exporter = {"socket": "/nowhere.sock", "model": "actor", **options}
    with pytest.raises(lockstep.BadDataError, match=problem):
        lockstep.Publisher.from_parts([lockstep.named_tensors({"a": np.zeros(1)})], **exporter)


@pytest.mark.parametrize(
    "name, problem",
    [
        ("a\0b", r"tensor 'a\\x00b': there is a NUL character in its name"),
        ("a\udc80", r"tensor 'a\\udc80': its name cannot be written in UTF-8: surrogates not allowed"),
    ],
    ids=["NUL", "surrogate"],
)
def test_a_name_that_cannot_be_a_tensors_is_shown(name, problem):
    tensors = {name: torch.zeros(2)}
    with pytest.raises(lockstep.BadDataError, match=problem):
        publisher(tensors)
    with pytest.raises(lockstep.BadDataError, match=problem):
        lockstep.Publisher.from_tensors(tensors, socket="/nowhere.sock", model="actor")


def test_a_description_whose_name_is_no_text_is_refused():
    with pytest.raises(lockstep.BadDataError, match="a tensor's name is 3, of type int; give text"):
        publisher([lockstep.TensorMeta(3, "F32", (1,))])


def test_a_tensor_whose_memory_was_freed_is_refused_by_name():
    tensor = torch.zeros(2)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(lockstep.BadDataError, match='tensor "w": its memory was freed'):
        bytes_of("w", tensor)
    with pytest.raises(lockstep.BadDataError, match='tensor "w": its memory was freed'):
        lockstep.Publisher.from_tensors({"w": tensor}, socket="/nowhere.sock", model="actor")


CONFIGS = {
    "a directory": (lambda path: path, r"hf_config: .* is a directory; give .*/config.json"),
    "no file": (lambda path: path / "none.json", r"hf_config: .*/none.json: No such file"),
    "no JSON": (lambda path: written(path, "{"), r"hf_config: .*/config.json is no JSON: .*line 1"),
    "a list": (lambda path: written(path, "[]"), r"hf_config: .*/config.json has a list, not an object"),
    "a number": (lambda path: 3, "hf_config is 3, of type int; give a path"),
    "infinity": (
        lambda path: {"a": 1, "limits": [0.0, float("inf")]},
        r'hf_config: "limits" is .0.0, inf., which is no JSON',
    ),
    "infinity in a file": (
        lambda path: written(path, '{"limit": Infinity}'),
        'hf_config: "limit" is inf, which is no JSON',
    ),
}


def written(directory, text):
    (directory / "config.json").write_text(text)
    return directory / "config.json"


@pytest.mark.parametrize("what", CONFIGS)
def test_a_configuration_that_cannot_be_read_is_named_with_the_reason(tmp_path, what):
    given, problem = CONFIGS[what]
    with pytest.raises(lockstep.Error, match=problem):
        lockstep.tensors_meta(given(tmp_path))


def test_a_follower_names_a_model_of_another_type(tmp_path):
    with pytest.raises(lockstep.BadDataError, match="model 7: names are"):
        lockstep.Follower(torch.nn.Linear(2, 2), model=7, socket=tmp_path / "engine.sock")


@pytest.mark.parametrize(
    "options, problem",
    [
        (
            {"slices": ["weight"]},
            "slices is ['weight'], of type list; give a dictionary from each parameter's name to a list",
        ),
        ({"slices": "weight"}, "slices is 'weight', of type str; give a dictionary"),
        (
            {"slices": {"weight": {"tensor": "a"}}},
            "slices['weight'] is {'tensor': 'a'}, of type dict; give a dictionary",
        ),
        ({"slices": {"weight": [1]}}, "slices['weight'] is [1], of type list; give a dictionary"),
        (
            {"padding": 7},
            'padding is 7, of type int; give a dictionary from each parameter\'s name to a list of {"at", "shape"}',
        ),
    ],
    ids=["a list", "text", "one slice", "numbers", "a number as padding"],
)
def test_what_are_no_slices_is_named_with_what_to_give(tmp_path, options, problem):
    module = torch.nn.Linear(2, 2)
    takers = (
        lambda: lockstep.describe(module, **options),
        lambda: lockstep.Follower(module, model="actor", socket=tmp_path / "e.sock", **options),
        lambda: lockstep.IntoModule(module, **{"slices": {}, **options}),
    )
    for take in takers:
        with pytest.raises(lockstep.BadDataError, match=re.escape(problem)):
            take()


MAKERS = {
    "Publisher.from_module": lambda **given: lockstep.Publisher.from_module(torch.nn.Linear(2, 2), **given),
    "Publisher.from_fsdp": lambda **given: lockstep.Publisher.from_fsdp(torch.nn.Linear(2, 2), **given),
    "Publisher.from_megatron": lambda **given: lockstep.Publisher.from_megatron([], {}, **given),
    "Publisher.from_tensors": lambda **given: lockstep.Publisher.from_tensors({}, **given),
    "Publisher.from_adapter": lambda **given: lockstep.Publisher.from_adapter(torch.nn.Linear(2, 2), **given),
    "Publisher.from_parts": lambda **given: lockstep.Publisher.from_parts([], **given),
    "Publisher.from_stream": lambda **given: lockstep.Publisher.from_stream({}, **given),
    "Publisher.in_place": lambda **given: lockstep.Publisher.in_place({}, **given),
    "Follower": lambda **given: lockstep.Follower(torch.nn.Linear(2, 2), **given),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_an_unknown_keyword_is_an_error_of_what_was_called_with_the_nearest_that_it_has(maker):
    problem = f"{maker}() got an unexpected keyword argument 'sokcet'. Did you mean 'socket'?"
    with pytest.raises(TypeError, match=re.escape(problem)):
        MAKERS[maker](model="actor", sokcet="/nowhere.sock")
    with pytest.raises(TypeError, match=re.escape(f"{maker}() got an unexpected keyword argument 'x'") + "$"):
        MAKERS[maker](model="actor", x=1)
