"""The example server: every answer is by one version, and is what that version's weights give."""

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
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


def stats(port: int) -> dict:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stats", timeout=60) as answer:
        return json.load(answer)


def test_answers_come_while_versions_do_and_each_is_what_its_version_gives(checkpoint, tmp_path):
    torch.set_num_threads(1)
    receiver = FakeReceiver(tmp_path / "engine.sock")
    versions = {}
    for number in range(1, 6):
        torch.manual_seed(number)
        versions[number] = serve.build_model(str(checkpoint))
    prompt = {"prompt_ids": [3, 1, 4, 1, 5], "max_new_tokens": 12}
    expected = {number: serve.greedy(model, prompt["prompt_ids"], 12) for number, model in versions.items()}
    assert len({tuple(ids) for ids in expected.values()}) == 5

    command = [EXAMPLE / "serve.py", "--model-dir", checkpoint, "--socket", receiver.path, "--model", "actor"]
    environment = {"PYTHONPATH": ":".join(sys.path)}
    server = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        port = json.loads(server.stdout.readline())["port"]
        rank = receiver.accept()
        rank.attached()
        answers, stop = [], threading.Event()

        def ask() -> None:
            while not stop.is_set():
                answers.append(post(port, prompt))

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        for number, model in versions.items():
            rank.pause(number, f"step {number}")
            rank.put(dict(model.named_parameters()), number)
            rank.serve(number)
            while not any(answer["version"] == number for answer in answers):
                assert all(thread.is_alive() for thread in asking)
                time.sleep(0.01)
        stop.set()
        for thread in asking:
            thread.join(60)
        for answer in answers:
            number = answer["version"]
            assert answer == {"ids": expected[number], "run": RUN, "version": number, "label": f"step {number}"}
        reported = stats(port)
        assert (reported["version"], reported["updates"], reported["answers"]) == (5, 5, len(answers))
        assert 0 < reported["pause_ms"]["p50"] <= reported["pause_ms"]["max"] and reported["error"] is None
    finally:
        server.kill()
        server.communicate()
        receiver.close()


def test_requests_that_make_no_sense_are_answered_400_and_a_closed_follower_503(checkpoint, tmp_path):
    receiver = FakeReceiver(tmp_path / "engine.sock")
    model = serve.build_model(str(checkpoint))
    with lockstep.Follower(model, model="actor", socket=receiver.path) as follower:
        server = serve.Server(model, follower)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        rank = receiver.accept()
        rank.attached()
        rank.commit(1, 0.0)
        for wrong in ([], {}, {"prompt_ids": [64]}, {"prompt_ids": [1], "max_new_tokens": 0}, {"prompt_ids": ["a"]}):
            with pytest.raises(urllib.error.HTTPError, match="400"):
                post(server.port, wrong)
        assert post(server.port, {"prompt_ids": [1]})["version"] == 1
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
