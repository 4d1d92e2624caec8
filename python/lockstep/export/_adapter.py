"""The part of a PEFT model that is its adapter."""

import json
import tempfile
from pathlib import Path
from typing import Any, Iterable, Tuple

from lockstep.core.errors import BadDataError
from lockstep.export._parts import Shard, ShardsPart, exported_dtype, frozen_predicate

CONFIG_FILE = "adapter_config.json"


def adapter(model: Any, *, adapter: str = "default", dtype: Any = None) -> "AdapterPart":
    """The tensors of one adapter of a ``peft.PeftModel``, sharded by FSDP2 or not, under the names that PEFT saves.

    Receivers write a PEFT directory: adapter_model.safetensors and adapter_config.json.

    Args:
        model: the PEFT model.
        adapter: which of its adapters.
        dtype: the adapter's dtype in the checkpoint, when its float32 tensors are to be rounded to it.
    """
    from lockstep.core.checkpoint import unwrapped

    model = unwrapped(model)
    if adapter not in getattr(model, "peft_config", {}):
        known = ", ".join(getattr(model, "peft_config", {})) or "none"
        raise BadDataError(f'the model has no adapter "{adapter}"; it has: {known}')
    return AdapterPart(model, adapter, dtype)


class AdapterPart(ShardsPart):
    """One adapter; made by ``adapter``."""

    def __init__(self, model: Any, adapter_name: str, dtype: Any) -> None:
        super().__init__(
            self._adapter_tensors, self._describe_tensor, frozen_predicate(None), converts=dtype is not None
        )
        self._model = model
        self._adapter_name = adapter_name
        self._dtype = dtype
        self._names = self._saved_names()

    def attachments(self) -> "dict[str, str]":
        with tempfile.TemporaryDirectory() as directory:
            self._model.peft_config[self._adapter_name].save_pretrained(directory)
            config = json.loads(Path(directory, CONFIG_FILE).read_text(encoding="utf-8"))
        config["inference_mode"] = True
        for key, value in config.items():  # PEFT writes sets, in an order that differs from rank to rank
            if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
                config[key] = sorted(value)
        return {CONFIG_FILE: json.dumps(config, indent=2, sort_keys=True)}

    def _saved_names(self) -> "dict[str, str]":
        """Parameter's name -> the name it is saved under. Called once: PEFT may ask the Hub."""
        from peft import get_peft_model_state_dict

        state = dict(self._parameters())
        saved = get_peft_model_state_dict(self._model, state_dict=dict(state), adapter_name=self._adapter_name)
        names = {id(tensor): name for name, tensor in saved.items()}
        found = {parameter: names.pop(id(tensor)) for parameter, tensor in state.items() if id(tensor) in names}
        if names:
            raise BadDataError(f"PEFT saves {', '.join(names.values())}, which are no parameters of the model")
        return found

    def _adapter_tensors(self) -> "Iterable[Tuple[str, Any]]":
        return [(self._names[name], tensor) for name, tensor in self._parameters() if name in self._names]

    def _parameters(self) -> "Iterable[Tuple[str, Any]]":
        from lockstep.core.checkpoint import sharded_parameters

        return sharded_parameters(self._model)

    def _describe_tensor(self, name: str, tensor: Any) -> Shard:
        from lockstep.export._dtensors import shard_of

        return shard_of(name, tensor, exported_dtype(name, tensor, self._dtype), frozen=False)
