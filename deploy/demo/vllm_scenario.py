"""What happens in the demo with --vllm: GRPO (grpo.py) whose samples come from a real vLLM server, which a receiver writes
in place.

Each step publishes the weights, waits until the server serves them, has it sample, and learns from the samples. A sample's
version is what the server stamped on it, and the demo fails where that is not the newest one.
"""

import json
import re
import subprocess
import time
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import vllm_cpu
from failure import EX_UNAVAILABLE, EX_WRONG, DemoFailed
from grpo import ANSWER_TOKENS, GROUP, PROMPTS, Grpo
from processes import MODEL, Agent, Receiver, reserved_port

import lockstep

START_S = 300  # most of it is importing, and the machine may be busy
WAIT_S = 60


class Vllm:
    """The server, and how it is asked."""

    def __init__(self, workspace, model, follows):
        self._workspace, self._model, self._follows = workspace, model, follows
        self._socket = reserved_port()
        self._port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.process = None

    def start(self):
        environment = vllm_cpu.environment(self._workspace.path, self._follows)
        command = vllm_cpu.command(self._model, self._port)
        self.process = self._workspace.start("vllm", command, environment=environment)
        self._workspace.wait_until(self._is_ready, START_S, [self.process], lambda: "vLLM does not answer")

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
            raise DemoFailed(EX_UNAVAILABLE, f"vLLM does not sample: {error}\n{self.process.log_tail()}") from error
        spans = lambda choice: choice["weight_versions"] or []  # noqa: E731
        return [(choice["token_ids"], {span["version"] for span in spans(choice)}) for choice in choices]


class VllmScenario:
    def __init__(self, workspace, binaries, steps):
        self._workspace, self._binaries, self._steps = workspace, binaries, steps
        checkpoint, engine_socket = workspace.path / "checkpoint", workspace.path / "engine.sock"
        self._grpo = Grpo(checkpoint)
        self._agent = Agent(workspace, binaries)
        self._vllm = Vllm(workspace, checkpoint, {"LOCKSTEP_ENGINE_SOCKET": engine_socket, "LOCKSTEP_MODEL": MODEL})
        engine = {"engine": f"vllm:{self._vllm.url}", "engine_load": "in-place", "engine_socket": engine_socket}
        self._receiver = Receiver(workspace, binaries, "A", self._agent.address, **engine)
        self._clients = ThreadPoolExecutor(PROMPTS)
        self._publisher = None

    def run(self):
        """The result as --json writes it."""
        self._agent.start(WAIT_S)
        self._receiver.start(WAIT_S)
        print("agent and receiver listen; vLLM starts, which takes half a minute", flush=True)
        self._vllm.start()
        print("step  reward  samples         publish->served  pause", flush=True)
        rows = []
        with lockstep.Publisher.from_module(
            self._grpo.model, model=MODEL, socket=self._agent.socket
        ) as self._publisher:
            for step in range(1, self._steps + 1):
                rows.append({"step": step, **self._publish(), **self._learn()})
                print(_line(**rows[-1]), flush=True)
            self._publish()
            self._check_memory()
            self._check_greedy_answers()
            return self._result(rows)

    def _publish(self):
        """The server has the weights afterwards."""
        begun = time.monotonic()
        published = self._publisher.publish()
        try:
            published.wait(engines=1, timeout=WAIT_S)
        except lockstep.DeadlineError as error:
            logs = "\n".join(process.log_tail() for process in (self._receiver.process, self._vllm.process))
            raise DemoFailed(EX_UNAVAILABLE, f"{error}\n{logs}") from error
        served_ms = 1000 * (time.monotonic() - begun)
        self._workspace.wait_until(
            lambda: self._receiver.version >= published.version, WAIT_S, [], self._receiver.standing
        )
        return {"publish_to_served_ms": served_ms, "pause_ms": self._receiver.syncs[-1].pause_ms}

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
        verify = [self._binaries.ctl, "--receiver", self._receiver.address, "verify", "--engines"]
        done = subprocess.run(verify, capture_output=True, text=True, timeout=WAIT_S)
        print(f"\n$ lockstepctl verify --engines\n{done.stdout}{done.stderr}", flush=True)
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
