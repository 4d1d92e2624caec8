"""How SGLang loads models, watched from inside: for each one a twin without memory, for its loader to be recorded on, and what SGLang did
to the weights of each layer once they were there. For the SGLang plugin.

Written against the sources of SGLang 0.5.23.
"""

import functools
import weakref
from typing import Any, Callable, NamedTuple, Set

from lockstep.core.errors import BadDataError
from lockstep.engine._processing import Processing, names_of
from lockstep.engine._recorded import Recorded, keep_integers

INITIALIZE = "sglang.srt.model_loader.loader._initialize_model"


class _Built(NamedTuple):
    """A model, as SGLang built it."""

    again: "Callable[[], Any]"
    dtype: Any
    names: "Set[str]"
    looks: "dict[str, Processing]"  # by layer


_built: "weakref.WeakKeyDictionary[Any, _Built]" = weakref.WeakKeyDictionary()


def initialized(initialize: "Callable[..., Any]", *arguments: Any, **options: Any) -> Any:
    """Around SGLang's function of that name."""
    model = initialize(*arguments, **options)
    own = _Built(functools.partial(initialize, *arguments, **options), arguments[0].dtype, names_of(model), {})
    _built[model] = own
    for name, layer in model.named_modules():
        method: Any = getattr(layer, "quant_method", None)
        if hasattr(method, "process_weights_after_loading"):
            method.process_weights_after_loading = _looked(method.process_weights_after_loading, name, layer, own.looks)
    return model


def _looked(process: Any, name: str, layer: Any, looks: "dict[str, Processing]") -> "Callable[[Any], Any]":
    """Some methods are of several layers: each looks at its own."""

    @functools.wraps(process)
    def processed(given: Any) -> Any:
        if given is not layer:
            return process(given)
        look = Processing(layer)
        result = process(given)
        looks[name] = look.end(layer)
        return result

    return processed


def recorded(model: Any) -> Recorded:
    """What is known of a model that is loaded. BadDataError: nothing, for SGLang did not build it."""
    import torch
    from sglang.srt.model_loader.utils import set_default_torch_dtype

    own = _built.get(model)
    if own is None:
        raise BadDataError("SGLang did not build this model itself, so it is not known what its weights are made of")
    with set_default_torch_dtype(own.dtype), torch.device("meta"):
        twin = own.again()
    keep_integers(model, twin)
    return Recorded(model, twin, twin.load_weights, Processing(model, own.names).end(model, own.looks))
