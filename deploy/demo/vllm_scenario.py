"""What happens in the demo with --vllm: GRPO (grpo.py) whose samples come from a real vLLM server, which a receiver writes
in place.

Each step publishes the weights, waits until the server serves them, has it sample, and learns from the samples. A sample's
version is what the server stamped on it, and the demo fails where that is not the newest one.
"""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import vllm_cpu
from daemons import MODEL, log_tail
from failure import EX_UNAVAILABLE, EX_WRONG, DemoFailed
from grpo import ANSWER_TOKENS, GROUP, PROMPTS, Grpo

import lockstep
from lockstep import control, programs

START_S = 300  # most of it is importing, and the machine may be busy
WAIT_S = 60


class Vllm:
    """The server, with every process that it starts, and how it is asked."""

    def __init__(self):
        self._reserved = socket.socket()  # bound and never listening: no other process gets its port
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self._port = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    def start(self, workspace, model, follows):
        command = ["setpriv", "--pdeathsig", "TERM", *map(str, vllm_cpu.command(model, self._port))]
        environment = {**os.environ, **vllm_cpu.environment(workspace.path, follows)}
        self.log = workspace.path / "vllm.log"
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        workspace.callback(self._stop)
        deadline = time.monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise DemoFailed(EX_UNAVAILABLE, f"vLLM does not answer\n{log_tail(self.log)}")
            time.sleep(0.05)

    def _stop(self):
        """SIGTERM, and SIGKILL for what is left of its processes after a while. Python's resource tracker, which removes what the
        others leave in /dev/shm, takes no SIGTERM and ends after them."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            for _ in range(100):
                os.killpg(self._process.pid, 0)
                time.sleep(0.05)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _is_ready(self):
        try:
            return urllib.request.urlopen(f"{self.url}/health", timeout=5).status == 200
        except OSError:
            return False

    def answers(self, prompt, **sampling):
        """Pairs: the tokens of an answer, and the names of the weights that sampled them."""
        sampling = {"max_tokens": ANSWER_TOKENS, "ignore_eos": True, **sampling}
        body = json.dumps({"model": vllm_cpu.NAME, "token_ids": prompt, "sampling_params": sampling}).encode()
        request = urllib.request.Request(
            f"{self.url}/inference/v1/generate", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                choices = json.load(answer)["choices"]
        except (OSError, ValueError) as error:
            raise DemoFailed(EX_UNAVAILABLE, f"vLLM does not sample: {error}\n{log_tail(self.log)}") from error
        spans = lambda choice: choice["weight_versions"] or []  # noqa: E731
        return [(choice["token_ids"], {span["version"] for span in spans(choice)}) for choice in choices]


class VllmScenario:
    def __init__(self, workspace, steps):
        self._workspace, self._steps = workspace, steps
        self._checkpoint = workspace.path / "checkpoint"
        self._grpo = Grpo(self._checkpoint)
        self._vllm = Vllm()
        self._receiver = None
        self._clients = ThreadPoolExecutor(PROMPTS)
        self._publisher = None

    def run(self):
        """The result as --json writes it."""
        agent = lockstep.ensure_agent(end_with_owner=True)
        self._workspace.callback(agent.stop)
        engine = {"engine": f"vllm:{self._vllm.url}", "engine_load": "in-place"}
        self._receiver = lockstep.ensure_receiver(agent.control, MODEL, end_with_owner=True, **engine)
        self._workspace.callback(self._receiver.stop)
        print("agent and receiver listen; vLLM starts, which takes half a minute")
        follows = {"LOCKSTEP_ENGINE_SOCKET": self._receiver.engine_socket, "LOCKSTEP_MODEL": MODEL}
        self._vllm.start(self._workspace, self._checkpoint, follows)
        print("step  reward  samples         publish->served  pause")
        rows = []
        with lockstep.Publisher.from_module(self._grpo.model, model=MODEL, socket=agent.socket) as self._publisher:
            for step in range(1, self._steps + 1):
                rows.append({"step": step, **self._publish(), **self._learn()})
                print(_line(**rows[-1]))
            self._publish()
            self._check_memory()
            self._check_greedy_answers()
            return self._result(rows)

    def _publish(self):
        """The server has the weights afterwards."""
        begun_unix_ns = time.time_ns()
        published = self._publisher.publish()
        try:
            published.wait(engines=1, timeout=WAIT_S)
        except lockstep.DeadlineError as error:
            logs = "\n".join(map(log_tail, (self._receiver.log, self._vllm.log)))
            raise DemoFailed(EX_UNAVAILABLE, f"{error}\n{logs}") from error
        served_ms = (time.time_ns() - begun_unix_ns) / 1e6
        looks = control.Receiver(self._receiver.control).watch(WAIT_S)
        engines = (look.models[0].engines[0] for look in looks)
        pause_us = next(engine.last_pause_us for engine in engines if engine.served_since_unix_ns > begun_unix_ns)
        return {"publish_to_served_ms": served_ms, "pause_ms": pause_us / 1000}

    def _learn(self):
        prompts = self._grpo.prompts()
        answers, versions = self._sample(prompts, temperature=1, n=GROUP)
        return {"reward": self._grpo.learn(prompts, answers), "samples_by_version": Counter(versions)}

    def _sample(self, prompts, **sampling):
        """A group of answers to each prompt, and the version of each answer: all by the newest, or the demo fails."""
        groups = list(self._clients.map(lambda prompt: self._vllm.answers(prompt, **sampling), prompts))
        newest = self._publisher.last_publication
        name = f"{newest.run[:8]}-{newest.version}"
        versions = []
        for by in (by for group in groups for _, by in group):
            if by != {name}:
                raise DemoFailed(
                    EX_WRONG, f"an answer is by {' and '.join(by) or 'nothing'}, where {name} is the newest version"
                )
            versions.append(int(re.fullmatch(r"\w+-(\d+)", *by)[1]))
        return [[tokens for tokens, _ in group] for group in groups], versions

    # What must be true at the end.

    def _check_memory(self):
        verify = [programs.find("lockstepctl"), "--receiver", self._receiver.control, "verify", "--engines"]
        done = subprocess.run(verify, capture_output=True, text=True, timeout=WAIT_S)
        print(f"\n$ lockstepctl verify --engines\n{done.stdout}{done.stderr}")
        if done.returncode != 0:
            raise DemoFailed(EX_WRONG, "the server's memory is not the trainer's bytes; the reason is above")

    def _check_greedy_answers(self):
        prompts = self._grpo.prompts()
        answers, _ = self._sample(prompts, temperature=0)
        for prompt, [answer] in zip(prompts, answers):
            own = self._grpo.greedy(prompt)
            if answer != own:
                raise DemoFailed(EX_WRONG, f"to {prompt} the server answers {answer}, and the trainer's model {own}")

    def _result(self, rows):
        by_version = sum((row["samples_by_version"] for row in rows), Counter())
        return {
            "steps": rows,
            "parameters": self._grpo.parameters,
            "versions": self._publisher.last_publication.version,
            "samples_by_version": by_version,
            "publish_to_served_ms": median(row["publish_to_served_ms"] for row in rows),
            "pause_ms": median(row["pause_ms"] for row in rows),
            "memory_equal": True,  # else this point is not reached
            "greedy_answers_equal": PROMPTS,
        }


def _line(step, reward, samples_by_version, publish_to_served_ms, pause_ms):
    samples = ", ".join(f"{count} by version {version}" for version, count in samples_by_version.items())
    return f"{step:4}  {reward:6.3f}  {samples:<16}{publish_to_served_ms:13.0f} ms{pause_ms:4.0f} ms"


def print_summary(result):
    first, *_, last = result["steps"]
    counts = result["samples_by_version"]
    print(
        f"vLLM served {result['versions']} versions of {result['parameters']:,} float32 weights. All {counts.total()} samples were by "
        f"the newest version: {min(counts.values())} by each from {min(counts)} to {max(counts)}.\n"
        f"Medians: {result['publish_to_served_ms']:.0f} ms from publish to served, of which vLLM paused {result['pause_ms']:.0f} ms. The mean "
        f"reward went from {first['reward']:.2f} to {last['reward']:.2f}.\n"
        f"Every byte of the server's memory is the trainer's, and so are all tokens of {result['greedy_answers_equal']} greedy answers."
    )
