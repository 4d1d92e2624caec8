"""Debian's Prometheus, as a process that scrapes what a test names."""

import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from harness import ROOT, wait_until
from ports import ReservedPort

ALERTS = ROOT / "deploy/alerts.yaml"
# What the alerts wait for, in a test's time.
SHORTER = {"for: 10m": "for: 2s", "for: 5m": "for: 2s", "for: 2m": "for: 1s", "[10m]": "[5s]", "[1h]": "[5s]"}


class Prometheus:
    """With the alerts of deploy/alerts.yaml, but with seconds in place of their minutes."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._targets = directory / "targets.json"
        self.scrape()
        rules = ALERTS.read_text()
        for long, short in SHORTER.items():
            assert long in rules
            rules = rules.replace(long, short)
        assert not re.search(r"\d[mh]\b", rules.replace("8640", ""))
        (directory / "alerts.yaml").write_text(rules)
        times = {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "200ms"}
        jobs = [{"job_name": "lockstep", "file_sd_configs": [{"files": [str(self._targets)]}]}]
        config = directory / "prometheus.yaml"  # JSON is YAML
        rule_files = [str(directory / "alerts.yaml")]
        config.write_text(json.dumps({"global": times, "rule_files": rule_files, "scrape_configs": jobs}))
        port = ReservedPort()
        self._url = f"http://{port.address}/api/v1"
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory / 'data'}"]
        with open(directory / "log", "wb") as log:
            self._process = subprocess.Popen([*command, f"--web.listen-address={port.address}"], stdout=log, stderr=log)
        wait_until(self._answers, "Prometheus answers")

    def scrape(self, *daemons) -> None:
        """These, from soon on, and no others; each under its name, which it keeps when it starts again."""
        fresh = self._targets.with_suffix(".new")
        targets = [{"targets": [one.addresses["metrics"]], "labels": {"instance": one.name}} for one in daemons]
        fresh.write_text(json.dumps(targets))
        fresh.replace(self._targets)

    def ask(self, path: str, **parameters: str):
        with urllib.request.urlopen(f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def query(self, query: str) -> "list[dict]":
        return self.ask("query", query=query)["result"]

    def firing(self) -> "set[str]":
        return {alert["labels"]["alertname"] for alert in self.ask("alerts")["alerts"] if alert["state"] == "firing"}

    def wait_for(self, *alerts: str) -> None:
        wait_until(lambda: set(alerts) <= self.firing(), f"{alerts} fire")

    def wait_for_none(self) -> None:
        wait_until(lambda: not self.firing(), "nothing fires any more")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            return self.ask("status/buildinfo") is not None
        except (urllib.error.URLError, ConnectionError):
            return False
