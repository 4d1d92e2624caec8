"""The part of a model that Megatron-core holds."""

import ctypes
import json
import os
import re
from typing import Any, Callable, Iterable, Mapping, Sequence, Tuple

from lockstep.core import abi, arguments
from lockstep.core.errors import BadDataError
from lockstep.core.hf_config import config_json
from lockstep.core.tensors import LocalTensor, TensorMeta, described, local_of
from lockstep.export._adapter import refuse_adapters
from lockstep.export._bridges import exporter_by, exporter_of
from lockstep.export._chunks import chunks_of, finish_gathers, keep_router_biases_exact, tensors_of
from lockstep.export._parts import DESCRIPTION_FORMAT, Frozen, FrozenTensors, Part, any_requires_gradient
from lockstep.export._ties import came_apart

_LAYER = re.compile(r"(?P<before>(?:^|\.)decoder\.layers\.)(?P<local>\d+)(?=\.|$)")

_PLACE_KEYS = (
    "tensor_rank",
    "tensor_size",
    "pipeline_rank",
    "expert_rank",
    "expert_size",
    "expert_tensor_rank",
    "expert_tensor_size",
)

# What a TransformerConfig may ask for that makes parameters no copy of HuggingFace's: option -> why.
_REFUSED_OPTIONS = {
    "layernorm_zero_centered_gamma": "HuggingFace's norm weights are these plus one, which is arithmetic and no copy",
    "moe_mlp_glu_interleave_size": "gate and up rows are interleaved",
    "moe_single_grouped_weight": "all experts share one weight",
    "attention_output_gate": "queries carry an output gate",
    "fp8_param": "primary weights are kept in fp8",
    "fp4_param": "primary weights are kept in fp4",
}

# Families that rotate neighbours in HuggingFace. (DeepSeek does, too: Megatron's latent attention sees to it.)
_INTERLEAVED_FAMILIES = frozenset({"glm4"})


def megatron(
    model_chunks: Any,
    hf_config: Any = None,
    *,
    place: "Mapping[str, int] | None" = None,
    convert: bool = False,
    frozen: Frozen = None,
    bridge: Any = None,
    recorded_from: "Callable[[], Iterable[Tuple[str, Any]]] | None" = None,
    checkpoint: "str | os.PathLike[str] | None" = None,
    ignore: "str | Iterable[str]" = (),
) -> Part:
    """The parameters of Megatron-core model chunks, to be exported by their family's rules, or as a bridge exports them.

    A bridge's exporter runs some times when the publisher is made, on all ranks together, over values that say where they are. From
    then on each rank copies its own parts, without a gather. What was found is kept in ``$XDG_CACHE_HOME/lockstep``, or
    ``~/.cache/lockstep``. The next start proves it by one pass.

    Args:
        model_chunks: this rank's model, or its list of virtual-pipeline chunks; DDP and precision wrappers are fine. With
            ``recorded_from`` also a function that returns the rank's tensors, by name: all that the generator reads.
        hf_config: the HuggingFace configuration of the model: a transformers object, a dict or a path. MTP layers that
            it has and the trainer was built without are no part of what is exported.
        place: this rank's place in its groups, when ``megatron.core.parallel_state`` does not know it: tensor_rank,
            tensor_size, pipeline_rank, expert_rank, expert_size, expert_tensor_rank, expert_tensor_size.
        convert: round float32 parameters to the configuration's bfloat16; else a parameter's dtype must be that one.
        frozen: as for ``lockstep.fsdp``, by their names in the description; with a bridge by HuggingFace names.
        bridge: in place of ``hf_config`` and ``place``: a Megatron-Bridge or mbridge object of the model.
        recorded_from: in place of ``bridge``: returns a generator of (HuggingFace name, whole tensor) over ``model_chunks``. Every
            rank gives the same names in the same order.
        checkpoint: a directory, or a model of the HuggingFace hub that was downloaded, read on rank 0: a bridge must give the names
            and shapes that it has. None: what the bridge was made from, if it is on that host.
        ignore: patterns of names that are no part of what is published, be they in the checkpoint, given by the bridge or both.
    """
    if sum(given is not None for given in (hf_config, bridge, recorded_from)) != 1:
        raise BadDataError("megatron: give hf_config, bridge or recorded_from, one of them")
    if hf_config is None:
        ignored = arguments.matching("ignore", ignore)
        return _recorded_part(model_chunks, bridge, recorded_from, checkpoint, ignored, convert, frozen)
    if checkpoint is not None or ignore:
        raise BadDataError("megatron: checkpoint and ignore are of a bridge; leave them out")
    chunks = chunks_of(model_chunks)
    config = _as_built(config_json(hf_config), chunks)
    for chunk in chunks:
        refuse_adapters(chunk)
        _refuse_options(chunk, json.loads(config))
        keep_router_biases_exact(chunk)
    return MegatronPart(chunks, config, dict(place or _place_of_this_rank()), convert, frozen)


