"""How vLLM behaves on its control port, for conformance_server.py."""

import time
from pathlib import Path

from engine_core import EngineCore
from http_plumbing import Answer, Request, bearer
from served_model import GARBAGE, LoadFailed, ServedModel, tensors_in

# What a call leaves out.
ENDPOINTS: "dict[str, dict]" = {
    "/collective_rpc": {},
    "/is_paused": {},
    "/pause": {"mode": "abort", "clear_cache": True},
    "/reset_prefix_cache": {"reset_running_requests": False},
    "/resume": {},
    "/update_weight_version": {},
    "/weight_checker": {},
    "/weight_info": {},
}
GUARDED = ("/v1", "/v2", "/inference", "/cohere")


class WorkerError(Exception):
    """What the engine core or a worker raised: a 500 for the caller."""


def layer_of(name: str) -> str:
    """The module that a reload completes as a whole: "model.layers.0" of "model.layers.0.mlp.up_proj.weight"."""
    parts = name.split(".")
    return ".".join(parts[:3]) if "layers" in parts else name


class VllmRules:
    """The API server before the engine core. Control calls wait in turn for the core, health does not."""

    endpoints = ENDPOINTS
    pause_path = "/pause"
    update_path = "/collective_rpc"
    keeps_names = True

    def __init__(self, model: ServedModel, options) -> None:
        self.core = EngineCore(model)
        self.model = model
        self.options = options
        self.paused = ""  # the mode
        self.weight_version = "default"
        self.begun: "dict[str, int]" = {}  # layers left begun by a reload that failed, and how many tensors they took
        self.load_fault = ""  # "partial", "partial_unsaid", for the next reload

    def version(self) -> str:
        return self.weight_version

    def answer(self, request: Request) -> Answer:
        key = self.options.api_key
        if key and request.path.startswith(GUARDED) and bearer(request) != key:
            return Answer(401, {"error": "Unauthorized"})
        if request.path == "/health":
            return Answer(200, "")
        defaults = ENDPOINTS.get(request.path)
        if defaults is None or request.path in self.options.absent:
            return Answer(404, {"detail": "Not Found"})
        try:
            return getattr(self, request.path.strip("/"))(request.values(defaults))
        except WorkerError as error:
            message = {"message": str(error), "type": "InternalServerError", "param": None, "code": 500}
            return Answer(500, {"error": message})

    def pause(self, values) -> Answer:
        self.paused = values["mode"]
        if values["clear_cache"]:
            self.core.call(self.core.flush)
        return Answer(200, {"status": "paused"})

    def resume(self, _) -> Answer:
        self.core.call(self.core.resume)
        self.paused = ""
        return Answer(200, {"status": "resumed"})

    def is_paused(self, _) -> Answer:
        return Answer(200, {"is_paused": bool(self.core.call(lambda: self.paused))})

    def weight_info(self, _) -> Answer:
        return Answer(200, {"weight_version": self.core.call(self.version)})

    def weight_checker(self, values) -> Answer:
        """Workers that have all of the model."""
        if values["action"] != "checksum":
            raise WorkerError(f"{values['action']} is not what drivers ask for")
        tensors = self.core.call(lambda: dict(self.model.tensors))
        ranks = [f"dp0:pp0:pcp0:tp{number}:" for number in range(self.options.workers)]
        return Answer(200, {"checksums": {rank + name: sha256 for rank in ranks for name, sha256 in tensors.items()}})

    def update_weight_version(self, values) -> Answer:
        self.weight_version = values["new_version"]
        return Answer(200, {"success": True, "new_version": self.weight_version})

    def reset_prefix_cache(self, values) -> Answer:
        """Where requests run, or go on after the pause, they must be reset, too."""
        success = values["reset_running_requests"] or self.paused in ("abort", "wait")
        if success:
            self.core.call(self.core.flush)
        return Answer(200, {"success": success})

    def collective_rpc(self, values) -> Answer:
        return Answer(200, {"results": self.core.call(lambda: self.call_workers(values))})

    def call_workers(self, body: dict) -> list:
        failed = "collective_rpc: a worker failed:"
        if body["method"] == "lockstep_incarnation" and self.options.incarnations:  # lockstep's plugin is there
            return list(self.options.incarnations)
        if body["method"] != "reload_weights":
            raise WorkerError(f"{failed} it has no {body['method']}")
        if body.get("timeout") is not None and body["timeout"] < self.options.load_s:
            raise WorkerError("reload_weights took too long")
        try:
            time.sleep(self.options.load_s)
            self.reload(Path(body.get("kwargs", {}).get("weights_path") or self.model.path))
        except LoadFailed as error:
            raise WorkerError(f"{failed} {error}") from None
        return [None] * self.options.workers

    def tensors_of(self, layer: str) -> "list[str]":
        return [name for name in self.model.tensors if layer_of(name) == layer]

    def break_off(self, loaded: "dict[str, int]") -> None:
        """What a reload leaves that ends in the middle: layers without all their tensors are on no device."""
        layers = {layer_of(name) for name in self.model.tensors}
        begun = [layer for layer in layers if loaded.get(layer, 0) < len(self.tensors_of(layer))]
        self.begun = {layer: loaded.get(layer, 0) for layer in begun}
        for layer in begun:
            for name in self.tensors_of(layer):
                self.model.put(name, GARBAGE)

    def reload(self, directory: Path) -> None:
        """Layer by layer. A layer that a failed reload left begun is complete as soon as enough tensors came, be they
        from the one or from the other; the end of a reload forgets what was begun."""
        fault, self.load_fault = self.load_fault, ""
        self.model.path = str(directory)
        found = tensors_in(directory)
        self.model.load += 1
        loaded: "dict[str, int]" = {}
        for index, (name, sha256) in enumerate(found):
            layer = layer_of(name)
            if fault == "partial_unsaid" and index >= len(found) // 2:
                return
            if fault and index >= len(found) // 2:
                self.break_off(loaded)
                raise LoadFailed(f"{name} cannot be read", touched=True)
            loaded[layer] = loaded.get(layer, 0) + 1
            surplus = loaded[layer] + self.begun.get(layer, 0) > len(self.tensors_of(layer))
            self.model.put(name, GARBAGE if surplus else sha256)
        self.begun = {}
