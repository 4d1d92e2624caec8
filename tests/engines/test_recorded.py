"""Recorded makes of a loader's recording what a receiver takes: parameters with slices and padding, and what is computed after them."""

import pytest
import torch

from lockstep.core.errors import BadDataError
from lockstep.engine._describe import Contents
from lockstep.engine._options import DescribeOptions
from lockstep.engine._processing import Processing, names_of
from lockstep.engine._recorded import Placement, Recorded
from lockstep.engine._recorder import TensorForm


class Module(torch.nn.Module):
    """Fused, padded, stacked and turned parameters, as engines have them."""

    def __init__(self, **shapes: "tuple[torch.dtype, tuple[int, ...]]") -> None:
        super().__init__()
        for name, (dtype, shape) in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.full(shape, -3.0, dtype=dtype)))


BF16, F32 = torch.bfloat16, torch.float32
SHAPES = {
    "qkv": (BF16, (6, 4)),
    "table": (BF16, (8, 4)),
    "w13": (BF16, (2, 6, 4)),
    "turned": (BF16, (2, 4, 6)),
    "router": (F32, (3,)),
    "rates": (F32, (5,)),
    "narrow": (BF16, (4,)),
}
TENSORS = {
    "q": (BF16, (4, 4)),
    "kv": (BF16, (4, 4)),
    "embed": (BF16, (5, 4)),
    **{f"{name}.{expert}": (BF16, (3, 4)) for name in ("gate", "up") for expert in range(2)},
    "experts": (BF16, (2, 6, 4)),
    "router": (BF16, (3,)),
    "log": (BF16, (5,)),
    "wide": (F32, (4,)),
    "unused": (BF16, (2,)),
}


def load(module, named) -> None:
    tensors = dict(named)
    module.qkv.data[:4].copy_(tensors["q"])
    module.qkv.data[4:].copy_(tensors["kv"][2:])
    module.table.data[:5].copy_(tensors["embed"])
    module.table.data[5:].zero_()
    for expert in range(2):
        module.w13.data[expert, :3].copy_(tensors[f"gate.{expert}"])
        module.w13.data[expert, 3:].copy_(tensors[f"up.{expert}"])
    module.turned.data.copy_(tensors["experts"].transpose(1, 2))
    module.router.data.copy_(tensors["router"])
    module.rates.data.copy_(-tensors["log"].float().exp())
    module.narrow.data.copy_(tensors["wide"])


def recorded(module=None, loader=load) -> Recorded:
    module = Module(**SHAPES) if module is None else module
    with torch.device("meta"):
        twin = Module(**SHAPES)
    known = Recorded(module, twin, lambda named: loader(twin, named), Processing(module).end(module))
    known.take("digest", [TensorForm(name, *form) for name, form in TENSORS.items()])
    return known


def write(placement: Placement, tensors) -> None:
    """What a receiver and the rank do with a version."""
    for own in placement.parameters:
        view = own.tensor.detach()
        for part in own.slices:
            source = tensors[part["tensor"]][tuple(slice(a, a + n) for a, n in zip(part["from"], part["shape"]))]
            shape = [1] * (view.dim() - source.dim()) + part["shape"]
            view[tuple(slice(a, a + n) for a, n in zip(part["at"], shape))].copy_(source.reshape(shape))
        for part in own.padding:
            view[tuple(slice(a, a + n) for a, n in zip(part["at"], part["shape"]))].zero_()
    placement.compute()


def test_what_is_written_is_what_the_loader_loads():
    module, want = Module(**SHAPES), Module(**SHAPES)
    tensors = {name: torch.randn(shape).to(dtype) for name, (dtype, shape) in TENSORS.items()}
    load(want, tensors.items())
    placement = recorded(module).place()
    write(placement, tensors)
    for name, parameter in want.named_parameters():
        assert torch.equal(module.get_parameter(name), parameter), name
    assert placement.unused == ["unused"]


def test_fused_and_stacked_parameters_are_whole_and_others_box_by_box():
    entries = [own.name for own in recorded().place().parameters]
    assert entries == ["qkv", "table", "w13", "turned[0]", "router", "rates[0]", "narrow[0]"]


def test_what_is_only_compared_leaves_out_what_is_computed():
    placement = recorded().place(compare_only=True)
    assert placement.computed == []
    assert {"rates[0]", "narrow[0]"}.isdisjoint(own.name for own in placement.parameters)


