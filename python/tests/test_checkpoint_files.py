"""A layout by the headers of a checkpoint's files: what is read, and what is refused."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

import lockstep
from lockstep.core.checkpoint_files import stored_tensors


def write_header(path, header) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def test_tensors_are_in_the_order_of_the_data(tmp_path):
    save_file({"b": np.zeros((2, 3), np.float32), "a": np.zeros((), np.int64)}, tmp_path / "model.safetensors")
    expected = [lockstep.TensorMeta("a", "I64", ()), lockstep.TensorMeta("b", "F32", (2, 3))]
    assert [stored.meta for stored in stored_tensors(tmp_path)] == expected


def test_no_data_is_read(tmp_path):
    entry = {"dtype": "BF16", "shape": [1 << 20, 1 << 20], "data_offsets": [0, 1 << 41]}
    write_header(tmp_path / "model.safetensors", {"big": entry, "__metadata__": {"format": "pt"}})
    assert [stored.meta for stored in stored_tensors(tmp_path)] == [
        lockstep.TensorMeta("big", "BF16", (1 << 20, 1 << 20))
    ]


def test_a_file_of_the_index_that_is_not_there_is_named(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    with pytest.raises(lockstep.NotFoundError, match="there is no .*/model-1.safetensors; give a directory"):
        stored_tensors(tmp_path)


def test_a_tensor_that_the_index_promises_in_vain_is_named(tmp_path):
    save_file({"a": np.zeros(3)}, tmp_path / "model-1.safetensors")
    save_file({"b": np.zeros(3)}, tmp_path / "model-2.safetensors")
    files = {"a": "model-1.safetensors", "b": "model-2.safetensors", "mtp.0": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    refusal = 'tensor "mtp.0": .*/model.safetensors.index.json says that model-2.safetensors has it; it does not'
    with pytest.raises(lockstep.BadDataError, match=refusal):
        stored_tensors(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("model.safetensors.index.json", b'["a"]', "index.json is no index of a checkpoint"),
        ("model.safetensors.index.json", b"{", "index.json is no index of a checkpoint"),
        ("model.safetensors", b"a file that is something else", "its header would have [0-9]+ bytes"),
        ("model.safetensors", struct.pack("<Q", 5) + b"{", "model.safetensors is no safetensors file"),
        ("model.safetensors", struct.pack("<Q", 8) + b'{"a": 1}', "its safetensors header is not understood"),
        ("model.safetensors", b"", "model.safetensors is no safetensors file"),
    ],
)
def test_what_is_no_checkpoint_is_refused_by_file(tmp_path, name, content, text):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(lockstep.BadDataError, match=text):
        stored_tensors(tmp_path)


def test_a_publisher_of_a_directory_without_a_checkpoint_says_what_is_missing(tmp_path):
    with pytest.raises(lockstep.NotFoundError, match="there is no .*/model.safetensors"):
        lockstep.Publisher.from_stream(tmp_path, model="actor", socket="/nowhere.sock")
