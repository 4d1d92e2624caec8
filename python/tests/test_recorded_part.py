"""RecordedPart finds what an exporter makes HuggingFace tensors of, refuses what is no copy, and leaves the weights as they were."""

import pytest
import torch
from safetensors.torch import save_file

import lockstep.export._look as look
from lockstep.core.agreement import ALONE
from lockstep.core.errors import BadDataError, NotFoundError
from lockstep.export._megatron import megatron
from lockstep.export._recorded import RecordedPart


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """One of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "lockstep" / "bridges"


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
    yield "stairs", torch.cat([model.w2[:3, :4], model.w2[3:, 4:]])
    yield "router", model.router.to(torch.float32)
    yield "bias", model.bias


def opened(model: Model, exporter=export, **options) -> RecordedPart:
    part = megatron(model, recorded_from=lambda: exporter(model), **options)
    part.open(ALONE, True)
    return part


def assembled(part: RecordedPart) -> "dict[str, torch.Tensor]":
    """The HuggingFace tensors, of the part's own tensors by its description."""
    made: "dict[str, torch.Tensor]" = {}
    for described, local in zip(part.describe()["tensors"], part.locals()):
        [into] = described["into"]
        owner = local.owner
        whole = made.setdefault(into["name"], torch.full(into["shape"], float("nan"), dtype=owner.dtype))
        box = tuple(slice(at, at + size) for at, size in zip(into.get("at", ()), into.get("size", ())))
        whole.view(into.get("as", into["shape"]))[box] = owner
    return made


@pytest.mark.parametrize("block", [8, 1 << 22])
def test_each_rank_copies_what_the_exporter_exports(block, monkeypatch):
    monkeypatch.setattr(look, "BLOCK", block)
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
    assert (
        len(part.locals()) == 14
    )  # two of q's heads, two stretches of columns, two stairs, and one of each other tensor


def test_lines_that_are_cut_in_other_places_than_the_first_are_refused():
    def uneven(model: Model):
        rows = [model.w2[0, :4], torch.cat([model.w2[1, :2], model.w2[1, 6:]])]
        return [*export(model), ("uneven", torch.stack(rows))]

    _refused(uneven, BadDataError, '"uneven", which is no copy of boxes of parameters')


@pytest.mark.parametrize("turned", [False, True])
def test_columns_that_take_turns_are_a_box_of_a_dimension_that_is_split(turned):
    """As gpt_oss has gates and up projections."""

    def turns(model: Model):
        gate, up = model.experts[:, :2, :100], model.experts[:, 2:4, 200:]
        joined = torch.stack([gate, up], dim=-1).reshape(2, 2, 200)
        yield "turns", joined.transpose(1, 2).contiguous() if turned else joined

    model = Model()
    part = opened(model, turns)
    assert len(part.locals()) == 1
    [(name, tensor)] = turns(model)
    assert torch.equal(assembled(part)[name], tensor)


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


def _cut(tensors):
    return [(name, tensor[:1] if name == "q" else tensor) for name, tensor in tensors]


