"""What lies in the memory of parameters moves with them, or is refused by name."""

import pytest
import torch
from fake_receiver import Page

import lockstep
from lockstep.engine import DescribeOptions
from lockstep.engine._aliases import aliases_of
from lockstep.engine._parameters import parameters_of


class LatentAttention(torch.nn.Module):
    """A layer that decodes with views of a weight, as engines make them after loading."""

    def __init__(self) -> None:
        super().__init__()
        self.kv_b_proj = torch.nn.Linear(4, 6, bias=False, dtype=torch.bfloat16)
        weight = self.kv_b_proj.weight.data
        self.w_kc, self.w_vc = weight[:2].t(), weight.view(3, 2, 4)[1:, 1]
        self.per_head = {"k": [weight[0], weight[1]], "bits": weight.view(torch.int16)}
        self.register_buffer("first_row", self.kv_b_proj.weight[0], persistent=False)  # with a gradient
        self.copy = weight.clone()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = LatentAttention()
        self.embed = torch.nn.Parameter(torch.randn(8, 4), requires_grad=False)
        self.head = torch.nn.Parameter(self.embed.data, requires_grad=False)  # tied by memory alone


def views(model: Model) -> "dict[str, torch.Tensor]":
    own = model.attention
    return {"w_kc": own.w_kc, "w_vc": own.w_vc, "k": own.per_head["k"][1], "row": own.first_row, "head": model.head}


@pytest.mark.parametrize("double_buffered", [False, True])
def test_views_move_with_their_parameters_and_show_every_version(receiver, follow, double_buffered):
    model = Model()
    before = {name: (view.clone(), view.stride()) for name, view in views(model).items()}
    copy = model.attention.copy.clone()
    follow(model, double_buffered=double_buffered, engine="sglang", family="any")
    for name, view in views(model).items():
        assert torch.equal(view, before[name][0]) and view.stride() == before[name][1], name
    rank, page = receiver.accept(), Page()
    assert {own["name"] for own in rank.description["parameters"]} == {"attention.kv_b_proj.weight", "embed"}
    rank.attached(page)
    for version in (1, 2, 3):
        rank.commit(page, version, float(version), half=version % 2 if double_buffered else 0)
        for name, view in views(model).items():
            assert torch.all(view == version), name
        assert torch.equal(model.attention.per_head["bits"].view(torch.bfloat16), model.attention.kv_b_proj.weight)
    assert torch.equal(model.attention.copy, copy)


def names_of(model: torch.nn.Module) -> "set[str]":
    _, parameters = parameters_of(model, DescribeOptions(engine="vllm"))
    return {own.name for own in aliases_of(model, parameters)}


def test_only_what_shares_bytes_with_a_parameter_is_moved():
    model = torch.nn.Module()
    flat = torch.zeros(64)
    model.weight = torch.nn.Parameter(flat[8:16])
    model.before, model.behind, model.around = flat[:8], flat[16:24], flat[12:20]
    model.empty, model.elsewhere = flat[8:8], torch.zeros(3)
    assert names_of(model) == {"around", "behind"}  # what is around reaches into both
    model.around = None
    assert names_of(model) == set()


def test_a_list_in_itself_is_looked_through_once():
    model = torch.nn.Linear(2, 2)
    model.parts = [model.weight.data[0]]
    model.parts.append(model.parts)
    assert names_of(model) == {"parts[0]"}


class Packed(torch.Tensor):
    """A tensor of another kind."""


@pytest.mark.parametrize(
    ("alias", "problem"),
    [
        (lambda weight: weight[0].expand(5, 2), '"scale".*expanded'),
        (lambda weight: weight.as_subclass(Packed), '"scale" is a Packed in the memory of parameters'),
    ],
)
def test_what_cannot_move_is_refused_by_name_before_anything_does(tmp_path, alias, problem):
    model = torch.nn.Linear(2, 2)
    model.scale = alias(model.weight.data)
    address = model.weight.data_ptr()
    with pytest.raises(lockstep.BadDataError, match=problem):
        lockstep.Follower(model, model="actor", socket=tmp_path / "engine.sock", double_buffered=True)
    assert model.weight.data_ptr() == address
