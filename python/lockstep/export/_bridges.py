"""What gives a model's HuggingFace tensors: a Megatron-Bridge or mbridge object, or a function. For ``megatron`` and ``_recorded``."""

import contextlib
import functools
import importlib.metadata
import json
import warnings
from pathlib import Path
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence, Tuple

from lockstep.core.checkpoint_files import local_checkpoint, stored_tensors
from lockstep.core.errors import BadDataError, NotFoundError

_PACKAGES = ("megatron-core", "megatron-bridge", "mbridge", "transformers", "lockstep")


class Stored(NamedTuple):
    """A model's checkpoint: its tensors' shapes, by name, and how many rows those of its vocabulary have; 0: that is not known."""

    shapes: "Mapping[str, Tuple[int, ...]]"
    vocabulary: int

    def without_padding(self, name: str, tensor: Any) -> Any:
        """Without the rows that Megatron adds to a vocabulary. Some bridges leave them."""
        shape = self.shapes.get(name, ())
        padded = shape[:1] == (self.vocabulary,) and tensor.shape[1:] == shape[1:] and len(tensor) > self.vocabulary
        return tensor[: self.vocabulary] if padded else tensor


class Exporter(NamedTuple):
    """``export`` gives (HuggingFace name, whole tensor). ``stored`` gives the model's checkpoint; None: there is none. ``ignored``:
    names that are passed over."""

    export: "Callable[[], Iterable[Tuple[str, Any]]]"
    stored: "Callable[[], Stored | None]"
    ignored: "Callable[[str], bool]"


def exporter_of(bridge: Any, chunks: "Sequence[Any]", checkpoint: Any, ignored: "Callable[[str], bool]") -> Exporter:
    """That of a bridge over ``chunks``. Without a ``checkpoint`` its own counts, where it is on this host."""
    if callable(getattr(bridge, "export_hf_weights", None)):  # Megatron-Bridge
        own = getattr(getattr(bridge, "hf_pretrained", None), "model_name_or_path", None)
        export = functools.partial(bridge.export_hf_weights, list(chunks), show_progress=False)
    elif callable(getattr(bridge, "export_weights", None)):  # mbridge
        own = getattr(getattr(bridge, "hf_config", None), "name_or_path", None)
        export = functools.partial(bridge.export_weights, list(chunks))
    else:
        raise BadDataError(
            f"bridge: a {type(bridge).__name__} has neither export_hf_weights, as Megatron-Bridge's, nor export_weights, as mbridge's; "
            "give recorded_from a function that returns its generator"
        )
    return Exporter(export, _stored_in(checkpoint, own), ignored)


def exporter_by(function: Any, checkpoint: Any, ignored: "Callable[[str], bool]") -> Exporter:
    """A function that returns a generator of (name, whole tensor)."""
    return Exporter(function, _stored_in(checkpoint, None), ignored)


def versions() -> "list[str]":
    """Those of the packages that exporters come with."""
    found = []
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return found


def _stored_in(checkpoint: Any, own: Any) -> "Callable[[], Stored | None]":
    def stored() -> "Stored | None":
        if checkpoint is None and not own:
            return None
        try:
            directory = local_checkpoint(own if checkpoint is None else checkpoint)
            shapes = {tensor.meta.name: tensor.meta.shape for tensor in stored_tensors(directory)}
        except BadDataError:
            raise
        except (NotFoundError, OSError, ValueError) as error:  # those of the hub's library, too
            if checkpoint is not None:
                raise
            warnings.warn(
                f"what the bridge gives is compared with no checkpoint, for {own} is not on the host of rank 0: {error}; give checkpoint=",
                stacklevel=2,
            )
            return None
        return Stored(shapes, _vocabulary_of(directory))

    return stored


def _vocabulary_of(directory: str) -> int:
    try:
        config = json.loads(Path(directory, "config.json").read_text(encoding="utf-8"))
        return int(config.get("vocab_size") or config.get("text_config", {}).get("vocab_size") or 0)
    except (OSError, ValueError, TypeError, AttributeError):
        return 0
