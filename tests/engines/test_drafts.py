"""A draft of the same checkpoint is placed with its model, and left alone where the model's tensors do not fill it."""

import torch

from lockstep.engine._processing import Processing
from lockstep.engine._recorded import Recorded
from lockstep.engine._recorder import TensorForm

FORMS = [TensorForm(name, torch.bfloat16, (4, 2)) for name in ("embed", "layer", "mtp.embed", "mtp.layer")]


class Model(torch.nn.Module):
    """``prefix``: of its tensors in the checkpoint."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__()
        self.prefix = prefix
        self.embed = torch.nn.Parameter(torch.ones(4, 2, dtype=torch.bfloat16))
        self.layer = torch.nn.Parameter(torch.ones(4, 2, dtype=torch.bfloat16))

    def load_weights(self, named) -> None:
        own = dict(self.named_parameters())
        for name, tensor in named:
            if name.startswith(self.prefix) and name[len(self.prefix) :] in own:
                own[name[len(self.prefix) :]].data.copy_(tensor)


def recorded(model: Model, drafts=()) -> Recorded:
    with torch.device("meta"):
        twin = Model(model.prefix)
    return Recorded(model, twin, twin.load_weights, Processing(model).end(model), drafts=drafts)


def sources(placement) -> "dict[str, list[str]]":
    return {own.name: [part["tensor"] for part in own.slices] for own in placement.parameters}


TARGET = {"embed": ["embed"], "layer": ["layer"]}


def test_a_draft_is_placed_with_its_model():
    known = recorded(Model(), [recorded(Model("mtp."))])
    assert known.take("digest", FORMS)
    placement = known.place()
    assert sources(placement) == {**TARGET, "draft.embed": ["mtp.embed"], "draft.layer": ["mtp.layer"]}
    assert placement.unused == []


def test_what_a_draft_shares_with_its_model_is_the_models():
    target, draft = Model(), Model("mtp.")
    own = recorded(draft)
    draft.embed = target.embed
    known = recorded(target, [own])
    known.take("digest", FORMS)
    placement = known.place()
    assert sources(placement) == {**TARGET, "draft.layer": ["mtp.layer"]}


def test_a_draft_that_the_models_tensors_do_not_fill_stays_and_its_parameter_is_named(caplog):
    known = recorded(Model(), [recorded(Model("mtp."))])
    known.take("digest", [form for form in FORMS if form.name != "mtp.layer"])
    assert sources(known.place()) == TARGET
    assert "the draft model keeps the weights that it was started with: parameter layer got no tensor" in caplog.text


def test_a_draft_is_not_compared_where_the_engine_loads_directories():
    known = recorded(Model(), [recorded(Model("mtp."))])
    known.take("digest", FORMS)
    assert sources(known.place(compare_only=True)) == TARGET
