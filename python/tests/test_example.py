"""The example server: what it refuses, and what it keeps and waits for. tests/engines/test_serving.py has its answers."""

import json
import socket
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from fake_receiver import RUN, FakeReceiver
from transformers import AutoConfig

import lockstep

EXAMPLE = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLE))
import serve  # noqa: E402


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = AutoConfig.for_model("llama", num_key_value_heads=2, vocab_size=64, dtype="float32", **shape)
    config.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def post(port: int, body: object) -> dict:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_requests_that_make_no_sense_are_answered_400_and_a_closed_follower_503(checkpoint, tmp_path):
    receiver = FakeReceiver(tmp_path / "engine.sock")
    model = serve.build_model(str(checkpoint))
    with lockstep.Follower(model, model="actor", socket=receiver.path) as follower:
        server = serve.Server(model, follower)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        rank = receiver.accept()
        rank.attached()
        rank.pause(1, "step 1")
        rank.fill(0.0, 1)
        rank.serve(1)
        for wrong in ([], {}, {"prompt_ids": [64]}, {"prompt_ids": [1], "max_new_tokens": 0}, {"prompt_ids": ["a"]}):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                post(server.port, wrong)
        answer = post(server.port, {"prompt_ids": [1]})
        assert (answer["run"], answer["version"], answer["label"]) == (RUN, 1, "step 1")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        post(server.port, {"prompt_ids": [1]})
    server.shutdown()
    thread.join()
    receiver.close()


def test_only_the_last_waits_are_kept_and_a_silent_client_is_left(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "_KEPT_WAITS", 2)
    monkeypatch.setattr(serve._Handler, "timeout", 0.2)
    receiver = FakeReceiver(tmp_path / "engine.sock")
    model = serve.build_model(str(checkpoint))
    with lockstep.Follower(model, model="actor", socket=receiver.path) as follower:
        server = serve.Server(model, follower)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        rank = receiver.accept()
        rank.attached()
        rank.commit(1, 0.0)
        for _ in range(5):
            server.generate({"prompt_ids": [1], "max_new_tokens": 1})
        assert server.stats()["answers"] == 5 and len(server._waits) == 2
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as silent:
            silent.sendall(b"POST /generate HTTP/1.1\r\nContent-Length: 10\r\n\r\n")
            assert silent.recv(1) == b""
    server.shutdown()
    thread.join()
    receiver.close()
