"""record: which elements of a checkpoint's tensors an engine's own loader puts where. Nothing is loaded: the loader gets stand-ins on
PyTorch's "meta" device, and a dispatch mode notes what is copied. For the plugins of engines.

Storages are followed, not views: PyTorch keeps offset, shape and strides of a view itself. Each storage has a list of what was copied
into it, in order; of a temporary (``cat``, ``clone``), too, and a copy from one is followed to where that came from.
"""

import struct
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterable, Iterator, Mapping, NamedTuple, Sequence, Tuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.core.errors import BadDataError
from lockstep.engine._storages import Ops, Storage, Storages, conversion, number_of, tensors_in
from lockstep.engine._strided import Box, Copy, Ints, boxes_of, dims_of, last_wins

# Of one element each: what they give depends on nothing else.
_ELEMENTWISE = frozenset(
    "exp neg abs sqrt rsqrt reciprocal sigmoid tanh log log1p expm1 softplus square add sub mul div rsub pow clamp".split()
)
_CONSTANTS = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
_SAME = frozenset(("clone", "_to_copy", "contiguous", "detach_copy"))
_MOST_BOXES = 65_536  # of one parameter (raas_receiver/engine/placement/description/FORMAT.md)
_MARK = 0x7FF8_4C53_0000_0000  # of a NaN that stands for an element
_ARITHMETIC = (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow neg pos abs lt le gt ge eq ne bool int float "
    "round trunc floor ceil divmod rdivmod"
).split()


class TensorForm(NamedTuple):
    """A tensor of a checkpoint, without its data."""

    name: str
    dtype: torch.dtype
    shape: Ints


@dataclass(frozen=True)
class Piece:
    """A box of a parameter, and what gives it.

    Attributes:
        at, shape: the box in the parameter.
        tensor: of the checkpoint; None: each element is ``value``.
        start: the element of ``tensor``, in row-major order, that gives the box's first one.
        strides: elements of ``tensor`` for a step along each dimension of the box.
        ops: what is done to each element, in order, as ("exp",), ("mul", 2.0), ("to", "float32").
    """

    at: Ints
    shape: Ints
    tensor: "str | None"
    start: int
    strides: Ints
    ops: Ops
    value: "float | int" = 0


@dataclass
class Recording:
    """What a loader did.

    Attributes:
        pieces: of each parameter that it wrote; no element is in two. An element in none was not written.
        unused: tensors that went nowhere.
    """

    pieces: "dict[str, list[Piece]]"
    unused: "list[str]"


def record(
    destinations: "Mapping[str, torch.Tensor]",
    load: "Callable[[Iterator[Tuple[str, torch.Tensor]]], Any]",
    tensors: "Iterable[TensorForm]",
    afterwards: "Callable[[], Mapping[str, torch.Tensor]] | None" = None,
) -> Recording:
    """Runs ``load`` and notes what it would write.

    Args:
        destinations: parameters and buffers of the model that ``load`` fills, by name; on the "meta" device, or anywhere. Their
            memory stays as it is. What the loader reads before it writes it must be there.
        load: the engine's own loader; it is given names and stand-ins.
        tensors: of the checkpoint, in its order.
        afterwards: what there is to fill once the loader has run, where a loader makes tensors or removes some.

    Raises:
        BadDataError: the loader asks for values, computes an element from several, or fails; the text names what and where.
    """
    forms = list(tensors)
    mode = _Recorder(destinations)
    stand_ins = mode.stand_ins(forms)
    try:
        with torch.no_grad(), mode, _Elements(mode):
            load(stand_ins)
    except Exception as error:
        if mode.refusal is None:
            raise BadDataError(f"the engine's loader fails without data{mode.where()}: {error!r}") from error
    if mode.refusal is not None:  # loaders that swallow exceptions do not swallow this
        raise BadDataError(mode.refusal)
    filled = destinations if afterwards is None else afterwards()
    pieces = {name: mode.pieces_of(name, tensor) for name, tensor in filled.items()}
    pieces = {name: found for name, found in pieces.items() if found}
    used = {piece.tensor for found in pieces.values() for piece in found}
    return Recording(pieces, [form.name for form in forms if form.name not in used])


