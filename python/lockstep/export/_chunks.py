"""Megatron-core's model chunks, before they are read. For the parts that are made of them."""

from typing import Any, Sequence


def chunks_of(model_chunks: Any) -> "list[Any]":
    """A rank's model, or its chunks, as a list of modules. BadDataError: one is no module."""
    from lockstep.core.checkpoint import check_module

    chunks = list(model_chunks) if isinstance(model_chunks, (list, tuple)) else [model_chunks]
    for chunk in chunks:
        check_module(chunk)
    return chunks


def finish_gathers(chunks: "Sequence[Any]") -> None:
    """With overlap_param_gather an optimizer's step leaves every rank with its own slice of the new parameters."""
    for chunk in chunks:
        if getattr(getattr(chunk, "ddp_config", None), "overlap_param_gather", False):
            chunk.start_param_sync(force_sync=True)


def keep_router_biases_exact(chunk: Any) -> None:
    """As Megatron does before it runs, loads or saves them: in float32, even if the whole model was made bfloat16."""
    for module in chunk.modules():
        keep = getattr(module, "_maintain_float32_expert_bias", None)
        if keep is not None:
            keep()


def tensors_of(chunks: "Sequence[Any]") -> "dict[str, Any]":
    """Parameters and buffers, by the chunk's number and their names."""
    return {
        f"{number}.{name}": tensor
        for number, chunk in enumerate(chunks)
        for name, tensor in (*chunk.named_parameters(), *chunk.named_buffers())
    }