def _as_float32(tensors):
    return [(name, tensor.float() if name == "q" else tensor) for name, tensor in tensors]


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
        (1, _swap, '"experts", which is no copy of boxes of parameters'),
        (3, _swap, '"experts", which is no copy of boxes of parameters'),
        (3, lambda tensors: tensors[1:], "other tensors each time: q"),
        (2, lambda tensors: [*tensors[:3], tensors[4], tensors[3], *tensors[5:]], "other tensors each time"),
        (2, lambda tensors: _cut(tensors), r'"q" BF16 \[1, 6\], and gave it BF16 \[8, 6\] before'),
        (2, lambda tensors: _as_float32(tensors), r'"q" F32 \[8, 6\], and gave it BF16 \[8, 6\] before'),
        (3, lambda tensors: _as_float32(tensors), '"q", which is no copy of boxes of parameters'),
        (3, lambda tensors: _cut(tensors), '"q", which is no copy of boxes of parameters'),
    ],
)
def test_an_exporter_that_gives_something_else_in_a_pass_is_refused(number, change, problem):
    """Digits are two, and the third pass is the proof."""
    _refused(Liar(number, change), BadDataError, problem)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_add("mean", lambda given: given["q"].float().mean(0)), '"mean", which is no copy of boxes of parameters'),
        (_add("plus", lambda given: given["norm"] + 2), '"plus", which is no copy of boxes of parameters'),
        (_add("sum", lambda given: given["norm"] + given["bias"][0]), '"sum", which is no copy of boxes of parameters'),
        (_add("size", lambda given: given["norm"].abs()), '"size", which is no copy of boxes of parameters'),
        (_add("whole", lambda given: given["norm"].round()), '"whole", which is no copy of boxes of parameters'),
        (
            _add("rounded", lambda given: given["router"].bfloat16().float()),
            '"rounded", which is no copy of boxes of parameters',
        ),
        (_add("twelve", lambda given: torch.full((3,), 12.0)), '"twelve", which is no copy of boxes of parameters'),
        (_add("none", lambda given: torch.zeros(0)), '"none" without elements'),
        (_add("zeros", lambda given: torch.zeros(3)), '"zeros", which is no copy of boxes of parameters'),
        (_add("ones", lambda given: torch.ones(3)), '"ones", which is no copy of boxes of parameters'),
        (_add("mixed", lambda given: _mixed(given["columns"])), "which is no copy of boxes of parameters"),
        (_add("q", lambda given: given["q"].flip(0)), '"q" for "q" again, with other values'),
        (_add("clamped", lambda given: given["q"].clamp(-448, 448)), '"clamped", which is no copy'),
        (
            _add("sparse", lambda given: torch.where(given["q"].abs() < 1e-3, 0, given["q"])),
            '"sparse", which is no copy',
        ),
        (_add("half", lambda given: given["q"].half().bfloat16()), '"half", which is no copy'),
    ],
)
def test_what_is_no_copy_is_refused_by_name(change, problem):
    _refused(lambda model: change(list(export(model))), BadDataError, problem)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_norm_plus_or_minus_one_is_computed_by_the_rank(dtype):
    def with_norms(model: Model):
        yield from export(model)
        yield "plus", model.norm + 1
        yield "minus", model.router[1] - 1
        yield "scalar", model.scale + 1

    model = Model()
    model.to(dtype)
    model.router.data = model.router.data.float()
    part = opened(model, with_norms)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.randn(tensor.shape))
    got = assembled(part)
    for name, tensor in with_norms(model):
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name


class Counted:
    """An exporter that counts how often it runs."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: Model):
        self.calls += 1
        return export(model)


@pytest.mark.parametrize("damage", [None, b"", b"[]", b"0\n[]"])
def test_what_was_found_is_proved_by_one_pass_at_the_next_start(cache, damage):
    first, second = Counted(), Counted()
    pieces = [own.description() for own in opened(Model(), first).locals()]
    assert first.calls == 3
    if damage is not None:
        [file] = cache.iterdir()
        file.write_bytes(damage)
    model = Model()
    part = opened(model, second)
    assert [own.description() for own in part.locals()] == pieces
    assert second.calls == (1 if damage is None else 3)
    for name, tensor in export(model):
        assert torch.equal(assembled(part)[name], tensor)


def test_what_was_found_of_another_exporter_is_found_again():
    def turned_experts(model: Model):
        return [(name, tensor[[1, 0]] if name == "experts" else tensor) for name, tensor in export(model)][:-1]

    opened(Model())
    model = Model()
    part = opened(model, turned_experts)
    want, got = dict(turned_experts(model)), assembled(part)
    assert want.keys() == got.keys() and all(torch.equal(got[name], tensor) for name, tensor in want.items())


def test_a_cache_that_cannot_be_written_is_a_warning(cache):
    cache.parent.parent.joinpath("lockstep").write_text("a file")
    with pytest.warns(UserWarning, match="the next start records the bridge again"):
        opened(Model())


class Bridge:
    """As mbridge's, of which some give a tensor again."""

    def __init__(self, again) -> None:
        self._again = again

    def export_weights(self, models):
        yield from export(models[0])
        yield "norm", self._again(models[0])


