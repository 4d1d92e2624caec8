"""How vLLM loads models, watched from inside: for each one a twin without memory, for its loader to be recorded on, and what vLLM did to
the weights once they were there; and which models draft for it. The plugin watches; LockstepWeightTransferEngine asks.

Written against the sources of vLLM 0.33.0 and 0.32.0.
"""

import contextlib
import copy
import functools
import logging
import weakref
from typing import Any, Callable, Iterator, NamedTuple, Union

from lockstep.core.errors import BadDataError
from lockstep.engine._processing import Processing
from lockstep.engine._recorded import Recorded, keep_integers

_log = logging.getLogger(__name__)


class _Loaded(NamedTuple):
    """A model that vLLM loaded."""

    checkpoint: str
    recorded: "Union[Callable[..., Recorded], str]"  # or why it is not known
    drafts: "list[Any]"


_loaded: "weakref.WeakKeyDictionary[Any, _Loaded]" = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def watched() -> "Iterator[None]":
    """Every model that vLLM loads inside is known to ``recorded`` afterwards; those after the first one as its drafts."""
    from vllm.model_executor.model_loader import base_loader

    loader, process = base_loader.BaseModelLoader, base_loader.process_weights_after_loading
    load = loader.load_model
    looks: "list[Processing]" = []
    first: "list[Any]" = []

    def processed(model: Any, *arguments: Any) -> None:
        look = Processing(model)
        process(model, *arguments)
        looks.append(look.end(model))

    def loads(self: Any, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        model = load(self, vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        note(model, vllm_config, model_config, prefix, looks.pop(), *first)
        first.append(model)
        del first[1:]
        return model

    base_loader.process_weights_after_loading, loader.load_model = processed, loads
    try:
        yield
    finally:
        base_loader.process_weights_after_loading, loader.load_model = process, load


def note(
    model: Any, vllm_config: Any, model_config: Any, prefix: str, processing: Processing, target: Any = None
) -> None:
    """A model that is loaded: ``recorded`` knows it from here on. ``target``: the one that it drafts for."""
    known: "Union[Callable[..., Recorded], str]"
    try:
        own = twin(model, vllm_config, model_config, prefix)
    except Exception as error:  # the server starts without us
        known = f"vLLM does not build this model a second time, for its loader to be recorded: {error!r}"
    else:
        known = functools.partial(Recorded, twin=own, load=own.load_weights, processing=processing)
    _loaded[model] = _Loaded(str(getattr(model_config, "model_weights", "") or model_config.model), known, [])
    if target is not None:
        _loaded[target].drafts.append(model)


def recorded(model: Any) -> Recorded:
    """What is known of a model, and of its drafts from the same checkpoint. BadDataError: nothing, for vLLM did not load it as it loads
    checkpoints."""
    found = _loaded.get(model)
    if found is None:
        raise BadDataError(
            "vLLM did not load this model by its own loader of checkpoints, so it is not known what its weights are made of; start with "
            "--load-format auto or dummy"
        )
    if isinstance(found.recorded, str):
        raise BadDataError(found.recorded)
    drafts = []
    for draft in found.drafts:
        own = _loaded[draft]
        if own.checkpoint != found.checkpoint:
            _log.info("the draft model keeps the weights of its own checkpoint, %s", own.checkpoint)
        elif isinstance(own.recorded, str):
            _log.warning("the draft model keeps the weights that it was started with: %s", own.recorded)
        else:
            drafts.append(own.recorded(draft))
    return found.recorded(model, drafts=drafts)


def twin(model: Any, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
    """The same model once more, on the "meta" device. Models that ask for values while they are built are on the CPU, where memory that
    nothing touches costs nothing."""
    import torch
    from vllm.config import CompilationMode
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.model_executor.models import utils as models
    from vllm.utils.torch_utils import set_default_torch_dtype

    def build(device: str) -> Any:
        config = copy.copy(vllm_config)
        config.compilation_config = copy.copy(vllm_config.compilation_config)
        config.compilation_config.static_forward_context = {}  # layers are there by name, once
        config.compilation_config.static_all_moe_layers = []
        config.compilation_config.mode = CompilationMode.NONE
        with set_default_torch_dtype(model_config.dtype), torch.device(device):
            return initialize_model(vllm_config=config, model_config=model_config, prefix=prefix)

    try:
        own = build("meta")
    except (NotImplementedError, RuntimeError):
        own = build("cpu")
    # Which layers another stage of a pipeline has is kept by the model's number, which a model that is gone may have had.
    models._model_to_pp_missing_layer_names.pop(id(own), None)
    keep_integers(model, own)
    return own
