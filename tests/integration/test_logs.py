"""What the daemons log: every event is in the table of docs/reference/events.md, DEBUG shows the way of a version,
and a reader that is stopped stops no daemon."""

import contextlib
import fcntl
import json
import os
import re
from pathlib import Path

import numpy as np
from harness import ROOT, wait_until
from replicas import ToyModel

TABLE = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| (?:agent|receiver|both|each) \|", re.MULTILINE)
# A call to a function that logs, up to its fields, and what may be an event in it.
CALL = re.compile(r"\b(?:Log\w*|PeerLog>)\(([^;{]*)")
EVENT = re.compile(r'"([a-z]+(?:_[a-z]+)*)"')
MANY_VERSIONS = 2000  # of some lines each, at level debug: more than wait for stderr


def events_in_the_sources() -> "set[str]":
    found = set()
    for directory in ("common/access", "common/rpc", "common/telemetry", "trainer_agent", "raas_receiver"):
        for source in sorted((ROOT / directory).rglob("*.cc")):
            if not source.name.endswith("_test.cc"):
                calls = CALL.findall(source.read_text())
                found |= {event for call in calls for event in EVENT.findall(call)}
    return found


def events_in_the_table() -> "set[str]":
    page = (ROOT / "docs/reference/events.md").read_text()
    return {event for row in TABLE.findall(page) for event in re.findall(r"\w+", row)}


def test_every_event_is_in_the_table_and_every_event_of_the_table_is_logged():
    assert events_in_the_sources() == events_in_the_table()


def events_of(daemon) -> "dict[str, list[dict]]":
    """What a daemon has logged, by event."""
    lines = [json.loads(line) for line in daemon.log().splitlines() if line.startswith("{")]
    events: "dict[str, list[dict]]" = {}
    for line in lines:
        if "event" in line:  # not the line of addresses
            events.setdefault(line["event"], []).append(line)
    return events


def follow_two_versions(cluster, **options):
    model = ToyModel(blocks=8)
    agent = cluster.agent(**options)
    receiver = cluster.receiver(agent, **options)
    with agent.publisher(model.tensors) as publisher:
        for version in (1, 2):
            model.reach(publisher, version, receiver)
            wait_until(lambda: "version_committed" in receiver.log(), "it is logged")
    receiver.stop()
    agent.stop()
    return events_of(agent), events_of(receiver)


def test_debug_shows_the_way_of_every_version_in_both_daemons(cluster):
    agent, receiver = follow_two_versions(cluster, log_level="debug")
    for event in ("version_begun", "rank_finished"):
        assert [(line["rank"], line["version"]) for line in agent[event]] == [(0, 1), (0, 2)], event
    pulls = [line for line in agent["pull_opened"] if line["mode"] != "standing"]
    assert [line["mode"] for line in pulls] == ["full", "delta"]
    opened = [line["pull"] for line in pulls]
    assert [line["pull"] for line in agent["pull_closed"] if not line["standing"]] == opened
    assert {line["pull"] for line in agent["lane_admitted"]} >= set(opened[:1])
    assert len(pulls) < len(agent["pull_opened"]) and agent["version_stream_opened"]
    assert [line["version"] for line in receiver["version_announced"]][-2:] == [1, 2]
    assert [(line["pull"], line["mode"]) for line in receiver["pull_planned"]] == list(zip(opened, ["full", "delta"]))
    states = [line["state"] for line in receiver["sync_state_entered"]]
    assert states[:5] == ["negotiate", "pull_full", "verify", "apply", "commit"]
    assert states[5:] == ["negotiate", "pull_delta", "verify", "apply", "commit"]


def test_nothing_of_that_is_logged_unless_it_is_asked_for(cluster):
    for events in follow_two_versions(cluster):
        assert not [line for lines in events.values() for line in lines if line["level"] == "debug"]


def test_a_config_of_another_model_is_a_warning_with_the_first_version_alone(cluster, tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 1000, "hidden_size": 64}')
    tensors = {"model.embed_tokens.weight": np.zeros((320, 64), np.float32)}
    agent = cluster.agent()
    receiver = cluster.receiver(agent, assets=tmp_path)
    with agent.publisher(tensors) as publisher:
        for version in (1, 2):
            tensors["model.embed_tokens.weight"][version] += 1
            publisher.publish(version=version, tensors=tensors)
            receiver.wait_for(tensors)
    receiver.stop()
    [warning] = events_of(receiver)["config_differs"]
    assert warning["level"] == "warn" and warning["path"].endswith("/config.json")
    assert (
        'vocab_size is 1000 and hidden_size 64, but tensor "model.embed_tokens.weight" is [320, 64]' in warning["error"]
    )


def test_a_delta_that_pays_little_is_a_warning_until_one_pays_again(cluster):
    agent = cluster.agent()
    random = np.random.default_rng(0)
    tensors = {"weight": np.zeros(1 << 20, np.uint16)}
    with agent.publisher(tensors) as publisher:
        for version, dense in enumerate([False, True, True, False, True], start=1):
            if dense:
                tensors["weight"][:] = random.integers(0, 1 << 16, 1 << 20, np.uint16)
            else:
                tensors["weight"][:100] += 1
            publisher.publish(version=version, tensors=tensors)
        wait_until(lambda: '"version":5' in agent.log(), "the last one is compared")
    agent.stop()
    said = events_of(agent)["delta_pays_little"]
    assert [line["version"] for line in said] == [2, 5]
    assert said[0]["delta_bytes"] > said[0]["model_bytes"] / 2


# ---- a stderr that is full ----


@contextlib.contextmanager
def unread(daemon):
    """Starts the daemon with a log that it cannot write, and gives what reads it: the lines of JSON that come at once."""
    os.mkfifo(daemon.log_path)
    pipe = os.open(daemon.log_path, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
    daemon.start()
    daemon.log_path = Path(os.devnull)  # what the harness shows of a daemon that failed
    text = bytearray()

    def lines() -> "list[dict]":
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(pipe, 1 << 20):
                text.extend(piece)
        return [json.loads(line) for line in text.decode().splitlines(keepends=True) if line.endswith("\n")]

    try:
        yield lines
    finally:
        os.close(pipe)


def test_a_log_without_a_reader_stops_no_daemon_and_says_later_what_was_dropped(cluster):
    model = ToyModel(blocks=1)
    agent = cluster.agent(start=False, log_level="debug")
    with unread(agent) as of_agent, unread(cluster.receiver(agent, start=False, log_level="debug")) as of_receiver:
        receiver = cluster.daemons[-1]
        with agent.publisher(model.tensors) as publisher:
            publisher.publish(version=1, tensors=model.tensors)
            for version in range(2, MANY_VERSIONS):
                publisher.publish(version=version, tensors=model.step())
                if version % 50 == 0:
                    receiver.wait_for(model.tensors)
            receiver.wait_for(model.tensors)
            for daemon, lines in ((agent, of_agent), (receiver, of_receiver)):
                logged = wait_until(
                    lambda: [line for line in lines() if line.get("version") == MANY_VERSIONS - 1] and lines(),
                    f"{daemon.name} has logged the last version",
                )
                dropped = sum(line["lines"] for line in logged if line.get("event") == "log_lines_dropped")
                assert dropped > 0, f"{daemon.name} says nothing of what it dropped"
                assert len(logged) < 5_000, f"{daemon.name} kept all lines"
        assert receiver.stop() == 0
        assert agent.stop() == 0
