"""How vLLM loads models, watched from inside: for each one a twin without memory, for its loader to be recorded on, and what vLLM did to
the weights once they were there. The plugin watches; LockstepWeightTransferEngine asks.

Written against the sources of vLLM 0.33.0 and 0.32.0.
"""

import contextlib
import copy
import weakref
from typing import Any, Iterator

from lockstep.core.errors import BadDataError
from lockstep.engine._processing import Processing
from lockstep.engine._recorded import Recorded, keep_integers

_loaded: "weakref.WeakKeyDictionary[Any, Recorded | str]" = weakref.WeakKeyDictionary()  # or why it is not known


@contextlib.contextmanager
def watched() -> "Iterator[None]":
    """Every model that vLLM loads inside is known to ``recorded`` afterwards."""
    from vllm.model_executor.model_loader import base_loader

    loader, process = base_loader.BaseModelLoader, base_loader.process_weights_after_loading
    load = loader.load_model
    looks: "list[Processing]" = []

    def processed(model: Any, *arguments: Any) -> None:
        look = Processing(model)
        process(model, *arguments)
        looks.append(look.end(model))

    def loads(self: Any, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        model = load(self, vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        note(model, vllm_config, model_config, prefix, looks.pop())
        return model

    base_loader.process_weights_after_loading, loader.load_model = processed, loads
    try:
        yield
    finally:
        base_loader.process_weights_after_loading, loader.load_model = process, load


def note(model: Any, vllm_config: Any, model_config: Any, prefix: str, processing: Processing) -> None:
    """A model that is loaded: ``recorded`` knows it from here on."""
    try:
        own = twin(model, vllm_config, model_config, prefix)
    except Exception as error:  # the server starts without us
        _loaded[model] = f"vLLM does not build this model a second time, for its loader to be recorded: {error!r}"
    else:
        _loaded[model] = Recorded(model, own, own.load_weights, processing)


def recorded(model: Any) -> Recorded:
    """What is known of a model. BadDataError: nothing, for vLLM did not load it as it loads checkpoints."""
    found = _loaded.get(model)
    if found is None:
        raise BadDataError(
            "vLLM did not load this model by its own loader of checkpoints, so it is not known what its weights are made of; start with "
            "--load-format auto or dummy"
        )
    if isinstance(found, str):
        raise BadDataError(found)
    return found


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
