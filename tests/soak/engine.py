"""Stand-ins for inference engines in a soak: each writes down what it was given, hashed by itself, for the checker.

    engine.py hook GIVEN FAULT                       run by the receiver: reads the directory, or does what FAULT says
    engine.py http GIVEN KIND PORT DIRECTORY         a server as tests/engines has it; it gets its faults over HTTP
    engine.py in-place GIVEN SOCKET MEGABYTES        its memory is written; SIGUSR1 puts it to sleep, SIGUSR2 wakes it

A line of GIVEN is {"run", "version", "label", "sha256"}; version 0: it serves nothing now.
"""

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path

from checker import hashes_of

PARENT = os.getppid()  # a server ends with it


def give(path: str, run: str = "", version: int = 0, label: str = "", **more) -> None:
    with open(path, "a") as file:
        file.write(json.dumps({"run": run, "version": version, "label": label, **more}) + "\n")


def hook(given: str, fault: str) -> None:
    kind = Path(fault).read_text() if os.path.exists(fault) else ""
    if kind == "status":
        sys.exit("the engine refuses")
    time.sleep({"hang": 3600, "slow": 1}.get(kind, 0))
    of = os.environ
    hashes = hashes_of(Path(of["LOCKSTEP_PATH"]) / "model.safetensors")
    give(given, of["LOCKSTEP_RUN"], int(of["LOCKSTEP_VERSION"]), of["LOCKSTEP_LABEL"], sha256=hashes)


def http(given: str, kind: str, port: str, directory: str) -> None:
    from conformance_server import ConformanceServer

    server = ConformanceServer(kind, directory, int(port))
    answer = server.rules.answer

    def answer_and_tell(request):
        answered = answer(request)
        name, _, label = (server.rules.version() or "").partition("/")
        if request.path in ("/resume", "/continue_generation") and answered.status == 200 and "-" in name:
            run, _, version = name.partition("-")
            give(given, run, int(version), label, sha256=dict(server.model.tensors))
        for violation in server.violations:
            give(given, violation=violation)
        server.violations.clear()
        server.log.clear()
        return answered

    server.rules.answer = answer_and_tell
    give(given)
    while os.getppid() == PARENT and not server.core.ended:
        time.sleep(0.2)


def in_place(given: str, socket: str, megabytes: str) -> None:
    import torch
    from trainer import Model

    import lockstep

    torch.set_num_threads(1)
    module = torch.nn.Module()
    module.layers = torch.nn.ModuleList()
    for tensor in Model(0, int(megabytes)).tensors.values():
        layer = torch.nn.Module()
        layer.weight = torch.nn.Parameter(torch.zeros(tensor.size, dtype=torch.float16), requires_grad=False)
        module.layers.append(layer)
    wanted: "list[int]" = []
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, _: wanted.append(number))
    follower = lockstep.Follower(module, model="actor", socket=socket)
    give(given)
    last = None
    while os.getppid() == PARENT:
        time.sleep(0.03)
        number = wanted.pop(0) if wanted else None
        if number == signal.SIGUSR1:
            follower.sleep()
            for parameter in module.parameters():
                parameter.zero_()
            give(given)
            last = None
        elif number == signal.SIGUSR2:
            follower.wake()
        if follower.served in (None, last):
            continue
        with follower.serving(timeout=60) as served:
            hashes = {n: hashlib.sha256(p.numpy()).hexdigest() for n, p in module.named_parameters()}
            give(given, served.run, served.version, served.label, sha256=hashes)
            last = served


if __name__ == "__main__":
    {"hook": hook, "http": http, "in-place": in_place}[sys.argv[1]](*sys.argv[2:])
