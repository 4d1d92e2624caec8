"""A stand-in for the control port of an inference server, with faults.

    python3 conformance_server.py --kind sglang --directory CHECKPOINT [--port 0] [--fault JSON]...

It is for what a real server cannot be made to do: faults, at the call that a test chooses. real_vllm and real_sglang have
the real ones. It answers as they do under load, really reads the checkpoints that it is given, and records what a server
must never come to: `violations`. Faults are injected by `ConformanceServer.fault`, `--fault`, or POST
/conformance/faults; GET /conformance shows the state. Python's standard library is all it needs.
"""

import argparse
import json
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from engine_core import EngineCore
from http_plumbing import Answer, Fault, HttpServer, Request
from served_model import ServedModel
from sglang_rules import SglangRules
from vllm_rules import VllmRules


class Rules(Protocol):
    """How one kind of server behaves; made of a ServedModel and Options. Handlers are called in any thread."""

    endpoints: "dict[str, dict]"  # its control endpoints, and the values of what a call leaves out
    pause_path: str
    update_path: str  # reads a directory
    keeps_names: bool  # of versions
    core: EngineCore
    paused: object  # true or false
    load_fault: str  # "partial" or "partial_unsaid": the next load has it, which takes it away

    def version(self) -> "str | None":
        """The version's name, where it keeps one."""

    def answer(self, request: Request) -> Answer: ...


# By the kind of engine, as raas_receiver --engine names it.
KINDS: "dict[str, type[Rules]]" = {"sglang": SglangRules, "vllm": VllmRules}


@dataclass
class Options:
    """How the server was started."""

    api_key: str = ""
    admin_api_key: str = ""  # SGLang only
    workers: int = 2  # vLLM: TP x PP
    incarnations: "tuple[str, ...]" = ("one", "one")  # of its ranks' followers
    absent: "tuple[str, ...]" = ()  # endpoints that an older version does not have
    load_s: float = 0.0
    start_s: float = 0.0  # SGLang: how long it starts
    health_s: float = 20.0  # SGLang: how long /health waits for a token


class ConformanceServer:
    """A running server. `log` has every control call: method, path, query, body, status, fault."""

    def __init__(self, kind: str, directory: "str | Path", port: int = 0, **options) -> None:
        self.model = ServedModel(Path(directory))
        self.rules = KINDS[kind](self.model, Options(**options))
        self.core = self.rules.core
        self.core.on_death = lambda: threading.Thread(target=self.close, daemon=True).start()
        self.faults: "list[Fault]" = []
        self.log: "list[dict]" = []
        self.lock = threading.Lock()
        self.http = HttpServer(port, self.handle)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self) -> "ConformanceServer":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        with self.lock:
            closed = self.http.ended.is_set()
            self.http.ended.set()
        self.core.ended = True
        if not closed:
            self.http.close()

    def fault(self, endpoint: str, kind: str, **more) -> None:
        with self.lock:
            self.faults.append(Fault(endpoint, kind, **more))

    def paths(self) -> "list[str]":
        """The control calls so far, in order."""
        return [entry["path"] for entry in self.log]

    @property
    def violations(self) -> "list[str]":
        return self.core.violations

    def state(self) -> dict:
        return {
            "digest": self.model.digest(),
            "mixed": self.model.mixed(),
            "path": self.model.path,
            "paused": bool(self.rules.paused),
            "weight_version": self.rules.version(),
            "violations": self.violations,
            "log": self.log,
        }

    def take_fault(self, path: str) -> "Fault | None":
        with self.lock:
            for fault in self.faults:
                if fault.endpoint != path or fault.times == 0:
                    continue
                if fault.skip > 0:
                    fault.skip -= 1
                    return None
                fault.times -= 1
                return fault
        return None

    def handle(self, request: Request) -> "tuple[Answer, Fault | None]":
        if request.path.startswith("/conformance"):
            return self.conformance(request), None
        if request.path not in self.rules.endpoints:
            return self.rules.answer(request), None
        fault = self.take_fault(request.path)
        entry = {"method": request.method, "path": request.path, "query": request.query}
        entry |= {"body": request.body.decode(errors="replace"), "fault": asdict(fault) if fault else None}
        with self.lock:
            self.log.append(entry)
        answer = self.answer_with(request, fault)
        entry["status"] = answer.status
        return answer, fault

    def answer_with(self, request: Request, fault: "Fault | None") -> Answer:
        if fault is None:
            return self.rules.answer(request)
        if fault.kind == "slow":
            time.sleep(fault.delay_s)
            return self.rules.answer(request)
        if fault.kind.startswith("partial"):
            self.rules.load_fault = fault.kind
            return self.rules.answer(request)
        if fault.effect:
            self.rules.answer(request)
        return Answer(200, "<html>gateway</html>") if fault.kind == "garbage" else Answer(fault.status, fault.body)

    def conformance(self, request: Request) -> Answer:
        if request.method == "POST":
            faults = [Fault(**fault) for fault in request.json()]
            with self.lock:
                self.faults = faults
            return Answer(200, {"faults": len(faults)})
        return Answer(200, self.state())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=sorted(KINDS), required=True)
    parser.add_argument("--directory", type=Path, required=True, help="the checkpoint that it starts with")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--fault", type=json.loads, action="append", default=[], help="a Fault's fields as JSON")
    parser.add_argument("--options", type=json.loads, default={}, help="Options' fields as JSON")
    arguments = parser.parse_args()
    server = ConformanceServer(arguments.kind, arguments.directory, arguments.port, **arguments.options)
    for fault in arguments.fault:
        server.fault(**fault)
    print(server.url, flush=True)
    server.http.ended.wait()


if __name__ == "__main__":
    main()
