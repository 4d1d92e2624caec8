"""The tensors of a transformers model's checkpoints, which are not always those that the model has in memory."""

import gc
import sys
from typing import Any, Iterable

from lockstep.core.errors import BadDataError
from lockstep.core.tensors import TensorMeta
from lockstep.export._ties import refuse_ties_that_came_apart


def saved_tensors(model: Any) -> "dict[str, Any]":
    """The tensors that ``save_pretrained`` writes, name to tensor, of a model that this process holds whole.

    transformers stacks the experts of a layer, and renames some tensors, when it loads a checkpoint; engines want them
    as checkpoints have them. Wrappers around the model or parts of it are fine. These are views of the parameters, or
    copies where saving computes: call it for every version.

    BadDataError: the configuration ties two tensors that are no longer one.
    """
    from lockstep.core.checkpoint import as_saved, check_module, sharded_parameters

    check_module(model)
    refuse_ties_that_came_apart(model)
    tensors = {name: tensor.detach() for name, tensor in sharded_parameters(model)}
    return {name: tensor.contiguous() for name, tensor in as_saved(model, tensors).items()}


def refuse_names_in_memory(metas: "Iterable[TensorMeta]") -> None:
    """BadDataError for tensors that a transformers model of this process has in memory and no checkpoint of it has, and
    for ties of such a model that came apart."""
    transformers = sys.modules.get("transformers.modeling_utils")
    if transformers is None:
        return
    from lockstep.core.checkpoint import is_given, only_in_memory

    shapes = {meta.name: meta.shape for meta in metas}

    def reason() -> "str | None":
        for model in [found for found in gc.get_objects() if issubclass(type(found), transformers.PreTrainedModel)]:
            if not is_given(model, shapes):
                continue
            try:
                refuse_ties_that_came_apart(model)
            except BadDataError as error:
                return str(error)
            for name in only_in_memory(model, shapes):
                return (
                    f'tensor "{name}": a {type(model).__name__} of this process has it in memory, but its checkpoints, '
                    "which engines load, have others instead: publish lockstep.saved_tensors(model)"
                )
        return None

    if reason() is None:
        return
    gc.collect()  # a model that nothing reaches any more is no reason
    refusal = reason()
    if refusal is not None:
        raise BadDataError(refusal)
