"""Recorded: the parameters of a rank whose engine's own loader says what they are made of, as the receiver takes them. The plugins give it
to Follower."""

import logging
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Iterator, Mapping, Sequence, Set, Tuple

import torch

from lockstep.core.errors import BadDataError
from lockstep.core.tensors import contiguous_strides
from lockstep.engine._parameters import Parameter, located, memory_of, registered, tensors_of
from lockstep.engine._processing import Processing
from lockstep.engine._recorder import Piece, Recording, TensorForm, record
from lockstep.engine._strided import Box, Copy, boxes_of, dims_of, last_wins

_log = logging.getLogger(__name__)
# Elements that a rank computes from a copy of their tensors, as part of all that it has.
_MOST_COMPUTED = 1 / 16
_STILL_FEW = 1 << 24


@dataclass
class Placement:
    """What a rank describes.

    Attributes:
        parameters: with their slices and padding. One that is made of more than copies is there box by box, "NAME[K]".
        computed: what is done once those are written.
        unused: tensors that no loader puts anywhere.
        layout: the digest of the layout that it is for.
    """

    layout: str
    parameters: "list[Parameter]" = field(default_factory=list)
    computed: "list[_Computed]" = field(default_factory=list)
    unused: "list[str]" = field(default_factory=list)

    def compute(self) -> None:
        """The elements that are no copies, from those that are."""
        with torch.no_grad():
            for step in self.computed:
                step.run()

    def add(self, draft: "Placement") -> None:
        """Adds a draft's parameters, as "draft.NAME"."""
        self.parameters += [replace(own, name=f"draft.{own.name}") for own in draft.parameters]
        self.computed += draft.computed
        unused = set(draft.unused)
        self.unused = [name for name in self.unused if name in unused]


class Recorded:
    """A module, and the loader that fills it.

    Args:
        module: what the engine computes from.
        twin: a module of the same parameters, on the "meta" device; the loader runs on it.
        load: the engine's own loader of ``twin``: it is given an iterator of names and tensors.
        processing: what the engine did to ``module`` once it was loaded.
        drafts: models that draft for ``module``, of the same checkpoint. A draft that the model's tensors do not fill stays as it is.
    """

    def __init__(
        self,
        module: Any,
        twin: Any,
        load: "Callable[[Iterator[Tuple[str, Any]]], Any]",
        processing: "Processing",
        drafts: "Sequence[Recorded]" = (),
    ) -> None:
        self._module, self._twin, self._load, self._processing = module, twin, load, processing
        self._drafts = drafts
        self._layout = ""
        self._forms: "dict[str, TensorForm]" = {}
        self._recording: "Recording | BadDataError | None" = None

    def take(self, layout: str, tensors: "Sequence[TensorForm]") -> bool:
        """The digest of the model's layout, and its tensors. Whether they are others than those taken before."""
        if layout == self._layout:
            return False
        for draft in self._drafts:
            draft.take(layout, tensors)
        self._layout, self._forms, self._recording = layout, {form.name: form for form in tensors}, None
        return True

    def modules(self) -> Any:
        """The module, with its drafts."""
        if not self._drafts:
            return self._module
        return torch.nn.ModuleList([self._module, *(draft.modules() for draft in self._drafts)])

    def place(self, compare_only: bool = False) -> Placement:
        """Runs the loaders, once for each layout. ``compare_only``: without what is computed, of which the memory shows nothing, and
        without drafts, which the engine does not load again. BadDataError names a parameter that cannot be written in place, and why."""
        placement = self._placed(compare_only, set())
        held = set(map(_place_of, registered(self._module).values()))
        for draft in () if compare_only else self._drafts:
            try:
                placement.add(draft._placed(False, held))
            except BadDataError as error:
                _log.warning("the draft model keeps the weights that it was started with: %s", error)
        return placement

    def _placed(self, compare_only: bool, held: "Set[Tuple[Any, ...]]") -> Placement:
        """``held``: where the tensors lie that another model has."""
        live = _by_every_name(self._module)
        recording = self._recorded()
        twin = tensors_of(self._twin)  # with what the loader made beside the parameters
        beside = self._beside(live, recording)
        wanted = {
            name: tensor
            for name, tensor in twin.items()
            if name not in beside and _place_of(live.get(name)) not in held
        }
        pieces = {name: recording.pieces[name] for name in wanted if name in recording.pieces}
        self._check(pieces, wanted, live)
        placement = Placement(self._layout, unused=recording.unused)
        for name, own in pieces.items():
            _place(name, live[name], own, self._forms, placement, compare_only)
        computed = sum(step.box.numel() for step in placement.computed)
        if computed > max(_STILL_FEW, _MOST_COMPUTED * sum(tensor.numel() for tensor in twin.values())):
            step = max(placement.computed, key=lambda own: own.box.numel())
            raise BadDataError(
                f"parameter {step.name} is not the trainer's tensor, but {step.text()} of it, and so are many others; publish the "
                "dtype that the engine has, or let it take versions from the directory"
            )
        return placement

    def _beside(self, live: "Mapping[str, Any]", recording: Recording) -> "Set[str]":
        """Tensors beside parameters that need no writing: views of parameters, and what is made of no tensor."""
        memories = set(map(memory_of, registered(self._module).values()))
        beside = tensors_of(self._twin).keys() - registered(self._twin).keys()
        made = {name for name, pieces in recording.pieces.items() if any(piece.tensor is not None for piece in pieces)}
        return {name for name in beside if name not in made or (name in live and memory_of(live[name]) in memories)}

    def _recorded(self) -> Recording:
        if self._recording is None:
            try:
                self._recording = record(
                    tensors_of(self._twin), self._load, self._forms.values(), lambda: tensors_of(self._twin)
                )
            except BadDataError as error:
                self._recording = error  # it takes seconds, and fails again
        if isinstance(self._recording, BadDataError):
            raise self._recording
        return self._recording

    def _check(
        self, pieces: "Mapping[str, Sequence[Piece]]", twin: "Mapping[str, Any]", live: "Mapping[str, Any]"
    ) -> None:
        recorded = tensors_of(self._twin)
        copies = [name for name in self._processing.copies(self._module) if name not in recorded]
        if copies:
            raise BadDataError(
                f"{copies[0]} was made of weights after they were loaded, and a write would leave it as it is: let the engine take "
                "versions from the directory"
            )
        changed = self._processing.changed
        for name in pieces:
            if name in changed:
                raise BadDataError(
                    f"parameter {name} {changed[name]} after it was loaded: start the engine with kernels that take weights "
                    "as they are loaded, or let it take versions from the directory"
                )
            if name not in live or _form(live[name]) != _form(twin[name]):
                was = f"is {_form(live[name])}" if name in live else "is missing"
                raise BadDataError(f"parameter {name} {was}, and its loader fills {_form(twin[name])}")
            hole = _hole(tuple(twin[name].shape), pieces[name])
            if hole is not None:
                begin, end = list(hole.at), [at + extent for at, extent in zip(hole.at, hole.shape)]
                raise BadDataError(f"parameter {name}: elements {begin} to {end} are given by no tensor of the model")
        given = pieces.keys() | self._processing.traceless
        missing = [name for name, _ in self._twin.named_parameters() if name in twin and name not in given]
        if missing:
            others = f", and {len(missing) - 1} others," if len(missing) > 1 else ""
            raise BadDataError(
                f"parameter {missing[0]}{others} got no tensor of the model: the engine's loader puts none of what the trainer "
                "publishes there"
            )