class _Recorder(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, destinations: "Mapping[str, torch.Tensor]") -> None:
        super().__init__()
        self.refusal: "str | None" = None
        self.given_marks: "list[int]" = []  # of the elements that the call under way was given
        self._storages = Storages(destinations)
        self._marks: "list[Tuple[Copy, torch.dtype]]" = []
        self._dtypes: "dict[str, torch.dtype]" = {}
        self._given = ""

    def where(self) -> str:
        """The tensor that the loader was given last, as part of a sentence."""
        return f" (at tensor {self._given})" if self._given else ""

    def stand_ins(self, forms: "Sequence[TensorForm]") -> "Iterator[Tuple[str, torch.Tensor]]":
        """To be called outside the mode, in which each would take several times as long."""
        return self._give([(form.name, self._stand_in(form)) for form in reversed(forms)])

    def _stand_in(self, form: TensorForm) -> torch.Tensor:
        tensor = torch.empty(form.shape, dtype=form.dtype, device="meta")
        storage = self._storages.known(tensor)
        storage.whole, self._dtypes[form.name] = True, form.dtype
        storage.copies = [Copy(dims_of((tensor.numel(),), (1,), (1,)), 0, form.name)]
        return tensor

    def _give(self, made: "list[Tuple[str, torch.Tensor]]") -> "Iterator[Tuple[str, torch.Tensor]]":
        while made:
            self._given = made[-1][0]
            yield made.pop()

    def pieces_of(self, name: str, tensor: torch.Tensor) -> "list[Piece]":
        """The end: what the loader left in a destination."""
        tensor = tensor.detach()
        storage = self._storages.find(tensor)
        if storage is None or not storage.copies or tensor.numel() == 0:
            return []
        shape, strides, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        boxes: "list[Box]" = []
        for copy in storage.copies:
            for box in boxes_of(copy, shape, strides, offset):
                boxes.append(box)
                if len(boxes) > _MOST_BOXES:
                    raise BadDataError(f"parameter {name} is made of more than {_MOST_BOXES} boxes of tensors")
        found = []
        for box in last_wins(boxes):
            copy = box.copy
            if copy.computed:
                raise BadDataError(f"parameter {name} is no copy of the checkpoint's tensors: {copy.computed}")
            ops = _shortest(copy.ops, self._dtypes.get(copy.tensor or ""))
            found.append(Piece(box.at, box.shape, copy.tensor, box.start, box.strides, ops, copy.value))
        return found

    # --- operations ---

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view:  # its storage is known already, or need not be
            return func(*args, **kwargs)
        try:
            return self._do(func, args, kwargs)
        except BadDataError as error:
            if self.refusal is None:
                self.refusal = f"{error}{self.where()}"
            raise

    def _do(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = list(tensors_in(args)) + list(tensors_in(kwargs))
        name = func.overloadpacket.__name__
        if func._schema.is_mutable:
            return self._mutate(func, name, args, kwargs)
        if not any(self._storages.is_symbolic(tensor) for tensor in tensors):
            result = func(*args, **kwargs)
            self._note_constant(name, args, result)
            return result
        if name == "_local_scalar_dense":
            raise BadDataError(f"the loader asks for a value of {self._storages.sources(args)}")
        result = self._on_meta(func, args, kwargs)
        before = {number_of(tensor) for tensor in tensors}
        for out in tensors_in((result,)):
            if number_of(out) not in before:
                self._make(name, args, kwargs, out)
        return result

    def _make(self, name: str, args: Any, kwargs: Any, out: torch.Tensor) -> None:
        """What a new storage is made of."""
        storage = self._storages.known(out)
        if name in _SAME:
            storage.copies = self._storages.copies(out, args[0])
        elif name == "cat":
            dim, at = args[1] if len(args) > 1 else kwargs.get("dim", 0), 0
            for part in args[0]:
                if part.dim() == 1 and part.numel() == 0:
                    continue
                storage.copies += self._storages.copies(out.narrow(dim, at, part.shape[dim]), part)
                at += part.shape[dim]
        elif name == "stack":
            dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            for at, part in enumerate(args[0]):
                storage.copies += self._storages.copies(out.select(dim, at), part)
        elif name in ("index", "index_select") and self._rows(name, args) is not None:
            dim, rows = self._rows(name, args)  # type: ignore[misc]
            for at, row in _runs(rows):
                count = len(row)
                storage.copies += self._storages.copies(out.narrow(dim, at, count), args[0].narrow(dim, row[0], count))
        elif name in _CONSTANTS:
            storage.copies = [self._storages.constant(out, _CONSTANTS[name])]
        elif name in ("full_like", "new_full"):
            storage.copies = [self._storages.constant(out, args[-1])]
        elif not name.startswith(("empty", "new_empty")):
            ops = self._elementwise(name, args, kwargs)
            if ops is None:
                storage.copies = [self._storages.computed(out, f"{name} of {self._storages.sources(args)}")]
            else:
                storage.copies = self._storages.copies(out, args[0].expand(out.shape), ops)

    def _elementwise(self, name: str, args: Any, kwargs: Any) -> "Ops | None":
        """The step that an operation is for each element of its first argument. None: it is more."""
        if name not in _ELEMENTWISE or kwargs or not isinstance(args[0], torch.Tensor):
            return None
        numbers = [self._number_of(value) for value in args[1:]]
        return None if None in numbers else ((name, *numbers),)

    def _number_of(self, value: Any) -> "float | int | None":
        if isinstance(value, torch.Tensor):
            if value.numel() != 1 or self._storages.is_symbolic(value) or value.device.type == "meta":
                return None
            value = value.item()
        if isinstance(value, (bool, int, float)) and value == value:
            return value
        return None

    def _mutate(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        target = args[0] if args and isinstance(args[0], torch.Tensor) else kwargs.get("out")
        if not isinstance(target, torch.Tensor):
            raise BadDataError(f"the loader calls {name}, which is not followed")
        others = [tensor for tensor in (*tensors_in(args[1:]), *tensors_in(kwargs)) if tensor is not target]
        known = self._storages.is_symbolic(target) or number_of(target) in self._storages.names
        if not known and not any(self._storages.is_symbolic(other) for other in others):
            if target.device.type != "meta":
                return func(*args, **kwargs)
        storage = self._storages.known(target)
        if name == "copy_":
            self._write(storage, target, self._storages.copies(target, args[1].expand(target.shape)))
        elif name in ("zero_", "fill_"):
            self._write(storage, target, self._filled(target, 0 if name == "zero_" else args[1]))
        elif name == "index_put_" and self._rows(name, args) is not None:
            dim, rows = self._rows(name, args)  # type: ignore[misc]
            values = args[2].expand(*target.shape[:dim], len(rows), *target.shape[dim + 1 :])
            for at, row in _runs(rows):
                part = target.narrow(dim, row[0], len(row))
                self._write(storage, part, self._storages.copies(part, values.narrow(dim, at, len(row))))
        elif name.endswith("_") and self._elementwise(name[:-1], args, kwargs) is not None:
            ops = self._elementwise(name[:-1], args, kwargs)
            self._write(storage, target, self._storages.copies(target, target, ops or ()))
        else:
            self._write(storage, target, [self._storages.computed(target, f"{name} of {self._storages.sources(args)}")])
        return target

    def _write(self, storage: Storage, target: torch.Tensor, copies: "list[Copy]") -> None:
        storage.whole = False  # a stand-in that was written is a tensor like any other
        if target.numel() * target.element_size() == storage.storage.nbytes():
            storage.copies = []
        storage.copies += copies

    def _filled(self, target: torch.Tensor, value: Any) -> "list[Copy]":
        if isinstance(value, torch.Tensor):
            return self._storages.copies(target, value.expand(target.shape))
        if isinstance(value, float) and value != value:  # perhaps a mark
            number = struct.unpack("<Q", struct.pack("<d", value))[0] - _MARK
            if number not in self.given_marks:
                raise BadDataError("the loader computes with the value of an element")
            marked, dtype = self._marks[number]
            at = dims_of(target.shape, target.stride(), [0] * target.dim())
            return [replace(marked, dims=at, to=target.storage_offset()).after(conversion(dtype, target.dtype))]
        return [self._storages.constant(target, value)]

    def element(self, tensor: torch.Tensor) -> Any:
        """What ``tensor.item()`` gives; None: what is there."""
        storage = self._storages.find(tensor)
        if storage is not None and storage.constant is not None and not storage.copies:
            return storage.values(tensor).item()
        if not self._storages.is_symbolic(tensor) or tensor.numel() != 1 or not tensor.dtype.is_floating_point:
            return None
        copies = self._storages.copies(torch.empty((), dtype=tensor.dtype, device="meta"), tensor.reshape(()))
        if len(copies) != 1 or copies[0].computed:
            return None
        self._marks.append((copies[0], tensor.dtype))
        element = _Element(struct.unpack("<d", struct.pack("<Q", _MARK + len(self._marks) - 1))[0])
        element.mark, element.refuse = len(self._marks) - 1, lambda: self.refuse(self._storages.sources((tensor,)))
        return element

    def refuse(self, names: str) -> None:
        """BadDataError, which is kept."""
        text = f"the loader computes with the value of an element of {names}{self.where()}"
        self.refusal = self.refusal or text
        raise BadDataError(text)

    def _note_constant(self, name: str, args: Any, result: Any) -> None:
        """Values that were moved to the "meta" device."""
        if name != "_to_copy" or not isinstance(result, torch.Tensor) or result.device.type != "meta":
            return
        if args[0].device.type != "meta":
            self._storages.known(result).constant = args[0].to(result.dtype).contiguous()

    def _rows(self, name: str, args: Any) -> "Tuple[int, list[int]] | None":
        """The dimension, and its rows, that an operation takes by number."""
        if name == "index_select":
            dim, index = args[1], args[2]
        else:
            given = [(dim, index) for dim, index in enumerate(args[1]) if index is not None]
            if len(given) != 1 or (name == "index_put_" and len(args) > 3 and args[3]):
                return None
            dim, index = given[0]
        storage = self._storages.find(index)
        if storage is not None and storage.constant is not None:
            index = storage.values(index)
        if index.device.type == "meta" or self._storages.is_symbolic(index) or index.dim() != 1:
            return None
        if index.dtype == torch.bool:
            index = index.nonzero().reshape(-1)
        extent = args[0].shape[dim]
        return dim, [int(row) % extent for row in index.tolist()]

    def _on_meta(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Runs an operation of which only the shape of what it gives counts."""

        def stand_in(value: Any) -> Any:
            if isinstance(value, torch.Tensor) and value.device.type != "meta":
                if number_of(value) in self._storages.names:  # its own memory: views of it must stay views
                    return value
                return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            if isinstance(value, (list, tuple)):
                return type(value)(stand_in(own) for own in value)
            return torch.device("meta") if isinstance(value, torch.device) else value

        given = {key: stand_in(value) for key, value in kwargs.items() if key != "pin_memory"}
        return func(*(stand_in(value) for value in args), **given)


class _Element(float):
    """Stands for one element of a tensor. To be handed on, not to be computed with."""

    mark: int
    refuse: "Callable[[], None]"


for _name in _ARITHMETIC:
    setattr(_Element, f"__{_name}__", lambda element, *_: element.refuse())


class _Elements(TorchFunctionMode):  # type: ignore[misc]
    """Gives loaders that ask for an element what stands for it."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.item:
            element = self._recorder.element(args[0])
            if element is not None:
                return element
        marks = [own.mark for own in args if type(own) is _Element]
        if not marks:  # as most calls: each attribute of a tensor is one
            return func(*args, **kwargs) if kwargs else func(*args)
        self._recorder.given_marks = marks
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self._recorder.given_marks = []


def _shortest(ops: Ops, dtype: "torch.dtype | None") -> Ops:
    """Without a conversion to a wider type and back."""
    if len(ops) != 2 or not ops[0][0] == ops[1][0] == "to" or dtype is None or not dtype.is_floating_point:
        return ops
    wider = getattr(torch, ops[0][1])
    return () if (ops[1],) == conversion(wider, dtype) and torch.promote_types(dtype, wider) == wider else ops


def _runs(rows: "Sequence[int]") -> "Iterator[Tuple[int, list[int]]]":
    """Rows in stretches of neighbours, each with its place."""
    begin = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at] != rows[at - 1] + 1:
            if at > begin:
                yield begin, list(rows[begin:at])
            begin = at
