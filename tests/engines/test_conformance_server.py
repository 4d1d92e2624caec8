"""The conformance servers do what the drivers must be safe from: what the real ones do by their sources."""

import http.client
import json
import threading
import time
import urllib.error
import urllib.request

import pytest
from conformance_server import ConformanceServer
from safetensors.numpy import save_file
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


def test_sglang_flushes_only_what_is_not_used(checkpoints):
    with ConformanceServer("sglang", checkpoints / "0") as server:
        generating(server, "/generate")
        assert call(server, "/flush_cache", {})[0] == 400
        call(server, "/pause_generation", {"mode": "in_place"})
        assert call(server, "/flush_cache", {})[0] == 400
        call(server, "/pause_generation", {"mode": "retract"})
        assert call(server, "/flush_cache?timeout=0.05", {})[0] == 400
        assert call(server, "/flush_cache", {})[0] == 200


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
        with pytest.raises(urllib.error.URLError):
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


def test_sglang_keeps_new_requests_waiting_while_it_is_paused(checkpoints):
    with ConformanceServer("sglang", checkpoints / "0") as server:
        call(server, "/pause_generation", {})
        assert call(server, "/ready")[0] == 503
        with pytest.raises(TimeoutError):
            call(server, "/generate", {"tokens": 1}, timeout_s=0.2)
        call(server, "/continue_generation", {})
        assert call(server, "/generate", {"tokens": 1})[0] == 200


def test_sglang_asks_for_the_admin_key_at_its_control_port_and_for_the_other_elsewhere(checkpoints):
    with ConformanceServer("sglang", checkpoints / "0", api_key="one", admin_api_key="two") as server:

        def status(path: str, key: str) -> int:
            headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
            data = b"{}" if path == "/pause_generation" else None
            try:
                return urllib.request.urlopen(urllib.request.Request(server.url + path, data, headers)).status
            except urllib.error.HTTPError as error:
                return error.code

        assert [status("/pause_generation", key) for key in ("one", "two")] == [401, 200]
        assert [status("/model_info", key) for key in ("one", "two")] == [200, 401]


def test_vllm_updates_only_between_start_and_finish(checkpoints):
    with ConformanceServer("vllm", checkpoints / "0") as server:
        assert call(server, "/update_weights", {"update_info": {}})[0] == 500
        assert call(server, "/start_weight_update", {})[0] == 200
        assert call(server, "/start_weight_update", {})[0] == 500
        assert call(server, "/update_weights", {"update_info": {}})[0] == 200
        assert call(server, "/finish_weight_update", {"weight_version": "7"})[0] == 200
        assert call(server, "/finish_weight_update", {})[0] == 500
        assert json.loads(call(server, "/weight_info")[1]) == {"weight_version": "7"}


def test_vllm_needs_two_reloads_after_one_that_failed_half_way(checkpoints):
    with ConformanceServer("vllm", checkpoints / "0") as server:
        server.fault("/collective_rpc", "partial")
        assert call(server, "/collective_rpc", reload(checkpoints))[0] == 500
        assert call(server, "/collective_rpc", reload(checkpoints))[0] == 200
        assert server.state()["mixed"]
        assert call(server, "/collective_rpc", reload(checkpoints))[0] == 200
        assert server.state()["digest"] == digest_of_tensors(weights(1))


def test_vllm_reloads_from_keyword_arguments_only(checkpoints):
    with ConformanceServer("vllm", checkpoints / "0") as server:
        body = {"method": "reload_weights", "args": [str(checkpoints / "1")]}
        assert call(server, "/collective_rpc", body)[0] == 500
        assert server.state()["mixed"]
        assert call(server, "/collective_rpc", {"method": "no_such_method"})[0] == 500
        assert call(server, "/collective_rpc", {})[0] == 400


@pytest.mark.parametrize("mode, status", [("abort", 503), ("wait", 503), ("keep", None)])
def test_vllm_refuses_new_requests_while_paused_but_for_keep(checkpoints, mode, status):
    with ConformanceServer("vllm", checkpoints / "0") as server:
        call(server, f"/pause?mode={mode}", {})
        assert json.loads(call(server, "/is_paused")[1]) == {"is_paused": True}
        if status is None:
            with pytest.raises(TimeoutError):
                call(server, "/v1/generate", {"tokens": 1}, timeout_s=0.2)
        else:
            assert call(server, "/v1/generate", {"tokens": 1})[0] == status


def test_control_calls_of_vllm_wait_behind_a_reload_and_its_health_does_not(checkpoints):
    with ConformanceServer("vllm", checkpoints / "0", load_s=2) as server:
        before = server.model.digest()
        loading = threading.Thread(target=call, args=(server, "/collective_rpc", reload(checkpoints)))
        loading.start()
        while "/collective_rpc" not in server.paths():
            time.sleep(0.01)
        time.sleep(0.1)  # it is the core's from here on
        assert call(server, "/health")[0] == 200
        assert server.model.digest() == before
        assert call(server, "/is_paused")[0] == 200
        assert server.model.digest() != before
        loading.join()


def test_without_development_mode_vllm_has_no_control_port(checkpoints):
    with ConformanceServer("vllm", checkpoints / "0", dev_mode=False) as server:
        assert call(server, "/pause?mode=keep", {}) == (404, '{"detail": "Not Found"}')
