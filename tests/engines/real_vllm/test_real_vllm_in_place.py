"""A whole vLLM server that is written in place, under load. One server for all tests, in this order."""

import functools
import json
import shutil
import subprocess
import time

import pytest
from credentials import key_pair
from engine_program import ask_all
from harness import LOCKSTEPCTL, MODEL, ROOT, wait_until
from real_fleet import (
    daemons_end_at_random_moments,
    dies_in_a_pause,
    fleet_of,
    follows_under_load,
    restarted_server_is_not_ready_before_it_has_the_version,
)
from real_server import Judge, expected_http_error, greedy
from vllm_process import VllmProgram
from vllm_server import VllmServer

import lockstep

fleet = fleet_of(VllmServer, "vllm", in_place=True)


def test_every_version_is_served_under_load_and_no_answer_is_by_another(fleet):
    follows_under_load(fleet, versions=8)
    assert fleet.receiver.ctl("verify", "--engines").returncode == 0


@pytest.mark.parametrize("mode", ["wait", "abort"])
def test_these_pauses_give_every_answer_one_version(mode, fleet):
    fleet.receive(engine_pause_mode=mode)
    answers = follows_under_load(fleet, versions=3)
    assert all(len(answer.spans) <= 1 for answer in answers)
    assert mode == "abort" or all(answer.finish == "length" for answer in answers)


def test_an_answer_is_computed_again_on_the_weights_of_its_receipt(fleet, tmp_path):
    """docs/howto/replay.md"""
    (tmp_path / "log").mkdir()
    log = f"file://{tmp_path}/log"
    private, public = key_pair(tmp_path, "log")
    fleet.receive(archive=log, archive_key=private, archive_keep_bytes=1 << 30)
    fleet.serve()
    receiver, prompt = lockstep.control.Receiver(fleet.receiver.address), [3, 1, 4, 1, 5]
    version = fleet.version
    wait_until(lambda: receiver.receipts(version=version), "it has a receipt")
    began = time.time()
    answer = fleet.server.ask(prompt, 16)
    receipt = lockstep.receipts.of_sample(receiver, began, time.time(), keys=public)
    assert [span.version for span in answer.spans] == [receipt.version]
    fleet.serve()
    replay = tmp_path / "replay"
    fetch = [LOCKSTEPCTL, "log", "fetch", log, MODEL, "--version", str(version), "--out", replay]
    wait_until(lambda: subprocess.run(fetch, capture_output=True).returncode == 0, "the log has it")
    assert json.loads((replay / "lockstep.json").read_text())["manifest_digest"] == receipt.manifest_digest
    shutil.copy(fleet.start / "config.json", replay)
    assert greedy(Judge({version: replay}).model(version), prompt, 16) == answer.tokens
    server = VllmServer(replay, tmp_path / "server")
    try:
        server.start()
        assert server.ask(prompt, 16).tokens == answer.tokens
    finally:
        server.kill()
    fleet.receive()


def test_vllms_own_calls_confirm_a_version_that_is_there(fleet):
    fleet.server.post("/start_weight_update", {})
    fleet.server.post("/update_weights", {"update_info": {"version": fleet.version}})
    fleet.server.post("/finish_weight_update", {})
    fleet.server.post("/start_weight_update", {})
    with expected_http_error(500) as said:
        fleet.server.post("/update_weights", {"update_info": {"version": fleet.version + 1}})
    assert "the wanted version was not served" in said[0]
    follows_under_load(fleet, versions=1)


@pytest.mark.parametrize("level", [1, 2])
def test_a_server_that_slept_has_the_newest_version_when_it_wakes(level, fleet):
    fleet.server.post(f"/sleep?level={level}")
    asleep = lambda: [group["asleep"] for group in fleet.receiver.model_status()["rank_groups"]] == [1]  # noqa: E731
    wait_until(asleep, "it is asleep")
    version = fleet.publish()
    time.sleep(0.5)
    assert fleet.engine()["served"]["version"] != version
    fleet.server.post("/wake_up")
    fleet.await_served(version)
    fleet.newest_is_answered()


def test_weights_that_vllm_loaded_itself_are_written_over(fleet):
    reload = {"method": "reload_weights", "kwargs": {"weights_path": str(fleet.start)}}
    fleet.server.post("/collective_rpc", reload)
    # A commit that lost its rank may leave the server paused over whole memory until the next attempt.
    again = lambda: fleet.receiver.ctl("verify", "--engines").returncode == 0 and fleet.engine()["state"] == "serving"  # noqa: E731
    wait_until(again, "the version is written again")
    fleet.newest_is_answered()


def test_daemons_that_end_at_random_moments_leave_no_wrong_answer(fleet):
    daemons_end_at_random_moments(fleet, rounds=4, seed=1)


@pytest.mark.nightly  # a start more
def test_a_server_whose_core_dies_in_a_pause_is_not_ready_until_it_has_the_version(fleet):
    kill = functools.partial(dies_in_a_pause, fleet, "VLLM::EngineCor")
    restarted_server_is_not_ready_before_it_has_the_version(fleet, kill)


@pytest.fixture(scope="module")
def trainers(fleet, tmp_path_factory):
    """Two ranks that share the model, with vLLM's trainer API; they take the trainer's place."""
    fleet.trainer.close()
    ranks = [VllmProgram("vllm_trainer.py", ROOT / "python") for _ in range(2)]
    store = tmp_path_factory.mktemp("trainers") / "store"
    for number, rank in enumerate(ranks):
        rank.start("build", checkpoint=fleet.start, rank=number, world=2, store=store, dtype="float32")
    for rank in ranks:
        rank.answer()
    yield ranks
    for rank in ranks:
        rank.close()


@pytest.mark.parametrize("source", ["iter_local", "iter_full"])
def test_every_send_of_vllms_trainer_api_returns_when_the_server_answers_by_it(source, fleet, trainers, tmp_path):
    url, socket = fleet.server.url, fleet.agent.socket
    opened = ask_all(trainers, "open", source=source, url=url, socket=socket, model=MODEL)
    assert opened == ["LockstepTrainerWeightTransferEngine"] * 2
    for step in (1, 2, 3):
        ask_all(trainers, "train", step=step)
        ask_all(trainers, "send", label=f"step {step}")
        answer = fleet.server.ask([5, 7, 11], 16)
        ask_all(trainers, "save", directory=tmp_path / f"{step}")
        assert [span.name.partition("-")[2] for span in answer.spans] == [f"{step}/step {step}"]
        assert answer.tokens == Judge({step: tmp_path / f"{step}"}).greedy(step, [5, 7, 11], 16)
    ask_all(trainers, "close")
