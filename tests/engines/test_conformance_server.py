"""The conformance servers notice what drivers must never bring a server to, and have their faults."""

import http.client
import json
import threading
import time
import urllib.error
import urllib.request

import pytest
from conformance_server import ConformanceServer
from safetensors.numpy import save_file
from served_model import digest_of, tensors_in
from toy_weights import digest_of_tensors, weights


@pytest.fixture
def checkpoints(tmp_path):
    """Directories of two versions."""
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        save_file(weights(seed), tmp_path / str(seed) / "model.safetensors")
    return tmp_path


def call(server, target: str, body=None, timeout_s: float = 30):
    """(status, text) of a POST of `body`, or of a GET."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + target, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def generating(server, path: str, **values) -> threading.Thread:
    """A request of many tokens, until it ends; back when it runs."""
    thread = threading.Thread(target=call, args=(server, path, {"tokens": 10_000, **values}), kwargs={"timeout_s": 60})
    thread.daemon = True
    thread.start()
    while not server.core.running:
        time.sleep(0.005)
    return thread


def update(checkpoints, **more) -> dict:
    return {"model_path": str(checkpoints / "1"), **more}


def reload(checkpoints, version: int = 1, **more) -> dict:
    return {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoints / str(version))}, **more}


def test_sglang_updates_and_does_not_flush_under_requests_and_older_ones_die_of_it(checkpoints):
    with ConformanceServer("sglang", checkpoints / "0") as server:
        generating(server, "/generate")
        call(server, "/pause_generation", {"mode": "in_place"})
        status, text = call(server, "/update_weights_from_disk", update(checkpoints))
        assert (status, json.loads(text)["success"]) == (400, False)
        assert server.state()["digest"] == digest_of_tensors(weights(1))
    with ConformanceServer("sglang", checkpoints / "0", legacy_assert=True) as server:
        generating(server, "/generate")
        call(server, "/pause_generation", {"mode": "in_place"})
        with pytest.raises((urllib.error.URLError, http.client.HTTPException, ConnectionError)):
            call(server, "/update_weights_from_disk", update(checkpoints))
        server.http.thread.join(5)
        with pytest.raises((urllib.error.URLError, ConnectionError)):  # refused, or reset while the socket closes
            call(server, "/ready")


def test_sglang_has_one_session_at_a_time_and_resuming_in_one_is_noticed(checkpoints):
    with ConformanceServer("sglang", checkpoints / "0") as server:
        calls = ["begin", "begin", "end", "end", "begin"]
        assert [call(server, f"/{name}_weight_update", {})[0] for name in calls] == [200, 400, 200, 400, 200]
        assert server.violations == []
        call(server, "/continue_generation", {})
        assert ["session" in violation for violation in server.violations] == [True]


def test_tokens_from_an_old_cache_or_from_a_mix_are_noticed(checkpoints):
    with ConformanceServer("sglang", checkpoints / "0") as server:
        call(server, "/generate", {"tokens": 2})
        assert call(server, "/update_weights_from_disk", update(checkpoints, flush_cache=False))[0] == 200
        call(server, "/generate", {"tokens": 2})
        assert server.violations == ["a token whose cache was computed with other weights"] * 2
    with ConformanceServer("sglang", checkpoints / "0") as server:
        server.fault("/update_weights_from_disk", "partial_unsaid")
        assert call(server, "/update_weights_from_disk", update(checkpoints))[0] == 200
        assert server.state()["mixed"]
        call(server, "/generate", {"tokens": 1})
        assert server.violations == ["tokens from weights that are a mix"]


def test_vllm_needs_two_reloads_after_one_that_failed_half_way(checkpoints):
    with ConformanceServer("vllm", checkpoints / "0") as server:
        server.fault("/collective_rpc", "partial")
        assert call(server, "/collective_rpc", reload(checkpoints))[0] == 500
        assert call(server, "/collective_rpc", reload(checkpoints))[0] == 200
        assert server.state()["mixed"]
        assert call(server, "/collective_rpc", reload(checkpoints))[0] == 200
        assert server.state()["digest"] == digest_of_tensors(weights(1))


def test_a_checkpoint_is_read_as_the_safetensors_library_writes_it(tmp_path):
    tensors = weights(7)
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[:4]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({name: tensors[name] for name in names[4:]}, tmp_path / "model-00002-of-00002.safetensors")
    assert digest_of(dict(tensors_in(tmp_path))) == digest_of_tensors(tensors)
