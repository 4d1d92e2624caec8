"""A follower in this process and a real receiver: a module that fits, one that does not, and a reader that stays."""

import json
import re
import time
from datetime import datetime

import pytest
import torch
from harness import MODEL, wait_until

import lockstep


@pytest.fixture
def weights():
    return {name: tensor + 1 for name, tensor in torch.nn.Linear(64, 32).state_dict().items()}


@pytest.fixture
def agent(cluster):
    return cluster.agent()


@pytest.fixture
def publisher(agent, weights):
    """Has published version 1 of a linear layer."""
    with agent.publisher(weights) as publisher:
        publisher.publish(version=1, tensors=weights)
        yield publisher


@pytest.fixture
def receiver(cluster, agent, publisher, weights):
    """Holds version 1."""
    socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=socket, log_level="debug")
    receiver.wait_for(weights)
    return receiver


def follow(receiver, module: torch.nn.Module, **options) -> lockstep.Follower:
    return lockstep.Follower(module, model=MODEL, socket=receiver.root.parent.parent / "engine.sock", **options)


def test_a_wait_for_a_module_that_does_not_fit_fails_with_the_reason(receiver):
    with follow(receiver, torch.nn.Linear(64, 48)) as follower:
        with pytest.raises(lockstep.StateError, match="does not take this rank: .*weight"):
            with follower.serving():
                pass
        with pytest.raises(lockstep.StateError, match="does not take this rank: .*weight"):
            follower.wait_for(1)


def test_why_a_rank_is_refused_is_its_engines_error_logged_once_and_makes_it_late(cluster, agent, publisher):
    socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=socket, engine_late_after="1s")
    with follow(receiver, torch.nn.Linear(64, 48)) as follower:
        wait_until(lambda: receiver.model_status()["engines"][0]["late"], "the engine is late")
        [engine] = receiver.model_status()["engines"]
        assert engine["state"] == "failing" and "weight" in engine["last_error"], engine
        assert receiver.model_status()["last_error"] == engine["last_error"]
        follower.close()
    assert receiver.log().count('"engine_rank_refused"') == 1


def test_an_engine_whose_ranks_are_gone_says_since_when_and_a_wait_for_it_says_so(receiver, publisher):
    absent = re.compile(r"engine default: no rank has been attached since (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC")

    def told() -> "re.Match | None":
        return absent.search(receiver.model_status()["last_error"])

    first = wait_until(told, "no rank has come")
    with follow(receiver, torch.nn.Linear(64, 32)) as follower:
        follower.wait_for(1, timeout=60)
        wait_until(lambda: not receiver.model_status()["last_error"], "nothing is wrong")
        time.sleep(1)
        ended = time.time()
    told_last = wait_until(told, "its ranks are gone")
    since = [datetime.strptime(match[1] + "+0000", "%Y-%m-%d %H:%M:%S%z").timestamp() for match in (first, told_last)]
    assert since[0] < since[1] and ended - 2 < since[1] < time.time()
    assert receiver.model_status()["engines"][0]["state"] == "waiting"

    def lacking() -> "str | None":
        with pytest.raises(lockstep.DeadlineError) as raised:
            publisher.wait_served(version=1, receivers=[receiver.name], timeout=0.1)
        return str(raised.value) if told_last[0] in str(raised.value) else None

    wait_until(lacking, "the wait names the cause")


def test_debug_shows_the_steps_of_a_commit_to_the_ranks_of_an_engine(receiver, weights):
    module = torch.nn.Linear(64, 32)
    with follow(receiver, module) as follower, follower.serving(timeout=60):
        assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in weights.items())
        wait_until(lambda: "engine_committed" in receiver.log(), "the commit is logged")
    lines = [json.loads(line) for line in receiver.log().splitlines() if '"engine_step_done"' in line]
    assert [line["step"] for line in lines] == ["prepared", "paused", "written", "serve", "serving"]
    assert {(line["level"], line["model"], line["engine"], line["version"]) for line in lines} == {
        ("debug", MODEL, "default", 1)
    }


def test_a_reader_that_stays_keeps_no_other_out_and_the_receiver_pulls_nothing_over_what_it_reads(
    cluster, agent, publisher, weights
):
    socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=socket, engine_pause_timeout="500ms")
    module = torch.nn.Linear(64, 32)
    with follow(receiver, module) as follower:
        with follower.serving(timeout=60):
            publisher.publish(version=2, tensors={name: tensor + 2 for name, tensor in weights.items()})
            wait_until(lambda: receiver.model_status()["held"]["version"] == 2, "the receiver has the next")
            publisher.publish(version=3, tensors={name: tensor + 3 for name, tensor in weights.items()})
            wait_until(lambda: "1 of its readers did not leave" in (follower.error or ""), "the pause was abandoned")
            assert follower.wait_for(timeout=60).version == 1  # others come in meanwhile
            assert receiver.model_status()["held"]["version"] == 2
            assert all(torch.equal(module.state_dict()[name], tensor) for name, tensor in weights.items())
        with follower.serving(timeout=60):
            pass
        assert follower.wait_for(3, timeout=60).version == 3
        assert all(torch.equal(module.state_dict()[name], tensor + 3) for name, tensor in weights.items())


def test_pauses_that_a_reader_outstays_are_failures_and_leave_most_of_the_time_to_readers(
    cluster, agent, publisher, weights
):
    socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=socket, engine_pause_timeout="500ms")
    with follow(receiver, torch.nn.Linear(64, 32)) as follower, follower.serving(timeout=60):
        publisher.publish(version=2, tensors={name: tensor + 2 for name, tensor in weights.items()})
        wait_until(lambda: receiver.model_status()["engine_failures"], "a pause failed")
        before = receiver.model_status()["engine_failures"]
        time.sleep(8)
        assert 1 <= receiver.model_status()["engine_failures"] - before <= 4  # each keeps readers out for 0.5 s


@pytest.mark.parametrize("allowed", ["bias", "b*"])
def test_a_tensor_that_no_parameter_takes_is_refused_by_name_unless_it_is_allowed(receiver, weights, allowed):
    module = torch.nn.Linear(64, 32, bias=False)
    with follow(receiver, module) as follower:
        with pytest.raises(lockstep.StateError, match="no parameter of the engine takes tensor bias of the model"):
            follower.wait_for(1)
    with follow(receiver, module, ignore=allowed) as follower:
        follower.wait_for(1, timeout=60)
        assert torch.equal(module.weight, weights["weight"])
        [group] = receiver.model_status()["rank_groups"]
        assert (group["unused"], group["unused_tensors"]) == (1, ["bias"])
        assert "engine_tensors_unused" in receiver.log()
        assert "tensors that no parameter of an engine takes: bias" in receiver.ctl("verify", "--engines").stdout


def test_an_engine_in_bfloat16_of_a_trainer_that_publishes_float32_hears_what_to_do(receiver):
    with follow(receiver, torch.nn.Linear(64, 32).to(torch.bfloat16)) as follower:
        said = "as BF16 where the model has F32: converted or quantised; .* take versions from the directory"
        with pytest.raises(lockstep.StateError, match=said):
            follower.wait_for(1)
