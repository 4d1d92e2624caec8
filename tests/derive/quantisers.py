"""What other people's quantisers make of weights, against a derived model. Run by test_formats.py with vLLM's packages, which bring
compressed-tensors, and with torchao.

    quantisers.py SOURCE DERIVED FORMAT    # two safetensors files

prints a JSON object: for each quantiser how many weights it was held against, and which values and scales differ.

Where a quantiser and FORMAT.md differ on purpose, this program says so: signs of NaN and of zero, and what NaN makes of a scale.
"""

import json
import sys
import types
from typing import Callable

import torch
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import load_file
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx
from transformers.integrations.finegrained_fp8 import Fp8Quantize
from vllm.model_executor.layers.quantization.utils.mxfp8_utils import _mxfp8_e4m3_quantize_torch
from vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils import ref_nvfp4_quant
from vllm.utils.deep_gemm import per_block_cast_to_fp8

FUSED = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"), ("q_a_proj", "kv_a_proj_with_mqa")]


def codes(values: torch.Tensor) -> torch.Tensor:
    """FP8 as bytes, with one NaN."""
    raw = values.contiguous().view(torch.uint8)
    return torch.where(raw == 0xFF, torch.full_like(raw, 0x7F), raw)


def same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """By element; NaN is NaN."""
    if one.is_floating_point():
        one, other = one.float(), other.float()
        return (one.view(torch.int32) == other.view(torch.int32)) | (one.isnan() & other.isnan())
    return one == other


def whole_max(weights: "dict[str, torch.Tensor]", module: str) -> torch.Tensor:
    """The largest magnitude of the module's weight and of those that engines fuse with it."""
    parent, _, last = module.rpartition(".")
    group = next((names for names in FUSED if last in names), (last,))
    found = [weights[f"{parent}.{name}.weight"] for name in group if f"{parent}.{name}.weight" in weights]
    return torch.stack([weight.float().abs().max() for weight in found]).max()


# --- quantisers: (weight, largest magnitude of its fused module) -> tensors by their names' ends ---


def vllm_block(weight: torch.Tensor, _: torch.Tensor, ue8m0: bool = False) -> "dict[str, torch.Tensor]":
    values, scales = per_block_cast_to_fp8(weight, [128, 128], use_ue8m0=ue8m0)
    return {"weight": codes(values), "weight_scale_inv": scales}


def compressed(weight: torch.Tensor, most: torch.Tensor, strategy: str) -> "dict[str, torch.Tensor]":
    arguments = QuantizationArgs(num_bits=8, type="float", strategy=strategy)
    wide = weight.float()
    amax = most.reshape(1) if strategy == "tensor" else wide.abs().amax(-1, True)
    scales, _ = calculate_qparams(-amax, amax, arguments)
    return {"weight": codes(quantize(wide, scales, None, arguments, dtype=torch.float8_e4m3fn)), "weight_scale": scales}


def vllm_mxfp8(weight: torch.Tensor, _: torch.Tensor) -> "dict[str, torch.Tensor]":
    values, scales = _mxfp8_e4m3_quantize_torch(weight)
    has_nan = weight.isnan().view(*scales.shape, 32).any(-1)
    return {"weight": codes(values), "weight_scale": torch.where(has_nan, torch.full_like(scales, 0xFF), scales)}


