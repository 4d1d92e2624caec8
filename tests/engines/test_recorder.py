"""What record says of a loader is what the loader does: pieces put the same bits into parameters as the loader itself."""

import math
import random
from collections.abc import Callable, Iterator

import pytest
import torch

from lockstep.core.errors import BadDataError
from lockstep.engine._recorder import Recording, TensorForm, record

Tensors = "dict[str, torch.Tensor]"


def forms_of(tensors: Tensors) -> "list[TensorForm]":
    return [TensorForm(name, own.dtype, tuple(own.shape)) for name, own in tensors.items()]


def assemble(recording: Recording, tensors: Tensors, parameters: Tensors) -> Tensors:
    """The parameters that a recording makes of tensors; what it does not write stays."""
    made = {name: own.clone() for name, own in parameters.items()}
    for name, pieces in recording.pieces.items():
        for piece in pieces:
            box = made[name][tuple(slice(at, at + extent) for at, extent in zip(piece.at, piece.shape))]
            if piece.tensor is None:
                box.fill_(piece.value)
                continue
            source = tensors[piece.tensor].reshape(-1).as_strided(piece.shape, piece.strides, piece.start)
            for op, *arguments in piece.ops:
                if op == "to":
                    source = source.to(getattr(torch, arguments[0]))
                else:
                    source = getattr(torch.ops.aten, op)(source, *arguments)
            box.copy_(source)
    return made


def check(load: "Callable[[Tensors, Iterator], object]", tensors: Tensors, parameters: Tensors) -> Recording:
    """``load(parameters, named tensors)`` is what its recording is, on the "meta" device and on real memory, which stays."""
    want = {name: own.clone() for name, own in parameters.items()}
    load(want, iter([(name, own.clone()) for name, own in tensors.items()]))
    on_meta = {name: torch.empty_like(own, device="meta") for name, own in parameters.items()}
    for destinations in (on_meta, {name: own.clone() for name, own in parameters.items()}):
        recording = record(destinations, lambda named, to=destinations: load(to, named), forms_of(tensors))
        got = assemble(recording, tensors, parameters)
        for name, tensor in want.items():
            assert torch.equal(got[name], tensor), name
        for name, tensor in destinations.items():
            assert tensor.device.type == "meta" or torch.equal(tensor, parameters[name])
    return recording


def tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Every element another."""
    count = torch.Size(shape).numel()
    return torch.arange(1, 1 + count).to(torch.int16).view(torch.bfloat16).reshape(shape).to(dtype)


def one(load: "Callable[[torch.Tensor, torch.Tensor], object]") -> "Callable[[Tensors, Iterator], object]":
    """A loader of one parameter ``p`` from one tensor."""

    def loader(parameters: Tensors, named: Iterator) -> None:
        for _, given in named:
            load(parameters["p"], given)

    return loader


CASES = {
    "rows": ((4, 6), (8, 6), lambda p, t: p.copy_(t.narrow(0, 2, 4))),
    "columns": ((8, 3), (8, 6), lambda p, t: p.copy_(t.chunk(2, 1)[1])),
    "into a view": ((8, 6), (4, 6), lambda p, t: p.data.split(4)[1].copy_(t)),
    "transposed": ((6, 8), (8, 6), lambda p, t: p.copy_(t.t())),
    "transposed and laid out anew": ((6, 4), (8, 6), lambda p, t: p.copy_(t.t().contiguous()[:, 2:6])),
    "a stack's row": ((3, 4, 6), (4, 6), lambda p, t: p[1].copy_(t)),
    "interleaved heads": ((12, 5), (12, 5), lambda p, t: p.copy_(t.view(2, 3, 2, 5).transpose(0, 1).reshape(12, 5))),
    "a part of interleaved heads": (
        (5, 5),
        (12, 5),
        lambda p, t: p.copy_(t.view(2, 3, 2, 5).transpose(0, 1).reshape(12, 5)[3:8]),
    ),
    "every other row": ((4, 6), (8, 6), lambda p, t: p.copy_(t[::2])),
    "every other column, twice": ((8, 2), (8, 12), lambda p, t: p.copy_(t.contiguous()[:, ::3][:, 1::2])),
    "joined": ((8, 6), (4, 6), lambda p, t: p.copy_(torch.cat([t, t]))),
    "stacked": ((2, 4, 6), (4, 6), lambda p, t: p.copy_(torch.stack([t, t]))),
    "stacked behind": ((4, 6, 2), (4, 6), lambda p, t: p.copy_(torch.stack([t, t], -1))),
    "repeated": ((4, 6), (1, 6), lambda p, t: p.copy_(t.expand(4, 6))),
    "by numbers": ((4, 6), (8, 6), lambda p, t: p.copy_(t[torch.tensor([6, 1, 2, 0])])),
    "by numbers on the parameter's device": (
        (4, 6),
        (8, 6),
        lambda p, t: p.copy_(t[torch.tensor([6, 1, 2, 0]).to(t.device)]),
    ),
    "by numbers that it asks for": (
        (4, 6),
        (8, 6),
        lambda p, t: [p[k].copy_(t[row.item()]) for k, row in enumerate(torch.tensor([6, 1, 2, 0]).to(t.device))],
    ),
    "to numbers": ((8, 6), (3, 6), lambda p, t: p.index_put_((torch.tensor([7, 0, 1]),), t)),
    "unbound": ((4, 6), (3, 4, 6), lambda p, t: p.copy_(t.unbind(0)[2])),
    "padded": ((6, 6), (4, 6), lambda p, t: (p[:4].copy_(t), p[4:].fill_(0))),
    "padded before": ((6, 6), (4, 6), lambda p, t: (p.zero_(), p[1:5].copy_(t))),
    "padded in a temporary": ((6, 6), (4, 6), lambda p, t: p.copy_(torch.cat([t, t.new_zeros(2, 6)]))),
    "widened": ((4, 6), (4, 6), lambda p, t: p.copy_(t.float().to(torch.bfloat16))),
    "by way of a type that is not wider": (
        (4, 6),
        (4, 6),
        lambda p, t: p.copy_(t.to(torch.float16).to(torch.bfloat16)),
    ),
    "computed": ((4, 6), (4, 6), lambda p, t: p.copy_(-torch.exp(t.float()))),
    "written, read and written": ((4, 6), (4, 6), lambda p, t: (p.copy_(t), p.copy_(-p.float().exp()))),
    "in place": ((4, 6), (4, 6), lambda p, t: (p.copy_(t), p.mul_(3), p.add_(1))),
    "the given tensor is changed": ((4, 6), (4, 6), lambda p, t: (t[1].zero_(), t[2:].add_(1), p.copy_(t))),
    "one element": ((1,), (1,), lambda p, t: p.data.fill_(t.item())),
    "in parts over one another": (
        (6, 6),
        (4, 6),
        lambda p, t: (p[:4].copy_(t), p[2:].copy_(t), p[3, 1:4].copy_(t[0, :3])),
    ),
}


@pytest.mark.parametrize(("shape", "source", "load"), CASES.values(), ids=CASES)
def test_a_loader_is_recorded_as_it_loads(shape, source, load):
    check(one(load), {"t": tensor(*source)}, {"p": torch.full(shape, -3.0, dtype=torch.bfloat16)})


def test_a_tensor_that_goes_nowhere_is_named_and_a_parameter_that_nothing_writes_is_missing():
    def load(parameters, named):
        for name, given in named:
            if name == "a":
                parameters["p"][:2].copy_(given)

    tensors = {"a": tensor(2, 3), "b": tensor(2)}
    recording = check(load, tensors, {"p": torch.zeros(4, 3, dtype=torch.bfloat16), "q": torch.zeros(2)})
    assert recording.unused == ["b"]
    [piece] = recording.pieces["p"]
    assert (piece.at, piece.shape) == ((0, 0), (2, 3))
    assert "q" not in recording.pieces


def test_stand_ins_keep_what_a_loader_notes_on_them():
    def load(parameters, named):
        for _, given in named:
            given.shard_id = 1
            parameters["p"][given.shard_id].copy_(given)

    check(load, {"a": tensor(3)}, {"p": torch.zeros(2, 3, dtype=torch.bfloat16)})


def test_memory_that_the_loader_reads_must_be_there_and_is_read():
    parameters = {"map": torch.tensor([1, -1, 0]), "p": torch.zeros(2, 3, dtype=torch.bfloat16)}

    def load(own, named):
        for (_, given), place in zip(named, own["map"].tolist()):
            if place >= 0:
                own["p"][place].copy_(given)

    recording = record(parameters, lambda named: load(parameters, named), forms_of({n: tensor(3) for n in "abc"}))
    assert {piece.tensor: piece.at for piece in recording.pieces["p"]} == {"a": (1, 0), "c": (0, 0)}
    assert recording.unused == ["b"]


REFUSED = {
    "of several": (lambda p, t: p.copy_(t[:2] + t[2:]), "p is no copy .*: add of t"),
    "a mean": (lambda p, t: p.copy_((t - t.mean())[:2]), "p is no copy .*: sub of \\(mean of t\\), t"),
    "a value": (lambda p, t: p.fill_(float(t.max())), "asks for a value of \\(max of t\\) .*at tensor t"),
    "a value that is computed with": (
        lambda p, t: p.fill_(t[0, 0].item() * 2),
        "computes with the value of an element of t",
    ),
    "a value in a function": (lambda p, t: p.fill_(math.exp(t[0, 0].item())), "computes with the value of an element"),
    "a choice by value": (lambda p, t: p.copy_(t[:2]) if bool((t > 0).all()) else None, "asks for a value"),
    "memory of its own": (lambda p, t: p.copy_(torch.empty_like(t)[:2]), "memory that the loader did not write"),
    "other bytes": (lambda p, t: p.copy_(t.view(torch.int16)[:2]), "bytes of torch.bfloat16 as torch.int16"),
    "its own error": (lambda p, t: {}["missing"], "the engine's loader fails .*at tensor t.*KeyError"),
}


@pytest.mark.parametrize(("load", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_copy_is_refused_and_says_what_and_where(load, problem):
    p = torch.zeros(2, 3, dtype=torch.bfloat16, device="meta")
    with pytest.raises(BadDataError, match=problem):
        record({"p": p}, lambda named: one(load)({"p": p}, named), forms_of({"t": tensor(4, 3)}))


def test_a_refusal_that_the_loader_swallows_is_raised_all_the_same():
    p = torch.zeros(2, 3, device="meta")

    def load(named):
        for _, given in named:
            try:
                p.fill_(float(given.max()))
            except Exception:
                p.copy_(given)

    with pytest.raises(BadDataError, match="asks for a value"):
        record({"p": p}, load, [TensorForm("t", torch.float32, (2, 3))])


def _random_view(source: torch.Tensor, moments: random.Random) -> torch.Tensor:
    """Cuts, turns, folds and lays out anew, at random."""
    for _ in range(moments.randint(1, 5)):
        dim = moments.randrange(source.dim())
        step = moments.randrange(7)
        if step == 0:
            begin = moments.randrange(source.shape[dim])
            source = source.narrow(dim, begin, moments.randint(1, source.shape[dim] - begin))
        elif step == 1:
            source = source.transpose(dim, moments.randrange(source.dim()))
        elif step == 2:
            source = source.contiguous()
        elif step == 3 and source.dim() < 5:
            parts = [n for n in (2, 3, 4) if source.shape[dim] % n == 0]
            source = source.unflatten(dim, (parts[0], -1)) if parts else source
        elif step == 4 and source.dim() > 1:
            source = source.flatten(0, 1)
        elif step == 5:
            source = torch.cat([source, source.narrow(dim, 0, 1)], dim)
        else:
            begin = moments.randrange(min(2, source.shape[dim]))
            source = source[(slice(None),) * dim + (slice(begin, None, moments.randint(1, 2)),)]
    return source


@pytest.mark.parametrize("seed", range(60))
def test_whatever_a_loader_cuts_turns_and_joins_is_recorded_as_it_loads(seed):
    moments = random.Random(seed)
    shape = [moments.choice([1, 2, 3, 4, 6, 8]) for _ in range(moments.randint(1, 3))]
    plan = moments.getrandbits(32)
    made = _random_view(torch.empty(shape, dtype=torch.bfloat16), random.Random(plan))

    def load(parameters, named):
        for _, given in named:
            parameters["p"].copy_(_random_view(given, random.Random(plan)))

    base = torch.full([extent + 1 for extent in made.shape], -3.0, dtype=torch.bfloat16)
    check(load, {"t": tensor(*shape)}, {"p": base[tuple(slice(1, None) for _ in made.shape)]})


@pytest.mark.parametrize("seed", range(100))
def test_a_parameter_within_a_larger_storage_is_recorded_as_it_lies(seed):
    moments = random.Random(seed)
    rows, columns = moments.randint(1, 5), moments.randint(1, 5)
    strides = moments.choice([(columns, 1), (columns, 1), (1, rows), (columns + 2, 1)])
    written = moments.randint(1, 4), moments.choice([1, columns - 1, columns, 2 * columns]) or 1
    step = max(written[1], moments.choice([columns, columns, columns + 3]))
    begin, at = moments.randrange(8), moments.randrange(12)
    given = tensor(12, 12)

    def load(storage, named):
        for _, own in named:
            storage.as_strided(written, (step, 1), at).copy_(own[: written[0], : written[1]])

    def parameter(storage):
        return storage.as_strided((rows, columns), strides, begin)

    want, symbolic = (
        torch.full((128,), -3.0, dtype=torch.bfloat16),
        torch.empty(128, dtype=torch.bfloat16, device="meta"),
    )
    before = {"p": parameter(want.clone())}
    load(want, [("t", given)])
    recording = record({"p": parameter(symbolic)}, lambda named: load(symbolic, named), forms_of({"t": given}))
    assert torch.equal(assemble(recording, {"t": given}, before)["p"], parameter(want))
