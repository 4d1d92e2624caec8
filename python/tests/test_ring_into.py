"""Where a ring's pieces go: into parameters of every layout, in runs that begin and end anywhere."""

import itertools
import random

import pytest
import torch

import lockstep
from lockstep.core.tensors import TensorMeta
from lockstep.engine import IntoLoader, IntoModule, TensorSlice
from lockstep.engine._ring_into import boxes_of_run

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}


def numbered(name, *shape, dtype="BF16"):
    """A tensor whose elements are their positions, from 1, and its description."""
    count = torch.Size(shape).numel()
    return TensorMeta(name, dtype, shape), torch.arange(1, count + 1, dtype=DTYPES[dtype]).view(shape)


def send(into, tensors, seed=0):
    """Runs a version into `into`, each tensor cut at random places."""
    cut = random.Random(seed)
    into.open([meta for meta, _ in tensors])
    for meta, tensor in tensors:
        flat = tensor.reshape(-1)
        places = sorted({0, flat.numel(), *(cut.randrange(flat.numel() + 1) for _ in range(cut.randrange(4)))})
        for first, end in zip(places, places[1:]):
            into.take([TensorSlice(meta, first, flat[first:end].clone())])
    into.end()


def module_of(**parameters):
    module = torch.nn.Module()
    for name, tensor in parameters.items():
        module.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))
    return module


def test_every_run_of_a_tensor_is_a_few_boxes_in_its_order():
    for shape in [(), (5,), (1, 4), (3, 4), (2, 3, 4), (2, 1, 3, 2)]:
        count = torch.Size(shape).numel()
        numbers = torch.arange(count).view(shape)
        for begin, end in itertools.combinations(range(count + 1), 2):
            boxes = list(boxes_of_run(shape, begin, end))
            elements = []
            for start, size in boxes:
                box = numbers[tuple(slice(first, first + extent) for first, extent in zip(start, size))]
                elements += box.reshape(-1).tolist()
            assert elements == list(range(begin, end)), (shape, begin, end)
            assert len(boxes) <= max(1, 2 * len(shape) - 1)


@pytest.mark.parametrize("seed", range(20))
def test_parameters_of_any_strides_get_their_tensors(seed):
    tensors = [numbered("plain", 6, 5), numbered("turned", 4, 7), numbered("scalar"), numbered("gate", 3, dtype="F32")]
    module = module_of(
        plain=torch.zeros(6, 5, dtype=torch.bfloat16),
        turned=torch.zeros(7, 4, dtype=torch.bfloat16).t(),
        scalar=torch.zeros((), dtype=torch.bfloat16),
        gate=torch.zeros(3),
    )
    addresses = [parameter.data_ptr() for parameter in module.parameters()]
    send(IntoModule(module), tensors, seed)
    for meta, tensor in tensors:
        assert torch.equal(getattr(module, meta.name), tensor), meta.name
    assert [parameter.data_ptr() for parameter in module.parameters()] == addresses


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("rank", [0, 1])
def test_a_fused_rank_takes_its_slices_of_every_tensor_and_pads_with_zeros(rank, seed):
    q, k, down, expert0, expert1, embed, unused = tensors = [
        numbered("q", 4, 6),
        numbered("k", 2, 6),
        numbered("down", 6, 8),
        numbered("expert0", 4, 6),
        numbered("expert1", 4, 6),
        numbered("embed", 5, 6),
        numbered("unused", 3),
    ]
    bfloat16 = {"dtype": torch.bfloat16}
    module = module_of(
        qk=torch.full((3, 6), 99, **bfloat16),
        down=torch.full((6, 4), 99, **bfloat16),
        experts=torch.full((2, 2, 6), 99, **bfloat16),
        embed=torch.full((3, 6), 99, **bfloat16),
    )
    rows = 3 - rank  # of the embedding; the second rank has a row of padding
    slices = {
        "qk": [
            {"tensor": "q", "from": [2 * rank, 0], "shape": [2, 6], "at": [0, 0]},
            {"tensor": "k", "from": [rank, 0], "shape": [1, 6], "at": [2, 0]},
        ],
        "down": [{"tensor": "down", "from": [0, 4 * rank], "shape": [6, 4], "at": [0, 0]}],
        "experts": [
            {"tensor": f"expert{number}", "from": [2 * rank, 0], "shape": [2, 6], "at": [number, 0, 0]}
            for number in range(2)
        ],
        "embed": [{"tensor": "embed", "from": [3 * rank, 0], "shape": [rows, 6], "at": [0, 0]}],
    }
    padding = {"embed": [{"at": [rows, 0], "shape": [3 - rows, 6]}]}
    send(IntoModule(module, slices=slices, padding=padding), tensors, seed)
    own = slice(2 * rank, 2 * rank + 2)
    assert torch.equal(module.qk, torch.cat([q[1][own], k[1][rank : rank + 1]]))
    assert torch.equal(module.down, down[1][:, 4 * rank : 4 * rank + 4])
    assert torch.equal(module.experts, torch.stack([expert0[1][own], expert1[1][own]]))
    zeros = torch.zeros(3 - rows, 6, **bfloat16)
    assert torch.equal(module.embed, torch.cat([embed[1][3 * rank : 3 * rank + rows], zeros]))


