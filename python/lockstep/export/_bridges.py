"""What gives a model's HuggingFace tensors: a Megatron-Bridge or mbridge object, or a function. For ``megatron`` and ``_recorded``."""

import contextlib
import importlib.metadata
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence, Tuple

from lockstep.core.checkpoint_files import local_checkpoint, stored_tensors
from lockstep.core.errors import BadDataError, NotFoundError

_PACKAGES = ("megatron-core", "megatron-bridge", "mbridge", "transformers", "lockstep")


class Exporter(NamedTuple):
    """``export`` gives (HuggingFace name, whole tensor). ``shapes`` gives those of the model's checkpoint, by name; None: there is no
    checkpoint. ``ignored``: names that are passed over. ``repeats``: a name may come again, with the same value."""

    export: "Callable[[], Iterable[Tuple[str, Any]]]"
    shapes: "Callable[[], Mapping[str, Tuple[int, ...]] | None]"
    ignored: "Callable[[str], bool]"
    repeats: bool


def exporter_of(bridge: Any, chunks: "Sequence[Any]", checkpoint: Any, ignored: "Callable[[str], bool]") -> Exporter:
    """That of a bridge over ``chunks``. Without a ``checkpoint`` its own counts, where it is on this host."""
    if callable(getattr(bridge, "export_hf_weights", None)):  # Megatron-Bridge

        def export() -> "Iterable[Tuple[str, Any]]":
            yield from bridge.export_hf_weights(list(chunks), show_progress=False)

        own = getattr(getattr(bridge, "hf_pretrained", None), "model_name_or_path", None)
    elif callable(getattr(bridge, "export_weights", None)):  # mbridge

        def export() -> "Iterable[Tuple[str, Any]]":
            yield from bridge.export_weights(list(chunks))

        own = getattr(getattr(bridge, "hf_config", None), "name_or_path", None)
    else:
        raise BadDataError(
            f"bridge: a {type(bridge).__name__} has neither export_hf_weights, as Megatron-Bridge's, nor export_weights, as mbridge's; "
            "give recorded_from a function that returns its generator"
        )
    # Both give an embedding once for each stage that has a copy of it.
    return Exporter(export, _shapes_of(checkpoint, own), ignored, True)


def exporter_by(function: Any, checkpoint: Any, ignored: "Callable[[str], bool]") -> Exporter:
    """A function that returns a generator of (name, whole tensor)."""
    return Exporter(function, _shapes_of(checkpoint, None), ignored, False)


def versions() -> "list[str]":
    """Those of the packages that exporters come with."""
    found = []
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return found


def _shapes_of(checkpoint: Any, own: Any) -> "Callable[[], Mapping[str, Tuple[int, ...]] | None]":
    def shapes() -> "Mapping[str, Tuple[int, ...]] | None":
        if checkpoint is None and not own:
            return None
        try:
            stored = stored_tensors(local_checkpoint(own if checkpoint is None else checkpoint))
        except (NotFoundError, OSError, ValueError):  # those of the hub's library, too
            if checkpoint is not None:
                raise
            return None
        return {tensor.meta.name: tensor.meta.shape for tensor in stored}

    return shapes