def _recorded_part(
    model_chunks: Any,
    bridge: Any,
    recorded_from: "Callable[[], Iterable[Tuple[str, Any]]] | None",
    checkpoint: "str | os.PathLike[str] | None",
    ignored: "Callable[[str], bool]",
    convert: bool,
    frozen: Frozen,
) -> Part:
    from lockstep.export._recorded import RecordedPart  # which needs PyTorch

    if recorded_from is not None and callable(model_chunks) and not hasattr(model_chunks, "named_parameters"):
        exporter = exporter_by(recorded_from, checkpoint, ignored)
        return RecordedPart(model_chunks, lambda: None, exporter, convert=convert, frozen=frozen)
    chunks = chunks_of(model_chunks)
    for chunk in chunks:
        refuse_adapters(chunk)
        keep_router_biases_exact(chunk)
    exporter = (
        exporter_of(bridge, chunks, checkpoint, ignored)
        if recorded_from is None
        else exporter_by(recorded_from, checkpoint, ignored)
    )
    return RecordedPart(
        lambda: tensors_of(chunks), lambda: finish_gathers(chunks), exporter, convert=convert, frozen=frozen
    )


def tensors_meta(hf_config: Any) -> "list[Tuple[TensorMeta, int]]":
    """The metadata-only dry run: every HuggingFace tensor that ``hf_config`` gives, with byte offsets, in export order.

    Needs no model, no process group and no communication. BadDataError names the configuration's key that is wrong.
    """
    library = abi.load()
    place = {key: int(key.endswith("_size")) for key in _PLACE_KEYS}
    part = {"kind": "megatron", "config": json.loads(config_json(hf_config)), "place": place, "parameters": []}
    description = json.dumps({"format": DESCRIPTION_FORMAT, "on_agent_host": True, "parts": [part]}).encode()
    text = ctypes.c_void_p()
    abi.raise_failure(library.lockstep_tensors_meta((ctypes.c_char_p * 1)(description), 1, ctypes.byref(text)))
    try:
        return described(json.loads(ctypes.string_at(text)))
    finally:
        library.lockstep_free(text)


class MegatronPart(Part):
    """Model chunks with their place; made by ``megatron``."""

    def __init__(
        self, chunks: "Sequence[Any]", config: str, place: "dict[str, int]", convert: bool, frozen: Frozen
    ) -> None:
        self.converts = convert
        self._chunks = chunks
        self.config = json.loads(config)
        self._place = place
        self.frozen = FrozenTensors(frozen)

    def describe(self) -> "dict[str, Any]":
        parameters = []
        for name, tensor in self._parameters():
            local = local_of(name, tensor)
            entry: "dict[str, Any]" = {"name": name, "dtype": local.dtype, "shape": list(local.shape)}
            if self.frozen.has(name, tensor):
                entry["frozen"] = True
            parameters.append(entry)
        return {
            "kind": "megatron",
            "config": self.config,
            "place": self._place,
            "parameters": parameters,
        }

    def prepare(self) -> None:
        finish_gathers(self._chunks)

    def trains(self) -> bool:
        return any_requires_gradient(self._parameters())

    def locals(self) -> "list[LocalTensor]":
        return [
            local_of(name, tensor, frozen=self.frozen.has(name, tensor), converts=self.converts)
            for name, tensor in self._parameters()
        ]

    def _parameters(self) -> "Iterable[Tuple[str, Any]]":
        """(name with global layer numbers, tensor) of parameters and of the buffers that belong to the weights."""
        seen: "set[str]" = set()
        for chunk in self._chunks:
            layers = _global_layers(chunk)
            named = list(chunk.named_parameters())
            named += [(name, buffer) for name, buffer in chunk.named_buffers() if name.endswith(".expert_bias")]
            for name, tensor in named:
                whole_name = _with_global_layer(name, layers)
                if whole_name in seen:
                    raise BadDataError(f'parameter "{whole_name}" is in two model chunks of this rank')
                seen.add(whole_name)
                yield whole_name, tensor


