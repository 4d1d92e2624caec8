"""safetensors' dtypes: their names, and what PyTorch, NumPy and ml_dtypes call them. Imports none of these."""

from typing import Any, NamedTuple

from lockstep.core.errors import bad_tensor


class _Dtype(NamedTuple):
    name: str  # safetensors' own
    bits: int  # of one element
    unit_bytes: int  # its offset must be a multiple of these
    framework_name: str = ""  # what PyTorch, NumPy and ml_dtypes call it
    type_code: str = ""  # the array interface's, for arrays that have no named dtype


_DTYPES = [
    _Dtype("BOOL", 8, 1, "bool", "b1"),
    _Dtype("U8", 8, 1, "uint8", "u1"),
    _Dtype("I8", 8, 1, "int8", "i1"),
    _Dtype("F8_E5M2", 8, 1, "float8_e5m2"),
    _Dtype("F8_E4M3", 8, 1, "float8_e4m3fn"),
    _Dtype("F8_E8M0", 8, 1, "float8_e8m0fnu"),
    _Dtype("F8_E4M3FNUZ", 8, 1, "float8_e4m3fnuz"),
    _Dtype("F8_E5M2FNUZ", 8, 1, "float8_e5m2fnuz"),
    _Dtype("I16", 16, 2, "int16", "i2"),
    _Dtype("U16", 16, 2, "uint16", "u2"),
    _Dtype("F16", 16, 2, "float16", "f2"),
    _Dtype("BF16", 16, 2, "bfloat16"),
    _Dtype("I32", 32, 4, "int32", "i4"),
    _Dtype("U32", 32, 4, "uint32", "u4"),
    _Dtype("F32", 32, 4, "float32", "f4"),
    _Dtype("I64", 64, 8, "int64", "i8"),
    _Dtype("U64", 64, 8, "uint64", "u8"),
    _Dtype("F64", 64, 8, "float64", "f8"),
    _Dtype("C64", 64, 4, "complex64", "c8"),
    _Dtype("F4", 4, 1, "float4_e2m1fn_x2"),
    _Dtype("F6_E2M3", 6, 1),
    _Dtype("F6_E3M2", 6, 1),
]
_BY_NAME = {dtype.name: dtype for dtype in _DTYPES}
_BY_FRAMEWORK_NAME = {dtype.framework_name: dtype.name for dtype in _DTYPES if dtype.framework_name}
_BY_TYPE_CODE = {dtype.type_code: dtype.name for dtype in _DTYPES if dtype.type_code}


def element_bits(dtype: str) -> int:
    """Bits of one element of a safetensors dtype; 0 for one that it does not have."""
    return _BY_NAME[dtype].bits if dtype in _BY_NAME else 0


def unit_bytes(dtype: str) -> int:
    """What the offset of a tensor of a safetensors dtype must be a multiple of."""
    return _BY_NAME[dtype].unit_bytes


def safetensors_dtype(name: str, dtype: Any) -> str:
    """What safetensors calls a framework's dtype ("BF16" for torch.bfloat16). BadDataError names the tensor."""
    framework_name = str(dtype).rpartition(".")[2]
    found = _BY_FRAMEWORK_NAME.get(framework_name)
    if found is None:
        raise bad_tensor(name, f"safetensors has no dtype for {framework_name}; convert the tensor to one it has")
    return found


def array_dtype(name: str, typestr: str) -> str:
    """What safetensors calls an array interface's type ("<f4"). BadDataError names the tensor."""
    found = _BY_TYPE_CODE.get(typestr[1:])
    if found is None:
        raise bad_tensor(name, f"safetensors has no dtype for array type {typestr}; convert the array to one it has")
    return found


def framework_name(dtype: str) -> str:
    """What PyTorch calls a safetensors dtype; "" where it has none."""
    return _BY_NAME[dtype].framework_name if dtype in _BY_NAME else ""


def known_dtypes() -> "list[str]":
    """Every dtype of safetensors."""
    return list(_BY_NAME)
