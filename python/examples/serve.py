#!/usr/bin/env python3
"""A small inference server whose weights follow a trainer while it answers: a transformers model behind HTTP.

    raas_receiver --model actor --engine-load in-place
    serve.py --model-dir CHECKPOINT --model actor --port 8000

    POST /generate {"prompt_ids": [1, 2, 3], "max_new_tokens": 16}
         {"ids": [...], "run": "0123...", "version": 42, "label": "step 120"}     all of them by this version
    GET /stats
         {"answers": 7, "run": ..., "version": 42, "updates": 41, "pause_ms": {"p50": ..., "max": ...}, "wait_ms": ...}

Only config.json is read from the checkpoint: weights come from the receiver. Greedy, one CPU thread a request.
"""

import argparse
import collections
import json
import statistics
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Sequence

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import lockstep

_MAX_BODY_BYTES = 1 << 20
_MAX_NEW_TOKENS = 4096
_KEPT_WAITS = 1024
_CLIENT_TIMEOUT_S = 60


def build_model(model_dir: str) -> torch.nn.Module:
    """The module that ``model_dir``'s config.json describes, in the checkpoint's dtype, with no weights of meaning."""
    config = AutoConfig.from_pretrained(model_dir)
    return AutoModelForCausalLM.from_config(config, dtype=config.dtype or torch.float32).eval()


@torch.inference_mode()
def greedy(model: torch.nn.Module, prompt_ids: "Sequence[int]", max_new_tokens: int) -> "list[int]":
    """The most likely continuation of ``prompt_ids``, token by token; the end-of-sequence token is one like others."""
    ids, cache, made = torch.tensor([list(prompt_ids)]), None, []
    for _ in range(max_new_tokens):
        out = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        ids = out.logits[:, -1].argmax(dim=-1, keepdim=True)
        made.append(int(ids))
    return made


class Server:
    """Answers prompts while ``follower`` keeps ``model`` in step. Any threads.

    Attributes:
        port: where it listens on the loopback device, once made.
    """

    def __init__(self, model: torch.nn.Module, follower: lockstep.Follower, port: int = 0) -> None:
        self._model, self._follower = model, follower
        self._lock = threading.Lock()
        self._answers = 0
        self._waits: "collections.deque[float]" = collections.deque(maxlen=_KEPT_WAITS)  # of answers, for their version
        handler = type("Handler", (_Handler,), {"server_": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", port), handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]

    def serve_forever(self) -> None:
        """Until ``shutdown`` is called by another thread."""
        self._http.serve_forever(poll_interval=0.05)

    def shutdown(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def generate(self, request: "dict[str, Any]") -> "dict[str, Any]":
        """One answer, all of it by one version. ValueError has what is wrong with the request."""
        prompt, count = request.get("prompt_ids"), request.get("max_new_tokens", 16)
        vocabulary = self._model.config.vocab_size
        tokens = isinstance(prompt, list) and all(type(token) is int and 0 <= token < vocabulary for token in prompt)
        if not tokens or not prompt:
            raise ValueError(f"prompt_ids must be a list of tokens, each below {vocabulary}")
        if type(count) is not int or not 0 < count <= _MAX_NEW_TOKENS:
            raise ValueError(f"max_new_tokens must be 1 to {_MAX_NEW_TOKENS}")
        begin = time.monotonic()
        with self._follower.serving() as served:
            with self._lock:
                self._answers += 1
                self._waits.append(time.monotonic() - begin)
            ids = greedy(self._model, prompt, count)
        return {"ids": ids, "run": served.run, "version": served.version, "label": served.label}

    def stats(self) -> "dict[str, Any]":
        """Counts, what is served now, and how long the last updates paused the model and the last answers waited."""
        served, pauses = self._follower.served, self._follower.pauses
        with self._lock:
            answers, waits = self._answers, list(self._waits)
        return {
            "answers": answers,
            "run": served.run if served else None,
            "version": served.version if served else None,
            "error": self._follower.error,
            "updates": len(pauses),
            "pause_ms": _summary(pauses),
            "wait_ms": _summary(waits),
        }


def _summary(seconds: "list[float]") -> "dict[str, float] | None":
    if not seconds:
        return None
    return {"p50": 1e3 * statistics.median(seconds), "max": 1e3 * max(seconds)}


class _Handler(BaseHTTPRequestHandler):
    server_: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = _CLIENT_TIMEOUT_S  # for a client that sends nothing more

    def do_GET(self) -> None:
        if self.path == "/stats":
            self._answer(200, self.server_.stats())
        else:
            self._answer(404, {"error": "there are POST /generate and GET /stats"})

    def do_POST(self) -> None:
        try:
            size = int(self.headers.get("Content-Length", "0"))
            if not 0 <= size <= _MAX_BODY_BYTES:
                raise ValueError(f"a body of {size} bytes")
            request = json.loads(self.rfile.read(size))
            if self.path != "/generate" or not isinstance(request, dict):
                raise ValueError("POST /generate takes a JSON object")
            self._answer(200, self.server_.generate(request))
        except lockstep.Error as error:
            self._answer(503, {"error": str(error)})
        except ValueError as error:
            self.close_connection = True
            self._answer(400, {"error": str(error)})

    def _answer(self, status: int, body: "dict[str, Any]") -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Quiet: there is /stats."""


def main(arguments: "Sequence[str] | None" = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model-dir", required=True, help="a HuggingFace directory; its config.json is enough")
    parser.add_argument("--socket", help="the receiver's --engine-socket, where it is not in its usual place")
    parser.add_argument("--model", required=True, help="the receiver's name for the model")
    parser.add_argument("--port", type=int, default=0, help="on 127.0.0.1; 0 for any free one")
    parser.add_argument("--engine-name", default="default")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    model = build_model(options.model_dir)
    with lockstep.Follower(
        model,
        model=options.model,
        socket=options.socket,
        engine_name=options.engine_name,
    ) as follower:
        server = Server(model, follower, options.port)
        print(json.dumps({"port": server.port}), flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
