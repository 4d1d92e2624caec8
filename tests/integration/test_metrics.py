"""What the daemons tell Prometheus: the real one scrapes them, and has what docs/metrics.md lists."""

import json
import re
import socket
import subprocess
import time
import urllib.request

import pytest
from credentials import Ca
from harness import BIN, MODEL, ROOT, wait_until
from prometheus import ALERTS, Prometheus
from replicas import ToyModel

PAGE = ROOT / "docs/metrics.md"
TESTS = ROOT / "tests/metrics/alerts_test.yaml"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)
LISTEN = {"metrics_listen": "127.0.0.1:0"}


def listed() -> "dict[str, set[str]]":
    """The labels of each metric of the page."""
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, _, labels in ROW.findall(PAGE.read_text())}


def page_of(daemon) -> str:
    with urllib.request.urlopen(f"http://{daemon.addresses['metrics']}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        return answer.read().decode()


@pytest.fixture
def fleet(cluster):
    """An agent, a receiver that fails and one that does not, and three versions."""
    model = ToyModel(blocks=8)
    agent = cluster.agent(**LISTEN)
    log = cluster.directory / "log"
    log.mkdir()
    receivers = [
        cluster.receiver(agent, archive=f"file://{log}", **LISTEN),
        cluster.receiver(agent, engine="hook:exit 1", **LISTEN),
    ]
    with agent.publisher(model.tensors) as publisher:
        for version in range(1, 4):
            publisher.publish(version=version, tensors=model.step())
            for receiver in receivers:
                receiver.wait_for(model.tensors)
        yield agent, *receivers


def test_the_page_of_the_documentation_is_that_of_the_tables():
    printed = subprocess.run([BIN / "tests/metrics/page"], capture_output=True, text=True, check=True).stdout
    assert printed == PAGE.read_text(), "bazel-bin/tests/metrics/page > docs/metrics.md"


def test_each_alert_is_raised_when_it_must_be_and_leads_to_a_line_that_helps():
    rules = subprocess.run(["promtool", "test", "rules", TESTS], capture_output=True, text=True)
    assert rules.returncode == 0, rules.stdout + rules.stderr
    alerts = re.findall(r"- alert: (\w+)", ALERTS.read_text())
    raised = re.findall(r"alertname: (\w+)\n *eval_time: \w+\n *exp_alerts:\n", TESTS.read_text())
    assert set(alerts) == set(raised)
    helped = re.findall(r"`(Lockstep\w+)`", (ROOT / "docs/howto/runbook.md").read_text())
    assert sorted(alerts) == sorted(helped)
    metrics = set(re.findall(r"\b((?:trainer_agent|raas_receiver)_\w+)", ALERTS.read_text()))
    assert metrics <= set(listed())


def test_prometheus_takes_what_the_daemons_tell(fleet):
    for daemon in fleet:
        lint = subprocess.run(["promtool", "check", "metrics"], input=page_of(daemon), capture_output=True, text=True)
        assert (lint.returncode, lint.stderr) == (0, "")
    agent, receiver, failing = fleet
    assert 'trainer_agent_newest_version{model="actor"} 3' in page_of(agent)
    assert 'raas_receiver_held_version{model="actor"} 3' in page_of(receiver)
    assert 'raas_receiver_stage_seconds_count{model="actor",stage="commit"} 3' in page_of(receiver)
    wait_until(lambda: 'event="hook_attempt_failed",level="error"' in page_of(failing), "the hook's failure is counted")


def test_a_prometheus_has_all_that_is_listed_and_nothing_else(fleet, cluster):
    prometheus = Prometheus(cluster.directory / "prometheus")
    try:
        prometheus.scrape(*fleet)
        wait_until(lambda: len(prometheus.query("up == 1")) == len(fleet), "Prometheus has scraped every daemon")
        of_prometheus = {"up", "scrape_duration_seconds", "scrape_samples_scraped", "scrape_series_added"}
        of_prometheus |= {"scrape_samples_post_metric_relabeling", "ALERTS", "ALERTS_FOR_STATE"}
        names = prometheus.ask("label/__name__/values")
        has = {re.sub(r"_(bucket|count|sum)$", "", name) for name in names} - of_prometheus
        # No engine is written in place here, and nothing has a certificate.
        of_ranks = ("_engine_ranks_", "_engine_commits_", "_engine_write_", "_certificate_")
        without_samples = {name for name in listed() if any(part in name for part in of_ranks)}
        assert has == set(listed()) - without_samples
        for one in prometheus.ask("series", **{"match[]": f'{{model="{MODEL}", alertname=""}}'}):
            labels = set(one) - {"__name__", "job", "instance", "le"}
            assert labels == listed()[re.sub(r"_(bucket|count|sum)$", "", one["__name__"])]
    finally:
        prometheus.close()


def test_each_panel_of_the_dashboard_shows_something(fleet, cluster):
    panels = json.loads((ROOT / "deploy/dashboards/fleet.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert len(queries) > 20
    variables = {"$__rate_interval": "10s", "$__range": "10s", "$model": ".*", "$job": ".*"}
    prometheus = Prometheus(cluster.directory / "prometheus")
    try:
        prometheus.scrape(*fleet)
        for query in queries:
            for variable, value in variables.items():
                query = query.replace(variable, value)
            assert "$" not in query
            wait_until(lambda query=query: prometheus.query(query), query)
        named = {stage for text in re.findall(r'stage=~?"([^"]+)"', " ".join(queries)) for stage in text.split("|")}
        assert named <= set(prometheus.ask("label/stage/values"))
    finally:
        prometheus.close()


def test_the_certificates_end_is_told_and_follows_the_file(cluster):
    ca = Ca(cluster.directory / "ca")
    ca.allow(("agent", "receiver"))
    agent = cluster.agent(**LISTEN, listen="", **ca.daemon("agent"))

    def days_left() -> float:
        (told,) = re.findall(
            r"^trainer_agent_certificate_expiry_timestamp_seconds (\S+)$", page_of(agent), re.MULTILINE
        )
        return (float(told) - time.time()) / 86400

    assert 29 < days_left() < 31
    ca.issue("agent", days=3)
    wait_until(lambda: 2 < days_left() < 4, "a page that was made since then tells the new certificate's end")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET / HTTP/1.1", 404),
        ("GET /metricsx HTTP/1.1", 404),
        ("POST /metrics HTTP/1.1", 405),
        ("GET /metrics", 400),
        ("\0\0\0", 400),
        ("HEAD /metrics HTTP/1.1", 200),
        ("GET /metrics?name[]=up HTTP/1.0", 200),
    ],
)
def test_nothing_else_is_answered(cluster, request_line, status):
    agent = cluster.agent(**LISTEN)
    host, _, port = agent.addresses["metrics"].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(f"{request_line}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert (body == b"") == request_line.startswith("HEAD")


def test_peers_that_say_too_much_or_nothing_are_cut_off_and_others_served(cluster):
    agent = cluster.agent(**LISTEN)
    host, _, port = agent.addresses["metrics"].rpartition(":")
    silent = [socket.create_connection((host, int(port)), timeout=30) for _ in range(40)]
    with socket.create_connection((host, int(port)), timeout=30) as endless:
        with pytest.raises(OSError):
            while True:
                endless.sendall(b"GET /metrics HTTP/1.1\r\nx: " + b"x" * 8192)
    assert "trainer_agent_build_info" in page_of(agent)
    for one in silent:
        assert one.recv(1) == b""  # displaced, or after ten seconds
        one.close()
