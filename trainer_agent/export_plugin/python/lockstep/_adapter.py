"""The part of a PEFT model that is its adapter."""

import json
import tempfile
from pathlib import Path
from typing import Any, Iterable, Tuple

from lockstep._errors import BadDataError
from lockstep._parts import Shard, ShardsPart, exported_dtype

CONFIG_FILE = "adapter_config.json"


def adapter(model: Any, *, adapter: str = "default", dtype: Any = None) -> "AdapterPart":
    """The tensors of one adapter of a ``peft.PeftModel``, sharded by FSDP2 or not, under the names that PEFT saves.

    Receivers write a PEFT directory: adapter_model.safetensors and adapter_config.json.

    Args:
        model: the PEFT model.
        adapter: which of its adapters.
        dtype: the adapter's dtype in the checkpoint, when its float32 tensors are to be rounded to it.
    """
    if adapter not in getattr(model, "peft_config", {}):
        known = ", ".join(getattr(model, "peft_config", {})) or "none"
        raise BadDataError(f'the model has no adapter "{adapter}"; it has: {known}')
    return AdapterPart(model, adapter, dtype)


class AdapterPart(ShardsPart):
    """One adapter; made by ``adapter``."""

    def __init__(self, model: Any, adapter_name: str, dtype: Any) -> None:
        super().__init__(self._adapter_tensors, self._describe_tensor, converts=dtype is not None)
        self._model = model
        self._adapter_name = adapter_name
        self._dtype = dtype

    def attachments(self) -> "dict[str, str]":
        with tempfile.TemporaryDirectory() as directory:
            self._model.peft_config[self._adapter_name].save_pretrained(directory)
            config = json.loads(Path(directory, CONFIG_FILE).read_text(encoding="utf-8"))
        config["inference_mode"] = True
        return {CONFIG_FILE: json.dumps(config, indent=2, sort_keys=True)}

    def _adapter_tensors(self) -> "Iterable[Tuple[str, Any]]":
        from peft import get_peft_model_state_dict

        from lockstep._fsdp import sharded_parameters

        state = dict(sharded_parameters(self._model))
        return get_peft_model_state_dict(self._model, state_dict=state, adapter_name=self._adapter_name).items()

    def _describe_tensor(self, name: str, tensor: Any) -> Shard:
        from lockstep._dtensors import shard_of

        return shard_of(name, tensor, exported_dtype(name, tensor, self._dtype), frozen=False)
