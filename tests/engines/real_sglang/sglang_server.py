"""An SGLang server on the CPU, by SGLang's own implementations in PyTorch, and how it is asked for tokens; for the tests of
this directory."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from harness import ROOT
from real_server import Answer, RealServer, Span, install_package

_HERE = Path(__file__).parent
_PACKAGES = ROOT / ".cache" / "sglang"


class SglangServer(RealServer):
    """Serves ``model``, a directory.

    Args:
        follows: $LOCKSTEP_ENGINE_SOCKET and such; empty: it loads directories when asked.
        options: further ones of SGLang's server.
    """

    def __init__(
        self, model: Path, directory: Path, *options: str, follows: "dict[str, Any] | None" = None, name: str = "sglang"
    ) -> None:
        assert _PACKAGES.is_dir(), f"{_PACKAGES} is missing: tests/run.sh installs it"
        packages = [_HERE / "packages", _PACKAGES, *install_package(directory / "installed")]
        environment = {
            "PYTHONPATH": os.pathsep.join(map(str, packages)),
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_EXTERNAL_MODEL_PACKAGE": "served_models",
            "SGLANG_CACHE_DIR": str(directory / "cache"),
            "TMPDIR": str(directory),  # sockets stay, too
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            **{name: str(value) for name, value in (follows or {}).items()},
        }
        super().__init__(
            name,
            lambda port: [
                *(sys.executable, _HERE / "serve.py", "--model-path", model, "--host", "127.0.0.1", "--port", port),
                *("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32"),
                *("--skip-tokenizer-init", "--grammar-backend", "none"),
                *("--max-total-tokens", "8192", "--max-running-requests", "16", *options),
            ],
            environment,
            directory,
        )

    def ask(self, prompt: "list[int]", new_tokens: int, stream: bool = False) -> Answer:
        """Greedy tokens."""
        body = {
            "input_ids": prompt,
            "sampling_params": {"max_new_tokens": new_tokens, "temperature": 0, "ignore_eos": True},
            "stream": stream,
        }
        if not stream:
            return _answer(prompt, self.post("/generate", body))
        with self.open("/generate", body) as lines:
            texts = [line[len(b"data: ") :] for line in lines if line.startswith(b"data: ")]
        assert texts and texts[-1].strip() == b"[DONE]", f"the stream ended with {texts[-1:]}"
        return _answer(prompt, json.loads(texts[-2]))


def _answer(prompt: "list[int]", said: "dict[str, Any]") -> Answer:
    about = said["meta_info"]
    spans = [Span(span["version"], span["start"], span["end"]) for span in about["weight_versions"]]
    return Answer(prompt, said["output_ids"], spans, about["finish_reason"]["type"])
