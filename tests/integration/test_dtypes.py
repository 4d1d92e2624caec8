"""Every dtype that safetensors names travels, in one model, through full and delta pulls."""

import numpy as np
import torch
from safetensors import safe_open

DTYPES = [
    torch.bfloat16,
    torch.float32,
    torch.float16,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.bool,
    torch.complex64,
]


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes, sharing its memory."""
    return tensor.reshape(-1).view(torch.uint8)


def make(dtype: torch.dtype, shape, random: torch.Generator) -> torch.Tensor:
    limit = 2 if dtype == torch.bool else 256
    content = torch.randint(0, limit, (int(np.prod(shape)) * dtype.itemsize,), dtype=torch.uint8, generator=random)
    return content.view(dtype).reshape(shape)


def mixed_model(random: torch.Generator) -> "dict[str, torch.Tensor]":
    tensors = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        tensors[f"{name}.matrix"] = make(dtype, (37, 1000), random)
        tensors[f"{name}.empty"] = make(dtype, (0, 4), random)
        if dtype != torch.float4_e2m1fn_x2:
            tensors[f"{name}.scalar"] = make(dtype, (), random)
    return tensors


def flip_some_bits(tensors, random: torch.Generator) -> None:
    for tensor in tensors.values():
        if tensor.numel():
            touched = torch.randint(0, raw(tensor).numel(), (1 + raw(tensor).numel() // 500,), generator=random)
            raw(tensor)[touched] ^= 1


def test_mixed_dtypes_scalars_and_empty_tensors_arrive_bit_for_bit(cluster):
    random = torch.Generator().manual_seed(1)
    tensors = mixed_model(random)
    agent = cluster.agent(block_bytes=65536)
    receiver = cluster.receiver(agent)
    with receiver.recorded_syncs() as syncs, agent.publisher(tensors) as publisher:
        for version in range(1, 5):
            publisher.publish(version=version, tensors=tensors)
            receiver.wait_for(tensors)
            flip_some_bits(tensors, random)
    assert [sync["mode"] for sync in syncs] == ["full", "delta", "delta", "delta"]


def test_the_published_file_gives_the_safetensors_library_the_same_tensors(cluster):
    tensors = mixed_model(torch.Generator().manual_seed(2))
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with agent.publisher(tensors) as publisher:
        publisher.publish(version=1, tensors=tensors)
        receiver.wait_for(tensors)
    with safe_open(receiver.file(), "pt") as file:
        assert set(file.keys()) == tensors.keys()
        for name, tensor in tensors.items():
            found = file.get_tensor(name)
            assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), name
            assert torch.equal(raw(found), raw(tensor)), name


def test_signed_zeros_and_nan_payloads_are_bytes_like_any_other(cluster):
    weights = np.zeros(300_000, np.float32)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with agent.publisher({"w": weights}) as publisher:
        publisher.publish(version=1, tensors={"w": weights})
        receiver.wait_for({"w": weights})
        bits = weights.view(np.uint32)
        bits[::1000] = 0x80000000  # -0.0 == 0.0
        bits[1::1000] = 0x7FC00001  # a NaN, equal to nothing
        publisher.publish(version=2, tensors={"w": weights})
        receiver.wait_for({"w": weights})
        bits[1::1000] = 0x7FC00002  # another NaN
        publisher.publish(version=3, tensors={"w": weights})
        receiver.wait_for({"w": weights})
