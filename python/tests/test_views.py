"""What a module has in the memory of its parameters shows every version."""

import torch


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


def test_views_of_parameters_stay_where_they_are_and_show_every_version(receiver, follow):
    model = Model()
    before = {name: (view.clone(), view.stride()) for name, view in views(model).items()}
    copy = model.attention.copy.clone()
    follow(model)
    for name, view in views(model).items():
        assert torch.equal(view, before[name][0]) and view.stride() == before[name][1], name
    rank = receiver.accept()
    assert {own["name"] for own in rank.description["parameters"]} == {"attention.kv_b_proj.weight", "embed"}
    rank.attached()
    for version in (1, 2, 3):
        rank.commit(version, float(version))
        for name, view in views(model).items():
            assert torch.all(view == version), name
        assert torch.equal(model.attention.per_head["bits"].view(torch.bfloat16), model.attention.kv_b_proj.weight)
    assert torch.equal(model.attention.copy, copy)