def all_parameters(module: Any) -> "list[Parameter]":
    """Parameters and buffers, as they lie."""
    return [located(name, tensor) for name, tensor in registered(module).items()]


def keep_integers(model: Any, twin: Any) -> None:
    """Loaders read numbers that the engine has itself, such as which experts are whose."""
    own = dict(twin.named_modules())
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and not buffer.is_floating_point() and path in own:
                own[path]._buffers[name] = buffer.detach().to("cpu", copy=True)


@dataclass
class _Computed:
    """A box of a parameter that is computed: from a copy of a tensor's box, or of one number."""

    name: str
    box: torch.Tensor
    source: "torch.Tensor | None"
    ops: "Tuple[Tuple[Any, ...], ...]"
    value: "float | int"

    def run(self) -> None:
        if self.source is None:
            self.box.fill_(self.value)
            return
        value = self.source
        for name, *arguments in self.ops:
            value = (
                value.to(getattr(torch, arguments[0]))
                if name == "to"
                else getattr(torch.ops.aten, name)(value, *arguments)
            )
        self.box.copy_(value)

    def text(self) -> str:
        return ", ".join(" ".join(map(str, step)) for step in self.ops)


def _place(
    name: str,
    tensor: torch.Tensor,
    pieces: "Sequence[Piece]",
    forms: "Mapping[str, TensorForm]",
    placement: Placement,
    compare_only: bool,
) -> None:
    """Adds a parameter: whole where it is made of slices, else box by box."""
    copied = [_is_copied(piece, tensor.dtype, forms) for piece in pieces]
    whole = _whole(name, tensor, pieces, forms) if all(copied) else None
    if whole is not None:
        placement.parameters.append(whole)
        return
    for number, (piece, plain) in enumerate(zip(pieces, copied)):
        box = tensor.detach()[tuple(slice(at, at + extent) for at, extent in zip(piece.at, piece.shape))]
        if plain:
            placement.parameters += _entries(f"{name}[{number}]", box, piece, forms)
        elif not compare_only:
            source = None
            if piece.tensor is not None:
                source = torch.empty(piece.shape, dtype=forms[piece.tensor].dtype, device=box.device)
                placement.parameters += _entries(f"{name}[{number}]", source, piece, forms)
            placement.computed.append(_Computed(name, box, source, piece.ops, piece.value))


