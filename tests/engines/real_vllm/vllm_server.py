"""A vLLM server with its kernels for CPUs, as deploy/demo.sh starts it, and how it is asked for tokens."""

import json
from pathlib import Path
from typing import Any

from real_server import Answer, RealServer, Span, vllm_cpu


class VllmServer(RealServer):
    """Serves ``model``, a directory.

    Args:
        follows: $LOCKSTEP_ENGINE_SOCKET and such; empty: it loads directories when asked.
        options: further ones of ``vllm serve``.
    """

    def __init__(
        self, model: Path, directory: Path, *options: str, follows: "dict[str, Any] | None" = None, name: str = "vllm"
    ) -> None:
        assert vllm_cpu.PACKAGES[0].is_dir(), f"{vllm_cpu.PACKAGES[0]} is missing: tests/run.sh installs it"
        self.model = str(model)
        super().__init__(
            name,
            lambda port: vllm_cpu.command(model, port, *options),
            vllm_cpu.environment(directory, follows or {}),
            directory,
        )

    def ask(self, prompt: "list[int]", new_tokens: int, stream: bool = False, model: str = "m") -> Answer:
        """Greedy tokens."""
        body = {
            "model": model,
            "token_ids": prompt,
            "sampling_params": {"max_tokens": new_tokens, "temperature": 0, "ignore_eos": True},
            "stream": stream,
        }
        if not stream:
            return _answer(prompt, [self.post("/inference/v1/generate", body)["choices"][0]])
        with self.open("/inference/v1/generate", body) as lines:
            texts = [line[len(b"data: ") :] for line in lines if line.startswith(b"data: ")]
        assert texts and texts[-1].strip() == b"[DONE]", f"the stream ended with {texts[-1:]}"
        return _answer(prompt, [json.loads(text)["choices"][0] for text in texts[:-1]])


def _answer(prompt: "list[int]", choices: "list[dict[str, Any]]") -> Answer:
    return Answer(
        prompt,
        [token for choice in choices for token in choice["token_ids"]],
        [
            Span(span["version"], span["start"], span["end"])
            for choice in choices
            for span in choice["weight_versions"] or []
        ],
        choices[-1]["finish_reason"],
    )
