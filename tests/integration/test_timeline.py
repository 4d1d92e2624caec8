"""lockstepctl timeline: what both daemons did for a version, in one trace."""

import json
import subprocess

import pytest
from google.protobuf import json_format
from harness import LOCKSTEPCTL, MODEL, wait_until
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from replicas import ToyModel

NOT_THERE = 69
AGENT_STAGES = {"export", "diff", "encode", "store"}
RECEIVER_STAGES = {"negotiate", "pull", "verify", "apply", "commit"}
CLOCK_STEP_US = 2_000  # spans of one machine are measured by one clock, read at different moments


def timeline(agent, receivers, *arguments: object) -> subprocess.CompletedProcess:
    """lockstepctl timeline of these daemons."""
    command = [LOCKSTEPCTL, "--agent", agent.address]
    for receiver in receivers:
        command += ["--receiver", receiver.address]
    command = [str(part) for part in [*command, "timeline", *arguments]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def trace_of(agent, receivers, path, *arguments: object) -> "list[dict]":
    """The events of the trace, times in microseconds."""
    result = timeline(agent, receivers, "--out", path, *arguments)
    assert result.returncode == 0, result.stderr
    return json.loads(path.read_text())["traceEvents"]


def spans_of(events: "list[dict]", version: int) -> "list[dict]":
    return [event for event in events if event["ph"] == "X" and event["args"]["version"] == version]


def end(span: dict) -> float:
    return span["ts"] + span["dur"]


@pytest.fixture
def fleet(cluster):
    """An agent and two receivers over lanes that have followed two deltas: model, agent, receivers."""
    model = ToyModel(blocks=40)
    agent = cluster.agent()
    receivers = [cluster.receiver(agent, streaming=False) for _ in range(2)]
    with agent.publisher(model.tensors) as publisher:
        for version in range(1, 4):
            publisher.publish(version=version, tensors=model.step())
            for receiver in receivers:
                receiver.wait_for(model.tensors)
                wait_until(lambda: receiver.model_status()["syncs"] == version, f"the sync to {version} has ended")
        yield agent, receivers


def test_a_trace_has_every_stage_of_both_daemons_joined_by_the_pull(fleet, tmp_path):
    agent, receivers = fleet
    events = trace_of(agent, receivers, tmp_path / "trace.json")
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert len(processes) == 3 and all(receivers[i].name in processes[i + 2] for i in range(2))
    for version in (2, 3):
        spans = spans_of(events, version)
        assert AGENT_STAGES <= {span["name"] for span in spans if span["pid"] == 1}
        assert all(span["args"]["model"] == MODEL for span in spans)
        for pid in (2, 3):
            own = [span for span in spans if span["pid"] == pid]
            assert RECEIVER_STAGES <= {span["name"] for span in own}
            (transfer,) = {span["args"]["transfer"] for span in own}
            served = [span for span in spans if span["name"] == "serve" and span["args"]["transfer"] == transfer]
            assert served and all(span["pid"] == 1 for span in served)
            (pull,) = (span for span in own if span["name"] == "pull")
            assert sum(span["args"]["bytes"] for span in served) >= pull["args"]["bytes"] > 0


def test_opentelemetry_takes_the_trace(fleet, tmp_path):
    """By its own schema: unknown names are errors."""
    agent, receivers = fleet
    path = tmp_path / "otlp.json"
    for _ in range(2):
        written = timeline(agent, receivers, "--format", "otlp", "--out", path)
        assert written.returncode == 0, written.stderr
        text = path.read_text()
        request = json_format.Parse(text, ExportTraceServiceRequest())
        daemons = [resource for resource in json.loads(text)["resourceSpans"]]
        assert len(daemons) == len(request.resource_spans) == 3
        spans = [span for daemon in daemons for scope in daemon["scopeSpans"] for span in scope["spans"]]
        assert all(
            len(bytes.fromhex(span["traceId"])) == 16 and len(bytes.fromhex(span["spanId"])) == 8 for span in spans
        )
        assert len({span["spanId"] for span in spans}) == len(spans)
        roots = {span["spanId"]: span for span in spans if "parentSpanId" not in span}
        assert {span["name"] for span in roots.values()} == {f"version {version}" for version in (1, 2, 3)}
        for span in spans:
            root = roots[span.get("parentSpanId", span["spanId"])]
            assert span["traceId"] == root["traceId"]
            assert int(root["startTimeUnixNano"]) <= int(span["startTimeUnixNano"])
            assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) <= int(root["endTimeUnixNano"])
        assert AGENT_STAGES | RECEIVER_STAGES <= {span["name"] for span in spans}
    unused = timeline(agent, receivers, "--format", "otlp")
    assert unused.returncode == 64 and "--out" in unused.stderr