def test_a_bridge_may_give_a_tensor_again_if_it_is_the_same():
    model = Model()
    part = megatron(model, bridge=Bridge(lambda model: model.norm))
    part.open(ALONE, True)
    assert torch.equal(assembled(part)["norm"], model.norm)
    _refused_again(model, lambda model: model.w2[:, 0], "with other values")
    model.norm.data.fill_(1)
    _refused_again(model, lambda model: model.norm, "and all their elements are 1")
    with pytest.raises(BadDataError, match="a Model has neither export_hf_weights"):
        megatron(model, bridge=model)


def _refused_again(model: Model, again, problem: str) -> None:
    with pytest.raises(BadDataError, match=f'"norm" for "norm" again, {problem}'):
        megatron(model, bridge=Bridge(again)).open(ALONE, True)


def test_names_and_shapes_are_the_checkpoints(tmp_path):
    def refused(change, problem: str, **options) -> None:
        model = Model()
        tensors = {name: tensor.detach().clone() for name, tensor in export(model)}
        change(tensors)
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(BadDataError, match=problem):
            opened(model, checkpoint=tmp_path, **options)

    refused(lambda tensors: tensors.update(head=torch.ones(2)), 'does not give "head", which the checkpoint has')
    refused(lambda tensors: tensors.pop("q"), 'gives "q", which the checkpoint lacks')
    refused(lambda tensors: tensors.update(q=torch.ones(8, 5)), r'gives "q" \[8, 6\]; the checkpoint has \[8, 5\]')
    part = opened(Model(), checkpoint=tmp_path, ignore="q")
    assert assembled(part).keys() == dict(export(Model())).keys() - {"q"}
    with pytest.raises(NotFoundError, match="there is no"):
        opened(Model(), checkpoint=tmp_path / "lockstep")


def test_rows_that_pad_the_vocabulary_are_left_out(tmp_path):
    model = Model()
    save_file({"w": model.qkv[:10].detach().clone()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"text_config": {"vocab_size": 10}}')
    part = opened(model, lambda model: [("w", model.qkv)], checkpoint=tmp_path)
    assert torch.equal(assembled(part)["w"], model.qkv[:10])
    (tmp_path / "config.json").write_text('{"vocab_size": 11}')
    with pytest.raises(BadDataError, match=r'gives "w" \[12, 6\]; the checkpoint has \[10, 6\]'):
        opened(model, lambda model: [("w", model.qkv)], checkpoint=tmp_path)


def test_tensors_may_be_given_by_a_function():
    model = Model()
    held = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    part = megatron(lambda: held, recorded_from=lambda: [("w", held["qkv"].view(2, 6, 6)[1])])
    part.open(ALONE, True)
    held["qkv"].fill_(3)
    assert torch.equal(assembled(part)["w"], torch.full((6, 6), 3, dtype=torch.bfloat16))


@pytest.mark.parametrize("now", [lambda w: w[:0], lambda w: w[:3].clone(), lambda w: w.t().contiguous().t()])
def test_a_parameter_that_lies_otherwise_is_not_read(now):
    model = Model()
    part = opened(model)
    model.w2.data = now(model.w2.data)
    with pytest.raises(BadDataError, match='parameter "0.w2" has no memory, or is not what it was'):
        part.locals()


def test_frozen_tensors_are_named_as_huggingface_names_them():
    model = Model()
    part = opened(model, frozen=["norm"])
    assert [own.name for own in part.locals() if own.frozen] == ["norm[0] of rank 0"]
    assert part.frozen.names == {"norm"}
    model.router.requires_grad_(False)
    part = opened(model, frozen="requires_grad")
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
