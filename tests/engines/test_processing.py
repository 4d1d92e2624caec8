"""What an engine does to weights after loading is seen in the memory, whatever it is called."""

import re
from types import SimpleNamespace

import pytest
import torch

from lockstep.engine._processing import Processing, names_of


def model() -> torch.nn.Module:
    module = torch.nn.Module()
    module.layer = torch.nn.Linear(6, 4, dtype=torch.bfloat16)
    module.layer.bias.data.zero_()
    module.other = torch.nn.Linear(6, 4, dtype=torch.bfloat16)
    module.register_buffer("steps", torch.arange(4))
    return module


def _replace(module, weight):
    module.layer.weight = torch.nn.Parameter(weight)


def _moved_bias(module):
    _replace(module, module.layer.weight.data.flip(0).clone())
    module.layer.bias = torch.nn.Parameter(module.layer.bias.data.clone())


def _views(module):
    module.layer.first = module.layer.weight.data[:2]
    module.layer.held = SimpleNamespace(rows=[module.layer.weight.data[1]])


SAME = {
    "nothing": lambda module: None,
    "moved as they are": lambda module: _replace(module, module.layer.weight.data.clone()),
    "views": _views,
    "numbers": lambda module: setattr(module.layer, "sizes", torch.arange(5)),
}
OTHER = {
    "permuted in place": (
        lambda module: module.layer.weight.data.copy_(module.layer.weight.data.flip(1).clone()),
        {"layer.weight": "was given other values"},
    ),
    "two elements of it change places": (
        lambda module: module.layer.weight.data.view(-1).index_put_(
            (torch.tensor([3, 9]),), module.layer.weight.data.view(-1)[[9, 3]]
        ),
        {"layer.weight": "was given other values"},
    ),
    "transposed": (
        lambda module: _replace(module, module.layer.weight.data.t().contiguous()),
        {"layer.weight": r"was made bfloat16 \[6, 4\] of strides \[4, 1\] of bfloat16 \[4, 6\]"},
    ),
    "emptied": (
        lambda module: _replace(module, torch.empty(0, dtype=torch.bfloat16)),
        {"layer.weight": r"was made bfloat16 \[0\]"},
    ),
    "removed": (lambda module: delattr(module.other, "weight"), {"other.weight": "was removed"}),
    "a bias of zeros beside a permuted weight": (
        _moved_bias,
        {"layer.weight": "other values", "layer.bias": "was made anew"},
    ),
}
COPIES = {
    "beside": lambda module: setattr(module.layer, "packed", module.layer.weight.data.t().contiguous()),
    "in what it holds": lambda module: setattr(
        module.layer, "packed", SimpleNamespace(args={"w": [module.layer.weight.data + 1]})
    ),
    "as a parameter": lambda module: module.layer.register_parameter("packed", torch.nn.Parameter(torch.ones(4))),
}


@pytest.mark.parametrize("process", SAME.values(), ids=SAME)
def test_what_stays_as_it_was_loaded_is_not_changed(process):
    module = model()
    look = Processing(module)
    process(module)
    assert look.end(module).changed == {}
    assert look.copies(module) == []


@pytest.mark.parametrize("process", COPIES.values(), ids=COPIES)
def test_copies_that_a_write_would_leave_are_named_whenever_they_are_made(process):
    module = model()
    look = Processing(module).end(module)
    assert look.copies(module) == []
    process(module)
    [copy] = look.copies(module)
    assert copy.startswith("layer.packed")


@pytest.mark.parametrize("process", COPIES.values(), ids=COPIES)
def test_copies_that_were_made_since_the_module_was_built_are_named(process):
    module = model()
    built = names_of(module)
    process(module)
    [copy] = Processing(module, built).end(module).copies(module)
    assert copy.startswith("layer.packed")


@pytest.mark.parametrize(("process", "want"), OTHER.values(), ids=OTHER)
def test_what_is_no_more_as_it_was_loaded_is_named(process, want):
    module = model()
    look = Processing(module)
    process(module)
    changed = look.end(module).changed
    assert sorted(changed) == sorted(want)
    for name, text in want.items():
        assert re.search(text, changed[name])