def torchao_mxfp8(weight: torch.Tensor, _: torch.Tensor) -> "dict[str, torch.Tensor]":
    scales, values = to_mx(weight, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
    return {"weight": codes(values), "weight_scale": scales.view(torch.uint8)}


def vllm_nvfp4(weight: torch.Tensor, most: torch.Tensor) -> "dict[str, torch.Tensor]":
    divisor = (2688 / most.clamp(min=torch.finfo(torch.float32).tiny)).reshape(1)
    divisor = torch.nan_to_num(divisor, nan=1.0, posinf=1.0)
    values, scales = ref_nvfp4_quant(weight, divisor, 16)
    # -0 keeps its sign, as in hardware; NaN is 0, which its scale makes NaN.
    signs = torch.copysign(values, torch.where(weight.isnan(), torch.ones_like(weight), weight).float())
    has_nan = values.isnan() | scales.isnan().repeat_interleave(16, dim=1)
    values = torch.where(has_nan, torch.zeros_like(values), signs)
    return {
        "weight_packed": pack_fp4_to_uint8(values),
        "weight_scale": codes(scales.to(torch.float8_e4m3fn)),
        "weight_global_scale": divisor,
    }


QUANTISERS: "dict[str, dict[str, Callable[[torch.Tensor, torch.Tensor], dict[str, torch.Tensor]]]]" = {
    "fp8-block": {"vllm": vllm_block},
    "fp8-block-ue8m0": {"vllm": lambda weight, most: vllm_block(weight, most, ue8m0=True)},
    "fp8-channel": {"compressed-tensors": lambda weight, most: compressed(weight, most, "channel")},
    "fp8-tensor": {"compressed-tensors": lambda weight, most: compressed(weight, most, "tensor")},
    "mxfp8": {"vllm": vllm_mxfp8, "torchao": torchao_mxfp8},
    "nvfp4": {"vllm": vllm_nvfp4},
}


def takes(quantiser: str, weight: torch.Tensor, most: torch.Tensor) -> bool:
    """Whether the quantiser is made for such weights."""
    finite = bool(weight.isfinite().all())
    if quantiser == "torchao":  # refuses float16; takes 1 for the scale 2^-127
        return (
            finite and weight.dtype != torch.float16 and float(weight.float().abs().view(-1, 32).amax(1).min()) > 1e-30
        )
    return True


def nearly(source: "dict[str, torch.Tensor]", derived: "dict[str, torch.Tensor]") -> "dict[str, int]":
    """transformers divides the other way round, 1 / (448 / amax), which may be the float next to it."""
    scales = steps = held = 0
    quantise = Fp8Quantize(
        types.SimpleNamespace(quantization_config=types.SimpleNamespace(weight_block_size=[128, 128], scale_fmt=None))
    )
    for name, weight in source.items():
        scale = derived.get(name + "_scale_inv")
        if (
            scale is None
            or any(side % 128 for side in weight.shape)
            or not weight.isfinite().all()
            or scale.min() < 1e-6
        ):
            continue
        made = quantise.convert({name: weight})
        held += 1
        ulps = made[name + "_scale_inv"].view(torch.int32) - scale.view(torch.int32)
        scales = max(scales, int(ulps.abs().max()))
        mine, theirs = derived[name].view(torch.uint8).int(), made[name].view(torch.uint8).int()
        steps = max(steps, int((mine - theirs).abs().max()))
    return {"held": held, "ulps of a scale": scales, "steps of a value": steps}


def main(source_file: str, derived_file: str, form: str) -> None:
    source, derived = load_file(source_file), load_file(derived_file)
    weights = {name: tensor for name, tensor in source.items() if tensor.dim() == 2}
    outcome: "dict[str, object]" = {}
    for quantiser, quantise in QUANTISERS[form].items():
        held, differing = 0, []
        for name, weight in weights.items():
            module = name.removesuffix(".weight")
            if not any(f"{module}.{end}" in derived for end in ("weight_scale_inv", "weight_scale")):
                continue
            most = whole_max(weights, module)
            if not takes(quantiser, weight, most):
                continue
            held += 1
            for end, expected in quantise(weight, most).items():
                found = derived[f"{module}.{end}"]
                if found.dtype == torch.float8_e4m3fn:
                    found = codes(found)
                assert found.shape == expected.shape, f"{module}.{end}: {found.shape}, not {expected.shape}"
                count = int((~same(found, expected)).sum())
                if count:
                    differing.append(f"{module}.{end} of {weight.dtype}: {count} of {found.numel()}")
        outcome[quantiser] = {"held": held, "differing": differing}
    if form == "fp8-block":
        outcome["transformers"] = nearly(source, derived)
    print(json.dumps(outcome))


main(*sys.argv[1:])