def test_stages_follow_each_other_between_the_trainers_commit_and_the_receivers(fleet, tmp_path):
    agent, receivers = fleet
    events = trace_of(agent, receivers, tmp_path / "trace.json")
    spans = spans_of(events, 3)
    agent_spans = {span["name"]: span for span in spans if span["pid"] == 1}
    assert agent_spans["export"]["ts"] <= agent_spans["diff"]["ts"] <= agent_spans["encode"]["ts"]
    assert end(agent_spans["encode"]) <= end(agent_spans["diff"])
    for pid in (2, 3):
        own = {span["name"]: span for span in spans if span["pid"] == pid}
        way = [agent_spans["diff"]] + [own[name] for name in ("negotiate", "pull", "verify", "apply", "commit")]
        for before, after in zip(way, way[1:]):
            assert end(before) <= after["ts"] + CLOCK_STEP_US, (before, after)
        assert own["pull"]["ts"] <= own["stage"]["ts"] and end(own["stage"]) <= end(own["pull"]) + CLOCK_STEP_US
        for span in spans:
            if span["name"] == "serve" and span["args"]["transfer"] == own["pull"]["args"]["transfer"]:
                assert own["pull"]["ts"] - CLOCK_STEP_US <= span["ts"]
                assert end(span) <= end(own["commit"]) + CLOCK_STEP_US


def test_arrows_lead_from_the_agent_to_each_pull(fleet, tmp_path):
    agent, receivers = fleet
    events = trace_of(agent, receivers, tmp_path / "trace.json", "--version", 3)
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys() and {event["pid"] for event in ends.values()} == {2, 3}
    assert all(event["pid"] == 1 and event["ts"] <= ends[arrow]["ts"] for arrow, event in starts.items())


def test_clocks_of_one_machine_are_left_alone_and_json_says_how_late_the_version_was(fleet):
    agent, receivers = fleet
    answer = json.loads(timeline(agent, receivers, "--json", "--last", 1).stdout)
    assert [daemon["corrected"] for daemon in answer["daemons"]] == [False, False, False]
    assert all(abs(daemon["ahead_us"]) <= daemon["uncertainty_us"] for daemon in answer["daemons"])
    (version,) = answer["versions"]
    assert version["version"] == 3
    # The receivers' own idea of it ends a little earlier: before the version's directory is there.
    latest = max(receiver.ask("watch", "--count", 1)["publish_to_commit_us"] for receiver in receivers)
    assert abs(version["publish_to_commit_us"] - latest) < 1_000_000


def test_the_agent_is_found_by_its_receiver_and_the_table_names_every_stage(fleet):
    agent, receivers = fleet
    result = receivers[0].ctl("timeline")
    assert result.returncode == 0, result.stderr
    assert agent.address in result.stdout
    assert all(f" {stage} " in result.stdout for stage in AGENT_STAGES | RECEIVER_STAGES)


def test_a_version_that_no_daemon_remembers_and_a_daemon_that_does_not_answer_are_errors(fleet):
    agent, receivers = fleet
    result = timeline(agent, receivers, "--version", 99)
    assert result.returncode == NOT_THERE and "version 99" in result.stderr
    receivers[1].kill()
    result = timeline(agent, receivers)
    assert result.returncode == NOT_THERE and receivers[1].address in result.stderr


def test_a_live_delta_shows_what_came_while_the_version_was_made(cluster, tmp_path):
    model = ToyModel(blocks=40)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        for version in range(1, 6):
            model.reach(publisher, version, receiver)
    events = trace_of(agent, [receiver], tmp_path / "trace.json", "--last", 0)
    spans = [span for version in range(2, 6) for span in spans_of(events, version)]
    streaming = [span for span in spans if span["name"] == "streaming"]
    assert streaming and all(span["pid"] == 2 and span["args"]["bytes"] > 0 for span in streaming)
    for span in streaming:
        made = span["args"]["version"]
        served = [other for other in spans_of(events, made) if other["name"] == "serve"]
        assert {other["args"]["transfer"] for other in served} == {span["args"]["transfer"]}
