"""What the daemons log: every event is in the table of docs/operations.md, and DEBUG shows the way of a version."""

import json
import re

import numpy as np
from harness import ROOT, wait_until
from replicas import ToyModel

TABLE = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| (?:agent|receiver|both|each) \|", re.MULTILINE)
# A call to a function that logs, up to its fields, and what may be an event in it.
CALL = re.compile(r"\b(?:Log\w*|PeerLog>)\(([^;{]*)")
EVENT = re.compile(r'"([a-z]+(?:_[a-z]+)*)"')


def events_in_the_sources() -> "set[str]":
    found = set()
    for directory in ("common/access", "common/rpc", "common/telemetry", "trainer_agent", "raas_receiver"):
        for source in sorted((ROOT / directory).rglob("*.cc")):
            if not source.name.endswith("_test.cc"):
                calls = CALL.findall(source.read_text())
                found |= {event for call in calls for event in EVENT.findall(call)}
    return found


def events_in_the_table() -> "set[str]":
    section = (ROOT / "docs/operations.md").read_text().split("\n## Logs\n")[1].split("\n## ")[0]
    return {event for row in TABLE.findall(section) for event in re.findall(r"\w+", row)}


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
            publisher.publish(version, model.step())
            receiver.wait_for(model.tensors)
            wait_until(lambda: "version_committed" in receiver.log(), "it is logged")
    receiver.stop()
    agent.stop()
    return events_of(agent), events_of(receiver)


def test_debug_shows_the_way_of_every_version_in_both_daemons(cluster):
    agent, receiver = follow_two_versions(cluster, log_level="debug")
    for event in ("version_begun", "rank_finished"):
        assert [(line["rank"], line["version"]) for line in agent[event]] == [(0, 1), (0, 2)], event
    assert [line["mode"] for line in agent["pull_opened"]] == ["full", "delta"]
    opened = [line["pull"] for line in agent["pull_opened"]]
    assert [line["pull"] for line in agent["pull_closed"] if not line["live"]] == opened
    assert {line["pull"] for line in agent["lane_admitted"]} >= set(opened[:1])
    assert agent["live_subscribed"] and agent["version_stream_opened"]
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
            publisher.publish(version, tensors)
            receiver.wait_for(tensors)
    receiver.stop()
    [warning] = events_of(receiver)["config_differs"]
    assert warning["level"] == "warn" and warning["path"].endswith("/config.json")
    assert (
        'vocab_size is 1000 and hidden_size 64, but tensor "model.embed_tokens.weight" is [320, 64]' in warning["error"]
    )