def _stripped(name: str) -> str:
    """Without the prefixes of wrappers."""
    while name.startswith("module."):
        name = name[len("module.") :]
    return name


def _global_layers(chunk: Any) -> "dict[int, int]":
    """Local number -> global number (from 0) of a chunk's decoder layers, from the layers themselves."""
    layers = {}
    for name, module in chunk.named_modules():
        match = _LAYER.search(_stripped(name))
        if match and match.end() == len(_stripped(name)) and not _in_mtp(name):
            number = getattr(module, "layer_number", None)
            if number is None:
                raise BadDataError(f'module "{name}": a decoder layer without layer_number; give Megatron-core models')
            layers[int(match["local"])] = int(number) - 1
    return layers


def _in_mtp(name: str) -> bool:
    return "mtp.layers." in name


def _with_global_layer(name: str, layers: "Mapping[int, int]") -> str:
    name = _stripped(name)
    match = None if _in_mtp(name) else _LAYER.search(name)
    if match is None:
        return name
    local = int(match["local"])
    if local not in layers:
        raise BadDataError(f'parameter "{name}": layer {local} of its chunk is not a module')
    return f"{name[: match.start('local')]}{layers[local]}{name[match.end('local') :]}"


def _config_of(chunk: Any) -> Any:
    return _attribute_of(chunk, "config")


def _attribute_of(chunk: Any, name: str) -> Any:
    """Of the chunk, or of what its wrappers wrap; None when nothing has it."""
    module: Any = chunk
    while not hasattr(module, name) and hasattr(module, "module"):
        module = module.module
    return getattr(module, name, None)


def _as_built(config: str, chunks: "Sequence[Any]") -> str:
    """With as many MTP layers as the trainer has: many leave out those that the checkpoint came with."""
    values = json.loads(config)
    built = getattr(_config_of(chunks[0]) if chunks else None, "mtp_num_layers", 0)
    if values.get("num_nextn_predict_layers") and built is None:
        values["num_nextn_predict_layers"] = 0
    return json.dumps(values, sort_keys=True)


def _refuse_options(chunk: Any, hf_config: "Mapping[str, Any]") -> None:
    config = _config_of(chunk)
    for option, reason in _REFUSED_OPTIONS.items():
        if getattr(config, option, None):
            raise BadDataError(f"the Megatron option {option} is not supported: {reason}")
    family = hf_config.get("model_type")
    interleaved = getattr(config, "rotary_interleaved", None)
    if interleaved is not None and bool(interleaved) != (family in _INTERLEAVED_FAMILIES):
        raise BadDataError(
            f"the Megatron option rotary_interleaved is {interleaved}, which is not supported for {family}: in HuggingFace "
            f"it rotates {'halves' if interleaved else 'neighbours'}"
        )
    shared = _attribute_of(chunk, "share_embeddings_and_output_weights")
    tied = hf_config.get("tie_word_embeddings")
    if shared is not None and tied is not None and bool(shared) != bool(tied):
        if tied:
            again = "build the Megatron model with share_embeddings_and_output_weights=True"
            raise came_apart("output_layer.weight", "embedding.word_embeddings.weight", again=again)
        raise BadDataError(
            f"tie_word_embeddings is {tied} in hf_config, but the Megatron model was built with "
            f"share_embeddings_and_output_weights={shared}: its head would be missing"
        )


def process_groups() -> Any:
    """megatron.core.parallel_state. BadDataError where it has no groups."""
    from megatron.core import parallel_state as groups

    if not groups.model_parallel_is_initialized():
        raise BadDataError(
            "Megatron has no process groups yet; call megatron.core.parallel_state.initialize_model_parallel first, or "
            "give place"
        )
    return groups


def _place_of_this_rank() -> "dict[str, int]":
    groups = process_groups()
    return dict(
        zip(
            _PLACE_KEYS,
            (
                groups.get_tensor_model_parallel_rank(),
                groups.get_tensor_model_parallel_world_size(),
                groups.get_pipeline_model_parallel_rank(),
                groups.get_expert_model_parallel_rank(),
                groups.get_expert_model_parallel_world_size(),
                groups.get_expert_tensor_parallel_rank(),
                groups.get_expert_tensor_parallel_world_size(),
            ),
        )
    )