def test_a_float32_parameter_takes_a_bfloat16_tensor_and_tied_ones_are_one():
    module = torch.nn.Module()
    module.embed = torch.nn.Embedding(4, 2)
    module.head = torch.nn.Linear(2, 4, bias=False)
    module.head.weight = module.embed.weight
    tensors = [numbered("embed.weight", 4, 2), numbered("head.weight", 4, 2)]
    for sent in (tensors, tensors[:1]):  # with and without the tied one
        torch.nn.init.zeros_(module.embed.weight)
        send(IntoModule(module), sent)
        assert torch.equal(module.head.weight, tensors[0][1].float())


@pytest.mark.parametrize(
    "tensors, text",
    [
        ([], 'parameter "w" is made of tensor "w", which the trainer does not have'),
        ([numbered("w", 4, 7)], r'parameter "w" wants \[4, 6\] from \[0, 0\] on of tensor "w", which is \[4, 7\]'),
        ([numbered("w", 4, 6, dtype="F32")], 'parameter "w" is BF16, tensor "w" is F32'),
        ([numbered("w", 4, 6), numbered("v", 2)], 'has a tensor "v", and the module has no parameter for it'),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(tensors, text):
    into = IntoModule(module_of(w=torch.zeros(4, 6, dtype=torch.bfloat16)))
    with pytest.raises(lockstep.BadDataError, match=text):
        into.open([meta for meta, _ in tensors])


ROWS = {"tensor": "w", "from": [0, 0], "shape": [2, 6], "at": [0, 0]}


@pytest.mark.parametrize(
    "slices, text",
    [
        ([ROWS], r'parameter "p": slices give 12 elements of \[4, 6\]'),
        ([ROWS, {**ROWS, "at": [1, 0]}], r'parameter "p": the slices at \[0, 0\] and \[1, 0\] overlap'),
        ([ROWS, {**ROWS, "at": [3, 0]}], r'parameter "p": \[2, 6\] at \[3, 0\] is not within \[4, 6\]'),
        ([ROWS, {**ROWS, "from": [3, 0], "at": [2, 0]}], r'wants \[2, 6\] from \[3, 0\] on of tensor "w", which is'),
        ([ROWS, {**ROWS, "from": [-1, 0], "at": [2, 0]}], r"wants \[2, 6\] from \[-1, 0\]"),
        ([ROWS, {**ROWS, "tensor": "v", "at": [2, 0]}], 'parameter "p" is made of tensor "v", which the trainer'),
    ],
)
def test_slices_that_do_not_give_every_element_once_are_refused_by_name(slices, text):
    into = IntoModule(module_of(p=torch.zeros(4, 6, dtype=torch.bfloat16)), slices={"p": slices})
    with pytest.raises(lockstep.BadDataError, match=text):
        into.open([numbered("w", 4, 6)[0]])


def test_a_loader_is_given_whole_tensors_and_forgets_what_broke_off():
    calls = []
    into = IntoLoader(lambda pairs: calls.append([(name, tensor.clone()) for name, tensor in pairs]))
    (meta, tensor), (other, small) = numbered("w", 4, 6), numbered("v", 2)
    into.open([meta, other])
    into.take([TensorSlice(meta, 0, tensor.view(-1)[:7])])
    into.open([meta, other])  # the trainer went away, and came back
    into.take([TensorSlice(meta, 0, tensor.view(-1)[:10])])
    assert calls == []
    into.take([TensorSlice(meta, 10, tensor.view(-1)[10:]), TensorSlice(other, 0, small)])
    (call,) = calls
    assert [name for name, _ in call] == ["w", "v"]
    assert torch.equal(call[0][1], tensor) and torch.equal(call[1][1], small)
