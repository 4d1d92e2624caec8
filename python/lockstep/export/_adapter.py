"""adapter: the part of a PEFT model that is its adapter. For Publisher.from_adapter, and trainers' programs."""

import json
import tempfile
from pathlib import Path
from typing import Any, Iterable, Tuple

from lockstep.core.errors import BadDataError
from lockstep.export._parts import FrozenTensors, Part, Shard, ShardsPart, exported_dtype
from lockstep.export._piece import shard_of

CONFIG_FILE = "adapter_config.json"

# A package with modules that hold adapters -> what to do with a model that has such modules.
_REMEDIES = {
    "peft.": "export the adapter (from_adapter), or merge it into the model first (merge_and_unload)",
    "megatron.bridge.peft.": "publish what the bridge's export_adapter_weights yields, or merge it first (LoRAMerge)",
}


def adapter(model: Any, *, adapter: str = "default", dtype: Any = None) -> Part:
    """The tensors of one adapter of a ``peft.PeftModel``, sharded by FSDP2 or not, under the names that PEFT saves.

    Receivers write a PEFT directory: adapter_model.safetensors and adapter_config.json.

    Args:
        model: the PEFT model.
        adapter: which of its adapters.
        dtype: the adapter's dtype in the checkpoint, when its float32 tensors are to be rounded to it.
    """
    from lockstep.core.checkpoint import check_module, sharded_parameters, unwrapped

    for chunk in model if isinstance(model, (list, tuple)) else [model]:
        check_module(chunk)
        refuse_adapters(chunk, "megatron.bridge.peft.")
    model = unwrapped(model)
    if adapter not in getattr(model, "peft_config", {}):
        known = ", ".join(getattr(model, "peft_config", {})) or "none"
        raise BadDataError(f'the {type(model).__name__} has no adapter "{adapter}"; it has: {known}')
    names = _saved_names(model, adapter)

    def pairs() -> "Iterable[Tuple[str, Any]]":
        return [(saved, tensor) for name, tensor in sharded_parameters(model) for saved in names.get(name, ())]

    def describe(name: str, tensor: Any) -> Shard:
        return shard_of(name, tensor, exported_dtype(name, tensor, dtype), frozen=False)

    def attachments() -> "dict[str, str]":
        return _configuration(model.peft_config[adapter])

    return ShardsPart(pairs, describe, FrozenTensors(None), converts=dtype is not None, attachments=attachments)


def refuse_adapters(model: Any, packages: "str | Tuple[str, ...]" = tuple(_REMEDIES)) -> None:
    """BadDataError for a model with an adapter of one of ``packages`` in it, with what to do instead."""
    for name, module in model.named_modules():
        kind = f"{type(module).__module__}."
        if kind.startswith(packages):
            what = f'module "{name}"' if name else "the model"
            remedy = next(remedy for package, remedy in _REMEDIES.items() if kind.startswith(package))
            raise BadDataError(f"{what} belongs to an adapter ({kind}{type(module).__name__}): {remedy}")


def _saved_names(model: Any, adapter: str) -> "dict[str, list[str]]":
    """Parameter's name -> the names it is saved under. Called once: PEFT may ask the Hub."""
    from peft import get_peft_model_state_dict

    from lockstep.core.checkpoint import sharded_parameters, without_wrappers

    parameters = {id(tensor): name for name, tensor in sharded_parameters(model)}
    with without_wrappers(model) as plain:
        state = plain.state_dict(keep_vars=True)
        saved = get_peft_model_state_dict(plain, state_dict=state, adapter_name=adapter)
    names: "dict[str, list[str]]" = {}
    computed = []
    for name, tensor in saved.items():
        if id(tensor) in parameters:
            names.setdefault(parameters[id(tensor)], []).append(name)
        else:
            computed.append(name)
    if computed or not names:
        kind = type(model.peft_config[adapter]).__name__
        raise BadDataError(
            f'adapter "{adapter}" ({kind}): PEFT saves {", ".join(computed) or "nothing"} of it, no '
            "parameters of the model; give what get_peft_model_state_dict returns to a Publisher"
        )
    return names


def _configuration(config: Any) -> "dict[str, str]":
    """The file that PEFT saves of ``config``, the same on every rank."""
    with tempfile.TemporaryDirectory() as directory:
        config.save_pretrained(directory)
        saved = json.loads(Path(directory, CONFIG_FILE).read_text(encoding="utf-8"))
    saved["inference_mode"] = True
    saved["auto_mapping"] = None  # names the module of the trainer's class, and code does not travel
    for key, value in saved.items():  # PEFT writes sets, in an order that differs from rank to rank
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            saved[key] = sorted(value)
    return {CONFIG_FILE: json.dumps(saved, indent=2, sort_keys=True)}
