"""Descriptions and byte views of arrays, without an agent."""

import ctypes

import numpy as np
import pytest
import torch

import lockstep
from lockstep.core.tensors import assign_offsets, bytes_of, describe, meta_of

TORCH_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
}
NUMPY_DTYPES = {
    "bool": "BOOL",
    "u1": "U8",
    "i1": "I8",
    "u2": "U16",
    "i2": "I16",
    "u4": "U32",
    "i4": "I32",
    "u8": "U64",
    "i8": "I64",
    "f2": "F16",
    "f4": "F32",
    "f8": "F64",
    "c8": "C64",
}


def content(tensor) -> bytes:
    found = bytes_of("t", tensor)
    return ctypes.string_at(found.address, found.nbytes) if found.nbytes else b""


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_every_torch_dtype_is_named_as_safetensors_names_it_and_read_in_place(dtype):
    raw = torch.arange(6 * dtype.itemsize, dtype=torch.uint8).remainder(2)
    tensor = raw.view(dtype).reshape(2, 3)
    assert meta_of("t", tensor) == lockstep.TensorMeta("t", TORCH_DTYPES[dtype], (2, 3))
    assert content(tensor) == raw.numpy().tobytes()


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_every_numpy_dtype_is_named_as_safetensors_names_it_and_read_in_place(dtype):
    array = np.arange(6).astype(dtype).reshape(3, 2)
    assert meta_of("t", array) == lockstep.TensorMeta("t", NUMPY_DTYPES[dtype], (3, 2))
    assert content(array) == array.tobytes()


def test_packed_fp4_counts_elements_where_pytorch_counts_bytes():
    tensor = torch.arange(8, dtype=torch.uint8).reshape(2, 4).view(torch.float4_e2m1fn_x2)
    assert meta_of("t", tensor) == lockstep.TensorMeta("t", "F4", (2, 8))
    assert content(tensor) == bytes(range(8))


def test_scalars_and_empty_tensors_are_tensors():
    assert content(torch.tensor(1.0)) == np.float32(1).tobytes()
    assert meta_of("t", torch.tensor(1.0)).shape == ()
    assert content(torch.empty(0, 4)) == b""
    assert content(np.empty((2, 0), np.int8)) == b""


def test_an_array_with_only_an_array_interface_is_read():
    class Window:
        def __init__(self, array):
            self.array = array
            self.__array_interface__ = array.__array_interface__

    array = np.arange(4, dtype=np.int16)
    assert meta_of("t", Window(array)) == lockstep.TensorMeta("t", "I16", (4,))
    assert content(Window(array)) == array.tobytes()


@pytest.mark.parametrize(
    "tensor, remedy",
    [
        (torch.zeros(3, 4).t(), "tensor.contiguous()"),
        (torch.zeros(8)[::2], "tensor.contiguous()"),
        (torch.zeros(3, device="meta"), "has no values; load it first"),
        (torch.zeros(3, 3).to_sparse(), "tensor.to_dense()"),
        (torch.zeros(3, dtype=torch.complex64).conj(), "resolve_conj()"),
        (torch.zeros(3, dtype=torch.complex128), "no dtype for complex128"),
        (np.zeros((3, 4)).T, "numpy.ascontiguousarray"),
        (np.zeros(4, ">f4"), "big-endian"),
        (np.zeros(4, "c16"), "no dtype for complex128"),
        (np.float32(1), "numpy.asarray"),
        ([1.0, 2.0], "neither data_ptr() nor __array_interface__"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_read_in_place_is_refused_by_name_with_a_remedy(tensor, remedy):
    with pytest.raises(lockstep.BadDataError) as error:
        bytes_of("layers.3.weight", tensor)
    assert '"layers.3.weight"' in str(error.value) and remedy in str(error.value)
    assert error.value.code == 3


def test_axes_of_one_element_do_not_make_an_array_strided():
    assert content(np.arange(12, dtype=np.int8).reshape(3, 1, 4)[:, :, :]) == bytes(range(12))
    assert content(np.lib.stride_tricks.as_strided(np.arange(4, dtype=np.int8), (1, 4), (99, 1))) == bytes(range(4))


def test_offsets_follow_the_given_order_while_every_tensor_is_aligned():
    metas = describe({"a": np.zeros(2, "f4"), "b": np.zeros(4, "i1"), "c": np.zeros(1, "f4")})
    ordered, offsets = assign_offsets(metas)
    assert [meta.name for meta in ordered] == ["a", "b", "c"] and offsets == [0, 8, 12]


def test_offsets_fall_back_to_a_stable_sort_by_element_size():
    metas = describe({"a": np.zeros(3, "i1"), "b": np.zeros(1, "f4"), "c": np.zeros(1, "i1"), "d": np.zeros(1, "i8")})
    ordered, offsets = assign_offsets(metas)
    assert [meta.name for meta in ordered] == ["d", "b", "a", "c"] and offsets == [0, 8, 12, 15]


def test_descriptions_are_checked_before_the_agent_sees_them():
    with pytest.raises(lockstep.BadDataError, match='"x".*no dtype "FP8"'):
        describe([lockstep.TensorMeta("x", "FP8", (1,))])
    with pytest.raises(lockstep.BadDataError, match='"x".*negative'):
        describe([lockstep.TensorMeta("x", "F32", (-1,))])
    with pytest.raises(lockstep.BadDataError, match='"x".*whole bytes'):
        assign_offsets(describe([lockstep.TensorMeta("x", "F4", (3,))]))
