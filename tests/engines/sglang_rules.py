"""How SGLang behaves on its control port, for conformance_server.py."""

import time
from pathlib import Path

from engine_core import EngineCore
from http_plumbing import Answer, Request, bearer
from served_model import LoadFailed, ServedModel

# What a call leaves out.
ENDPOINTS: "dict[str, dict]" = {
    "/begin_weight_update": {},
    "/continue_generation": {},
    "/end_weight_update": {},
    "/flush_cache": {},
    "/health": {},
    "/model_info": {},
    "/pause_generation": {},
    "/ready": {},
    "/server_info": {},
    "/update_weight_version": {},
    "/update_weights_from_disk": {"weight_version": None, "flush_cache": True},
    "/weights_checker": {},
}
FOR_ALL = ("/health", "/model_info", "/ready", "/server_info")  # the other ones need the admin key
AGAIN_S = 1.0  # /health looks again after so long
DIES_S = 5


class SglangRules:
    """The HTTP process (paused, versions) before the scheduler (an EngineCore). Requests run unless it is paused."""

    endpoints = ENDPOINTS
    pause_path = "/pause_generation"
    update_path = "/update_weights_from_disk"
    keeps_names = True

    def __init__(self, model: ServedModel, options) -> None:
        self.core = EngineCore(model)
        self.model = model
        self.options = options
        self.paused = False
        self.weight_version = "default"
        self.in_session = False
        self.served_model_name = model.path
        self.up_at = time.monotonic() + options.start_s
        self.healthy = True
        self.load_fault = ""  # "partial", "partial_unsaid", for the next load

    def version(self) -> str:
        return self.weight_version

    def unauthorized(self, request: Request) -> "Answer | None":
        key, admin = self.options.api_key, self.options.admin_api_key
        controls = request.path in ENDPOINTS and request.path not in FOR_ALL
        wanted = (admin or key) if controls else key
        if not wanted or request.path.startswith(("/health", "/ready", "/metrics")) or bearer(request) == wanted:
            return None
        return Answer(401, {"error": "Unauthorized"})

    def answer(self, request: Request) -> Answer:
        refusal = self.unauthorized(request)
        if refusal:
            return refusal
        if request.path == "/generate":
            return self.generate()
        defaults = ENDPOINTS.get(request.path)
        if defaults is None or request.path in self.options.absent:
            return Answer(404, {"detail": "Not Found"})
        return getattr(self, request.path.strip("/"))(request.values(defaults))

    def ready(self, _) -> Answer:
        ready = self.healthy and not self.paused and time.monotonic() >= self.up_at
        return Answer(200 if ready else 503, "")

    def server_info(self, _) -> Answer:
        return Answer(200, {"internal_states": [{"lockstep": one} for one in self.options.incarnations] or [{}]})

    def health(self, _) -> Answer:
        """Asks for a token, which waits while it is paused. What it finds /ready says, too."""
        now = time.monotonic()
        if now < self.up_at:
            return Answer(503, "")
        deadline, up = now + self.options.health_s, False
        while not up and time.monotonic() < deadline:
            time.sleep(AGAIN_S)
            up = not self.paused and not self.core.ended
        self.healthy = up
        return Answer(200 if up else 503, "")

    def model_info(self, _) -> Answer:
        return Answer(200, {"model_path": self.served_model_name, "weight_version": self.weight_version})

    def generate(self) -> Answer:
        """A token comes once it is not paused."""
        while self.paused and not self.core.ended:
            time.sleep(0.02)
        return Answer(200, {})

    def pause_generation(self, _) -> Answer:
        self.paused = True
        return Answer(200, {"message": "Paused.", "status": "ok"})

    def begin_weight_update(self, _) -> Answer:
        return self.session_call(begins=True, refusal="a weight-update session is already open")

    def end_weight_update(self, _) -> Answer:
        return self.session_call(begins=False, refusal="no weight-update session is open")

    def session_call(self, begins: bool, refusal: str) -> Answer:
        success = self.core.call(lambda: self.in_session) != begins
        if success:
            self.in_session = begins
        return Answer(200 if success else 400, {"success": success, "message": "Success" if success else refusal})

    def continue_generation(self, _) -> Answer:
        if self.in_session:
            self.core.violations.append("resumed in a weight-update session, with weights that are not packed")
        self.core.call(self.core.resume)
        self.paused = False
        return Answer(200, {"message": "Continued.", "status": "ok"})

    def flush_cache(self, _) -> Answer:
        if not self.paused:
            return Answer(400, "Not flushed.\n")
        self.core.call(self.core.flush)
        return Answer(200, "Flushed.\n")

    def update_weight_version(self, values) -> Answer:
        self.weight_version = values["new_version"]
        message = f"The version is {self.weight_version}"
        return Answer(200, {"success": True, "message": message, "new_version": self.weight_version})

    def update_weights_from_disk(self, values) -> Answer:
        success, message = self.core.call(lambda: self.load(values))
        if success:
            self.served_model_name = values["model_path"]
            if values["weight_version"] is not None:
                self.weight_version = values["weight_version"]
                message += f" The version is {self.weight_version}."
        content = {"success": success, "message": message, "num_paused_requests": 0}
        return Answer(200 if success else 400, content)

    def weights_checker(self, values) -> Answer:
        """On a CPU, where a hash is the beginning of a SHA-256; two ranks that have all of the model."""
        if values["action"] != "checksum":
            return Answer(400, {"success": False, "message": f"Unsupported action={values['action']}"})
        checksums = self.core.call(lambda: {name: sha256[:16] for name, sha256 in self.model.tensors.items()})
        ranks = [{"checksums": checksums, "per_gpu_checksum": "", "parallelism_info": []} for _ in range(2)]
        return Answer(200, {"success": True, "message": "Success.", "ranks": ranks, "per_engine_checksum": ""})

    def load(self, values) -> "tuple[bool, str]":
        fault, self.load_fault = self.load_fault, ""
        time.sleep(self.options.load_s)
        try:
            self.model.read(Path(values["model_path"]), fails_half_way=bool(fault))
        except LoadFailed as error:
            if not error.touched:
                return False, f"No weights to iterate over: {error}."
            if fault == "partial_unsaid":
                return True, "Updated."
            time.sleep(DIES_S)  # to roll back it reads the new path again, not the old weights, and fails again
            self.core.die(str(error))
        if values["flush_cache"]:
            self.core.flush()
        return True, "Updated."
