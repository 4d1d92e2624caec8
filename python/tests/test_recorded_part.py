"""RecordedPart finds what an exporter makes HuggingFace tensors of, refuses what is no copy, and leaves the weights as they were."""

import pytest
import torch

import lockstep.export._index_boxes as index_boxes
from lockstep.core.errors import BadDataError
from lockstep.export._agreement import ALONE
from lockstep.export._recorded import RecordedPart


class Model(torch.nn.Module):
    """Fused rows of two heads, experts that are turned, a router in float32, a buffer, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in {"qkv": (12, 6), "w2": (6, 8), "norm": (6,), "scale": ()}.items():
            self.register_parameter(name, torch.nn.Parameter(torch.randn(shape, dtype=torch.bfloat16)))
        self.register_parameter("experts", torch.nn.Parameter(torch.randn(2, 5, 300, dtype=torch.bfloat16)))
        self.register_parameter("router", torch.nn.Parameter(torch.randn(4, 6)))
        self.register_buffer("bias", torch.randn(4))


def export(model: Model):
    heads = model.qkv.view(2, 6, 6)
    yield "q", heads[:, :4].reshape(8, 6)
    yield "k", heads[:, 4:5].reshape(2, 6)
    yield "kv", torch.cat([heads[0, 5:], heads[1, 5:]])
    yield "norm", model.norm
    yield "scale", model.scale
    yield "experts", model.experts.transpose(1, 2).contiguous()
    yield "one", model.experts[1]
    yield "columns", torch.cat([model.w2[:, 4:], model.w2[:, :3]], dim=1)
    yield "router", model.router.to(torch.float32)
    yield "bias", model.bias


def opened(model: Model, exporter=export) -> RecordedPart:
    part = RecordedPart(model, lambda: exporter(model), convert=False, frozen=None)
    part.open(ALONE, True)
    return part


def assembled(part: RecordedPart) -> "dict[str, torch.Tensor]":
    """The HuggingFace tensors, of the part's own tensors by its description."""
    made: "dict[str, torch.Tensor]" = {}
    for described, local in zip(part.describe()["tensors"], part.locals()):
        [into] = described["into"]
        owner = local.owner
        whole = made.setdefault(into["name"], torch.full(into["shape"], float("nan"), dtype=owner.dtype))
        whole[tuple(slice(at, at + size) for at, size in zip(into.get("at", ()), into.get("size", ())))] = owner
    return made


@pytest.mark.parametrize("block", [8, 1 << 22])
def test_each_rank_copies_what_the_exporter_exports(block, monkeypatch):
    monkeypatch.setattr(index_boxes, "_BLOCK", block)
    model = Model()
    part = opened(model)
    for _ in range(2):
        with torch.no_grad():
            for tensor in (*model.parameters(), *model.buffers()):
                tensor.copy_(torch.randn(tensor.shape))
        want, got = dict(export(model)), assembled(part)
        assert want.keys() == got.keys()
        for name, tensor in want.items():
            assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name
    assert len(part.locals()) == 12  # two of q's heads, two stretches of columns, and one of each other tensor


class Liar:
    """An exporter that changes what it gives in one of its passes."""

    def __init__(self, number: int, change) -> None:
        self.number, self.change, self.calls = number, change, 0

    def __call__(self, model: Model):
        self.calls += 1
        tensors = list(export(model))
        return self.change(tensors) if self.calls == self.number else tensors


def _swap(tensors):
    given = dict(tensors)
    return [*given.items()][:5] + [("experts", given["experts"].flip(0)), *[*given.items()][6:]]


def _raise(tensors):
    yield tensors[0]
    raise RuntimeError("a lost rank")


def _mixed(tensor):
    many = tensor.expand(400, *tensor.shape).reshape(-1)
    return many[torch.randperm(len(many), generator=torch.Generator().manual_seed(1))]


def _add(name, tensor):
    return lambda tensors: [*tensors, (name, tensor(dict(tensors)))]


@pytest.mark.parametrize(
    ("number", "change", "problem"),
    [
        (2, _swap, '"experts", whose elements are no copies'),
        (3, lambda tensors: tensors[1:], "other tensors each time: q"),
        (2, lambda tensors: [*tensors[:3], tensors[4], tensors[3], *tensors[5:]], "other tensors each time"),
        (
            2,
            lambda tensors: [(name, tensor[:1] if name == "q" else tensor) for name, tensor in tensors],
            r'"q" \[1, 6\]',
        ),
    ],
)
def test_an_exporter_that_gives_something_else_in_a_pass_is_refused(number, change, problem):
    _refused(Liar(number, change), BadDataError, problem)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_add("mean", lambda given: given["q"].float().mean(0)), '"mean", whose elements are no copies'),
        (_add("plus", lambda given: given["norm"] + 1), '"plus", whose elements are no copies'),
        (_add("size", lambda given: given["norm"].abs()), '"size", whose elements are no copies'),
        (_add("whole", lambda given: given["norm"].round()), '"whole", whose elements are no copies'),
        (_add("rounded", lambda given: given["router"].bfloat16().float()), '"rounded", whose elements are no copies'),
        (_add("twelve", lambda given: torch.full((3,), 12.0)), '"twelve", whose elements are no copies'),
        (_add("none", lambda given: torch.zeros(0)), '"none" without elements'),
        (_add("zeros", lambda given: torch.zeros(3)), '"zeros", whose elements are no copies'),
        (_add("ones", lambda given: torch.ones(3)), '"ones", whose elements are no copies'),
        (_add("mixed", lambda given: _mixed(given["columns"])), "in more than 4096 places"),
        (_add("q", lambda given: given["q"]), '"q" twice'),
    ],
)
def test_what_is_no_copy_is_refused_by_name(change, problem):
    _refused(lambda model: change(list(export(model))), BadDataError, problem)


@pytest.mark.parametrize("now", [lambda w: w[:0], lambda w: w[:3].clone(), lambda w: w.t().contiguous().t()])
def test_a_parameter_that_lies_otherwise_is_not_read(now):
    model = Model()
    part = opened(model)
    model.w2.data = now(model.w2.data)
    with pytest.raises(BadDataError, match='parameter "0.w2" has no memory, or not as much'):
        part.locals()


def test_frozen_tensors_are_named_as_huggingface_names_them():
    model = Model()
    part = RecordedPart(model, lambda: export(model), convert=False, frozen=["norm"])
    part.open(ALONE, True)
    assert [own.name for own in part.locals() if own.frozen] == ["norm[0] of rank 0"]
    assert part.frozen_names == {"norm"}
    model.router.requires_grad_(False)
    part = RecordedPart(model, lambda: export(model), convert=False, frozen="requires_grad")
    part.open(ALONE, True)
    assert [own.name for own in part.locals() if own.frozen] == ["router[0, 0] of rank 0"] and part.trains()


def test_an_exporter_that_raises_leaves_the_weights_as_they_were():
    _refused(Liar(2, _raise), RuntimeError, "a lost rank")


def _refused(exporter, error, problem) -> None:
    """And nothing of the model has changed."""
    model = Model()
    tensors = [*model.parameters(), *model.buffers()]
    before = [(tensor.data_ptr(), tensor.clone()) for tensor in tensors]
    with pytest.raises(error, match=problem):
        opened(model, exporter)
    for tensor, (address, value) in zip(tensors, before):
        assert tensor.data_ptr() == address and torch.equal(tensor, value)
