"""safetensors' dtypes: their names, and what PyTorch, NumPy and ml_dtypes call them. Imports none of these."""

from typing import Any

from lockstep.core.errors import bad_tensor

# safetensors dtype -> (bits of one element, bytes of the unit that its offset must be a multiple of).
_DTYPES = {
    "BOOL": (8, 1),
    "U8": (8, 1),
    "I8": (8, 1),
    "F8_E5M2": (8, 1),
    "F8_E4M3": (8, 1),
    "F8_E8M0": (8, 1),
    "F8_E4M3FNUZ": (8, 1),
    "F8_E5M2FNUZ": (8, 1),
    "I16": (16, 2),
    "U16": (16, 2),
    "F16": (16, 2),
    "BF16": (16, 2),
    "I32": (32, 4),
    "U32": (32, 4),
    "F32": (32, 4),
    "I64": (64, 8),
    "U64": (64, 8),
    "F64": (64, 8),
    "C64": (64, 4),
    "F4": (4, 1),
    "F6_E2M3": (6, 1),
    "F6_E3M2": (6, 1),
}

# What PyTorch, NumPy and ml_dtypes call them.
_FRAMEWORK_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "int64": "I64",
    "uint64": "U64",
    "float64": "F64",
    "complex64": "C64",
    "float4_e2m1fn_x2": "F4",
}

_NAMES_IN_FRAMEWORKS = {name: framework for framework, name in _FRAMEWORK_NAMES.items()}

# Array interface type codes, for arrays that have no named dtype.
_TYPE_CODES = {
    "b1": "BOOL",
    "u1": "U8",
    "i1": "I8",
    "u2": "U16",
    "i2": "I16",
    "f2": "F16",
    "u4": "U32",
    "i4": "I32",
    "f4": "F32",
    "u8": "U64",
    "i8": "I64",
    "f8": "F64",
    "c8": "C64",
}


def element_bits(dtype: str) -> int:
    """Bits of one element of a safetensors dtype; 0 for one that it does not have."""
    return _DTYPES.get(dtype, (0, 0))[0]


def unit_bytes(dtype: str) -> int:
    """What the offset of a tensor of a safetensors dtype must be a multiple of."""
    return _DTYPES[dtype][1]


def safetensors_dtype(name: str, dtype: Any) -> str:
    """What safetensors calls a framework's dtype ("BF16" for torch.bfloat16). BadDataError names the tensor."""
    framework_name = str(dtype).rpartition(".")[2]
    found = _FRAMEWORK_NAMES.get(framework_name)
    if found is None:
        raise bad_tensor(name, f"safetensors has no dtype for {framework_name}; convert the tensor to one it has")
    return found


def array_dtype(name: str, typestr: str) -> str:
    """What safetensors calls an array interface's type ("<f4"). BadDataError names the tensor."""
    found = _TYPE_CODES.get(typestr[1:])
    if found is None:
        raise bad_tensor(name, f"safetensors has no dtype for array type {typestr}; convert the array to one it has")
    return found


def framework_name(dtype: str) -> str:
    """What PyTorch calls a safetensors dtype; "" where it has none."""
    return _NAMES_IN_FRAMEWORKS.get(dtype, "")


def known_dtypes() -> "list[str]":
    """Every dtype of safetensors."""
    return list(_DTYPES)