class Latent(torch.nn.Module):
    """A projection, and what its loader makes of it beside it: a copy, a view, and a table of no tensor.

    Args:
        anew: each load makes another copy, else the first one is filled again.
    """

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.anew = anew
        self.kv = torch.nn.Parameter(torch.full((4, 2), -3.0, dtype=BF16))
        self.turned: "torch.Tensor | None" = None

    def load_weights(self, named) -> None:
        self.kv.data.copy_(dict(named)["kv"])
        turned = self.kv.data[:2].t().contiguous() * 2
        self.turned = turned if self.anew or self.turned is None else self.turned.copy_(turned)
        self.upper, self.table = self.kv.data[2:], torch.zeros(3, device=self.kv.device)


def latent(anew: bool = False) -> "tuple[Latent, Recorded]":
    model = Latent(anew)
    built = names_of(model)
    model.load_weights([("kv", torch.ones(4, 2, dtype=BF16))])
    with torch.device("meta"):
        twin = Latent(anew)
    known = Recorded(model, twin, twin.load_weights, Processing(model, built).end(model))
    known.take("digest", [TensorForm("kv", BF16, (4, 2))])
    return model, known


@pytest.mark.parametrize("anew", [False, True])
def test_what_a_loader_makes_beside_parameters_is_written_where_it_is(anew):
    model, known = latent(anew)
    turned, table = model.turned, model.table
    for layout in ("first", "second"):
        known.take(layout, [TensorForm("kv", BF16, (4, 2))])
        placement = known.place()
        assert [own.name for own in placement.parameters] == ["kv", "turned[0]"]
        value = torch.randn(4, 2).to(BF16)
        write(placement, {"kv": value})
        assert torch.equal(model.turned, value[:2].t() * 2) and torch.equal(model.upper, value[2:])
        assert model.turned is turned and model.table is table


@pytest.mark.parametrize("name", ["kv", "turned"])
def test_a_tensor_that_was_replaced_is_found(name):
    model, known = latent()
    memory, _ = Contents(model, DescribeOptions(), known, None, False).describe()
    assert memory.moved() is None
    new = getattr(model, name).data.clone()
    setattr(model, name, torch.nn.Parameter(new) if name == "kv" else new)
    assert memory.moved().startswith(f'parameter "{name}" was bfloat16')


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("packed", lambda model: setattr(model, "packed", model.kv.data * 2)),
        ("held.0", lambda model: setattr(model, "held", [model.kv.data * 2])),
    ],
)
def test_what_was_made_of_weights_otherwise_is_refused_by_name(name, make):
    model, known = latent()
    make(model)
    with pytest.raises(BadDataError, match=f"^{name} was made of weights after they were loaded"):
        known.place()


def _moved(module):
    look = Processing(module)
    module.qkv.data.copy_(module.qkv.data.flip(1) + 1)
    return look.end(module)


def test_parameters_that_were_repacked_are_refused_by_name():
    module = Module(**SHAPES)
    known = recorded(module)
    known._processing = _moved(module)
    with pytest.raises(BadDataError, match="parameter qkv was given other values after it was loaded"):
        known.place()


def _of_a_row_less(module, named) -> None:
    tensors = dict(named)
    module.qkv.data[:4].copy_(tensors["q"])
    for name in ("table", "w13", "turned", "router", "rates", "narrow"):
        getattr(module, name).data.zero_()


def _of_a_parameter_less(module, named) -> None:
    for name in ("qkv", "table", "w13", "turned", "router", "rates"):
        getattr(module, name).data.zero_()


@pytest.mark.parametrize(
    ("loader", "problem"),
    [
        (_of_a_row_less, r"parameter qkv: elements \[4, 0\] to \[6, 4\] are given by no tensor"),
        (_of_a_parameter_less, "parameter narrow got no tensor of the model"),
    ],
)
def test_what_the_loader_leaves_is_refused_by_name(loader, problem):
    with pytest.raises(BadDataError, match=problem):
        recorded(loader=loader).place()


def test_a_layout_is_recorded_once_and_another_one_anew():
    calls = []

    def loader(module, named):
        calls.append(1)
        load(module, named)

    known = recorded(loader=loader)
    known.place()
    known.place()
    assert len(calls) == 1
    forms = [TensorForm(name, *form) for name, form in TENSORS.items()]
    assert not known.take("digest", forms)
    assert known.take("another", forms)
    known.place()
    assert len(calls) == 2
