"""Derived models: what a trainer asks the agent to make of its versions. For Publisher's ``derive``."""

import dataclasses
import json
from typing import Any, Mapping, Sequence

from lockstep.core.errors import BadDataError
from lockstep.core.hf_config import config_json

REQUESTS = "lockstep_derive.json"  # the attachment that the agent reads: common/derive/FORMAT.md

# What a configuration has of the process that read it. Two runs of a training are to ask for the same.
_OF_A_PROCESS = ("_name_or_path", "transformers_version", "use_cache", "_attn_implementation")


@dataclasses.dataclass(frozen=True)
class Quantised:
    """A model quantised as the checkpoint with this config.json is. ``Fp8Block`` and the others need no such checkpoint.

    Attributes:
        config: the model's config.json, as a transformers configuration, a dict or a path; None: that of the model that is
            published, where the publisher knows it (``from_module``, ``from_fsdp``, ``from_megatron`` with ``hf_config``).
        leave_out: exact names of modules, beside those that are never quantised, whose weights stay as they are.
    """

    config: Any = None
    leave_out: Sequence[str] = ()

    _quantization = ""  # quantization_config, as JSON; empty: that of ``config``

    def _config_of(self, model: str, known: Any) -> "dict[str, Any]":
        """The config.json of the derived model. ``known``: of the model that is published, or None."""
        given = known if self.config is None else self.config
        if given is None:
            kind = type(self).__name__
            raise BadDataError(
                f'derive: {model}: give the model\'s config, as lockstep.{kind}("DIRECTORY/config.json")'
            )
        config: "dict[str, Any]" = json.loads(config_json(given, f"derive: {model}: config"))
        for key in _OF_A_PROCESS:
            config.pop(key, None)
        quantization = json.loads(self._quantization) if self._quantization else config.get("quantization_config")
        if not isinstance(quantization, dict):
            raise BadDataError(
                f"derive: {model}: config has no quantization_config, which a quantised checkpoint's has"
            )
        if isinstance(self.leave_out, str):
            raise BadDataError(f"derive: {model}: leave_out is a list of names, not {self.leave_out!r}")
        if self.leave_out:
            key = _key_of(quantization)
            quantization[key] = [*(quantization.get(key) or ()), *self.leave_out]
        return {**config, "quantization_config": quantization}


def _key_of(quantization: "dict[str, Any]") -> str:
    """Of the list of modules that are left out."""
    method = quantization.get("quant_method")
    return {"fp8": "modules_to_not_convert", "mxfp8": "ignored_layers"}.get(str(method), "ignore")


def _compressed(format: str, weights: "dict[str, Any]", activations: "dict[str, Any] | None") -> str:
    weights = {**weights, "type": "float", "symmetric": True, "dynamic": False}
    group: "dict[str, Any]" = {"targets": ["Linear"], "weights": weights}
    if activations is not None:
        group["input_activations"] = {**activations, "num_bits": 8, "type": "float", "symmetric": True, "dynamic": True}
    return json.dumps(
        {
            "quant_method": "compressed-tensors",
            "format": format,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
        }
    )


class Fp8Block(Quantised):
    """FP8 by blocks of 128 × 128 with float32 scales, as DeepSeek-V3 and Qwen3-FP8: what most engines serve fastest."""

    _quantization = json.dumps(
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    )


class Fp8BlockUe8m0(Quantised):
    """``Fp8Block`` with scales that are powers of two, as DeepSeek-V3.1: fewer of them change from version to version."""

    _quantization = json.dumps({**json.loads(Fp8Block._quantization), "scale_fmt": "ue8m0"})


class Fp8Channel(Quantised):
    """FP8 with a scale for each row, as compressed-tensors names and stores it."""

    _quantization = _compressed("float-quantized", {"num_bits": 8, "strategy": "channel"}, {"strategy": "token"})


class Fp8Tensor(Quantised):
    """FP8 with one scale for each weight, and for weights that engines fuse."""

    _quantization = json.dumps({"quant_method": "fp8", "activation_scheme": "dynamic"})


class Mxfp8(Quantised):
    """MXFP8: groups of 32 with scales that are powers of two. For vLLM; SGLang gives the scales another name, which a
    ``Quantised`` with ``"quant_method": "mxfp8"`` has."""

    _quantization = json.dumps({"quant_method": "modelopt", "quant_algo": "MXFP8"})


class Nvfp4(Quantised):
    """NVFP4 weights: groups of 16 with FP8 scales, and one float32. Activations are not quantised."""

    _quantization = _compressed(
        "nvfp4-pack-quantized",
        {"num_bits": 4, "strategy": "tensor_group", "group_size": 16, "scale_dtype": "torch.float8_e4m3fn"},
        None,
    )


def with_requests(
    attachments: "Mapping[str, str] | None", derive: "Mapping[str, Quantised] | None", known: Any
) -> "dict[str, str]":
    """The attachments of a model that is published, with the request for what derives from it. ``known``: its config."""
    files = dict(attachments or {})
    if derive is not None and not isinstance(derive, Mapping):
        raise BadDataError(f"derive: give a mapping of names to Quantised, not {derive!r}")
    if derive:
        if REQUESTS in files:
            raise BadDataError(f"derive: the attachment {REQUESTS} is given, too; give one of them")
        for model, quantised in derive.items():
            if not isinstance(quantised, Quantised):
                raise BadDataError(f"derive: {model}: give a Quantised, such as lockstep.Fp8Block(); not {quantised!r}")
        asked = {model: quantised._config_of(model, known) for model, quantised in derive.items()}
        files[REQUESTS] = json.dumps(asked, sort_keys=True)
    return files
