"""A server that generates without stopping while its weights follow a training: every answer is by just one version."""

import json
import random
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import torch
from harness import MODEL, ROOT, wait_until
from tiny_trainer import Trainer
from transformers import AutoModelForCausalLM

EXAMPLE = ROOT / "python/examples"
sys.path.insert(0, str(EXAMPLE))
import serve  # noqa: E402

VERSIONS = 30
CLIENTS = 2
NEW_TOKENS = 16


class Server:
    """The example server as a process."""

    def __init__(self, checkpoint: Path, socket: Path) -> None:
        command = [EXAMPLE / "serve.py", "--model-dir", checkpoint, "--socket", socket, "--model", MODEL]
        environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, *map(str, command)], stdout=subprocess.PIPE, env=environment, text=True
        )
        self._port = json.loads(self._process.stdout.readline())["port"]

    def generate(self, prompt: "list[int]") -> dict:
        body = json.dumps({"prompt_ids": prompt, "max_new_tokens": NEW_TOKENS}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/generate", body, timeout=60) as answer:
            return json.load(answer)

    def stats(self) -> dict:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/stats", timeout=60) as answer:
            return json.load(answer)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()


class Clients:
    """Threads that ask without a pause, and keep what they were answered."""

    def __init__(self, server: Server, vocabulary: int) -> None:
        self.answers: "list[tuple[list[int], dict]]" = []
        self._errors: "list[BaseException]" = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(server, vocabulary, seed)) for seed in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors, self._errors[0]

    def have_answers_by(self, version: int) -> bool:
        assert not self._errors, self._errors[0]
        return any(answer["version"] == version for _, answer in self.answers)

    def _ask(self, server: Server, vocabulary: int, seed: int) -> None:
        prompts = random.Random(seed)
        try:
            while not self._stop.is_set():
                prompt = [prompts.randrange(vocabulary) for _ in range(5)]
                self.answers.append((prompt, server.generate(prompt)))
        except BaseException as error:
            self._errors.append(error)


def test_every_answer_is_what_one_versions_checkpoint_gives(cluster, record_property):
    agent = cluster.agent()
    socket = cluster.directory / "engine.sock"
    receiver = cluster.receiver(agent, engine_load="in-place", engine_socket=socket)
    trainer = Trainer("qwen3", cluster.directory / "checkpoints", agent.socket, MODEL)
    checkpoints = {1: trainer.publish(1)}
    server = Server(checkpoints[1], socket)
    try:
        clients = Clients(server, trainer.config.vocab_size)
        for version in range(2, VERSIONS + 1):
            trainer.step()
            seen = len(clients.answers)
            checkpoints[version] = trainer.publish(version)
            wait_until(lambda: len(clients.answers) >= seen + CLIENTS, "the clients are answered")
            if version % 3:  # every third version comes on top of the one before
                wait_until(lambda: clients.have_answers_by(version), f"answers by version {version}", timeout_s=60)
        clients.stop()
        stats, engine = server.stats(), receiver.model_status()["rank_groups"][0]
    finally:
        server.close()
        trainer.close()

    by_version: "dict[int, list[tuple[list[int], list[int]]]]" = {}
    for prompt, answer in clients.answers:
        by_version.setdefault(answer["version"], []).append((prompt, answer["ids"]))
    assert len(by_version) > VERSIONS // 2, "the server did not follow"
    for version, answers in by_version.items():
        model = AutoModelForCausalLM.from_pretrained(checkpoints[version], dtype=torch.bfloat16).eval()
        for prompt, ids in answers:
            assert serve.greedy(model, prompt, NEW_TOKENS) == ids, f"version {version}, prompt {prompt}"
    assert stats["updates"] >= len(by_version) and stats["answers"] == len(clients.answers)
    assert 0 < stats["pause_ms"]["p50"] <= stats["pause_ms"]["max"] and stats["error"] is None
    assert engine["commits"] >= len(by_version) and engine["last_pause_us"] > 0
    record_property("pause_ms", json.dumps(stats["pause_ms"]))
    print(f"{stats['updates']} updates, pause in ms {stats['pause_ms']}, {len(clients.answers)} answers")
