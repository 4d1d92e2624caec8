"""What checkpoint engines have in common; the engines themselves are tested with their frameworks (tests/frameworks)."""

import asyncio
import shutil
from typing import Any

import pytest
import torch
from test_replica import Published

import lockstep
from lockstep.core.checkpoint_files import local_checkpoint
from lockstep.integrations._replicas import check_reachable, check_room, open_replica


@pytest.fixture
def published(tmp_path):
    return Published(tmp_path / "actor")


def opened(published: Published, awaited: "Any" = lambda: True, timeout_s: float = 60) -> lockstep.Replica:
    """Version 2, while the loop goes on."""
    waiting = open_replica(str(published.path), "version 2", lambda replica: replica.version == 2, awaited, timeout_s)
    return asyncio.run(waiting)


def test_the_version_that_is_wanted_is_opened_when_it_comes_and_no_other(published):
    def goes_on() -> bool:
        if not (published.path / "v1").exists():
            published.publish("v1", {"w": torch.zeros(1)}, 0)
        else:
            published.publish("v2", {"w": torch.ones(1)}, 1)
        return True

    with opened(published, goes_on) as replica:
        assert replica.version == 2 and replica.state_dict()["w"].tolist() == [1]


def test_a_wait_for_a_version_that_was_given_up_is_aborted(published):
    published.publish("v1", {"w": torch.zeros(1)})
    with pytest.raises(lockstep.AbortedError, match="version 2 was aborted before it came"):
        opened(published, lambda: False)


def test_a_version_that_does_not_come_in_time_is_an_error_with_what_is_there(published):
    with pytest.raises(lockstep.DeadlineError, match="version 2 was not published within 0 s, nothing is there"):
        opened(published, timeout_s=0)
    published.publish("v1-0a1b2c3d", {"w": torch.zeros(1)}, run="0a1b2c3d")
    with pytest.raises(lockstep.DeadlineError, match="version 1 of run 0a1b2c3d is there"):
        opened(published, timeout_s=0)


def test_a_checkpoint_is_a_directory_or_what_was_downloaded_from_the_hub(tmp_path, monkeypatch):
    assert local_checkpoint(str(tmp_path)) == str(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--ours--actor/snapshots/0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--ours--actor/refs").mkdir()
    (tmp_path / "models--ours--actor/refs/main").write_text(snapshot.name)
    assert local_checkpoint("ours/actor") == str(snapshot)


def test_a_host_without_room_for_two_copies_is_refused_with_what_helps(published, tmp_path):
    replica = tmp_path / "actor"
    replica.mkdir(exist_ok=True)
    (replica / "weights").write_bytes(bytes(8 << 20))
    (replica / "same").hardlink_to(replica / "weights")  # counts once
    free = shutil.disk_usage(tmp_path).free
    check_room(str(replica), free // 2)
    with pytest.raises(lockstep.ResourceExhaustedError, match="two copies of the model.*--shm-size"):
        check_room(str(replica), free // 2 + (6 << 20))
    published.publish("v1", {"w": torch.zeros(1)})
    check_room(str(published.path), free)  # what there is was pulled


def test_a_rollout_on_another_host_is_refused_where_the_agent_has_no_port():
    check_reachable("unix:/run/agent.sock", "10.0.0.1", "10.0.0.1")
    check_reachable("10.0.0.1:7700", "10.0.0.1", "10.0.0.2")
    with pytest.raises(lockstep.BadDataError, match="on host 10.0.0.2, and the agent on 10.0.0.1, .* `port`"):
        check_reachable("unix:/run/agent.sock", "10.0.0.1", "10.0.0.2")