def _whole(
    name: str, tensor: torch.Tensor, pieces: "Sequence[Piece]", forms: "Mapping[str, TensorForm]"
) -> "Parameter | None":
    """A parameter with its slices and padding. None: a piece is no slice of it, or elements are in none."""
    whole = located(name, tensor)
    if sum(torch.Size(piece.shape).numel() for piece in pieces) != tensor.numel():
        return None
    for piece in pieces:
        if piece.tensor is None:
            whole.padding.append({"at": list(piece.at), "shape": list(piece.shape)})
            continue
        own = _slice(piece, whole, forms)
        if own is None:
            return None
        whole.slices.append(own)
    return whole


def _is_copied(piece: Piece, dtype: torch.dtype, forms: "Mapping[str, TensorForm]") -> bool:
    """Whether the receiver writes it: bytes as they are, bf16 in fp32, or zeros."""
    if piece.tensor is None:
        return piece.value == 0
    own = forms[piece.tensor].dtype
    if not piece.ops:
        return bool(own == dtype)
    return bool((own, dtype, piece.ops) == (torch.bfloat16, torch.float32, (("to", "float32"),)))


def _slice(piece: Piece, whole: Parameter, forms: "Mapping[str, TensorForm]") -> "dict[str, Any] | None":
    """The piece as a slice of the whole parameter. None: it does not lie there as it lies in the tensor."""
    boxes = list(_source_boxes(piece, contiguous_strides(whole.shape), forms))
    if len(boxes) != 1:
        return None
    [box] = boxes
    strides = contiguous_strides(whole.shape)
    lead = len(whole.shape) - len(box.shape)
    if lead < 0 or any(extent != 1 for extent in piece.shape[:lead]) or box.shape != piece.shape[lead:]:
        return None
    if any(extent != 1 and step != strides[lead + k] for k, (extent, step) in enumerate(zip(box.shape, box.strides))):
        return None
    return {"tensor": piece.tensor, "from": list(box.at), "shape": list(box.shape), "at": list(piece.at)}


def _source_boxes(piece: Piece, strides: "Tuple[int, ...]", forms: "Mapping[str, TensorForm]") -> "Iterator[Box]":
    """The piece as boxes of its tensor, each with the steps that it takes where it goes, of these strides."""
    form = forms[piece.tensor or ""]
    if any(extent != 1 and step == 0 for extent, step in zip(piece.shape, piece.strides)):
        dim = next(k for k, step in enumerate(piece.strides) if step == 0 and piece.shape[k] != 1)
        for k in range(piece.shape[dim]):  # one element goes to many places
            at = (*piece.at[:dim], piece.at[dim] + k, *piece.at[dim + 1 :])
            shape = (*piece.shape[:dim], 1, *piece.shape[dim + 1 :])
            yield from _source_boxes(Piece(at, shape, piece.tensor, piece.start, piece.strides, ()), strides, forms)
        return
    begin = sum(at * step for at, step in zip(piece.at, strides))
    turned = Copy(dims_of(piece.shape, piece.strides, strides), piece.start, start=begin)
    yield from boxes_of(turned, form.shape, contiguous_strides(form.shape), 0)


def _entries(name: str, box: torch.Tensor, piece: Piece, forms: "Mapping[str, TensorForm]") -> "Iterator[Parameter]":
    """A box of a parameter as parameters of their own, each as its tensor's box lies."""
    if piece.tensor is None:
        own = located(name, box)
        own.padding = [{"at": [0] * len(own.shape), "shape": list(own.shape)}]
        yield own
        return
    origin = Piece((0,) * len(piece.shape), piece.shape, piece.tensor, piece.start, piece.strides, ())
    for number, found in enumerate(_source_boxes(origin, box.stride(), forms)):
        part = box.as_strided(found.shape, found.strides, box.storage_offset() + found.start)
        own = located(f"{name}.{number}" if number else name, part)
        own.slices = [
            {"tensor": piece.tensor, "from": list(found.at), "shape": list(found.shape), "at": [0] * len(found.at)}
        ]
        yield own


def _hole(shape: "Tuple[int, ...]", pieces: "Sequence[Piece]") -> "Box | None":
    """A box that no piece gives."""
    if sum(torch.Size(piece.shape).numel() for piece in pieces) == torch.Size(shape).numel():
        return None  # no element is in two
    none = (0,) * len(shape)
    whole, given = Copy((), 0, computed="hole"), Copy((), 0)
    boxes = [Box(none, shape, 0, none, whole), *(Box(own.at, own.shape, 0, none, given) for own in pieces)]
    return next((box for box in last_wins(boxes) if box.copy is whole), None)


def _by_every_name(module: Any) -> "dict[str, torch.Tensor]":
    """Those of ``tensors_of``, and shared parameters and buffers under each of their names."""
    return {
        **tensors_of(module),
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


def _place_of(tensor: "torch.Tensor | None") -> "Tuple[Any, ...]":
    """Where a tensor lies."""
    return () if tensor is None else (tensor.device, tensor.data_ptr())


def _form(tensor: torch.Tensor) -> "Tuple[torch.dtype, Tuple[int, ...]]":
    return tensor.dtype, tuple(tensor.shape)
