"""What goes wrong in a soak: a table of kinds, each with how it is brought about and what ends it (soak.py chooses).

A kind is of one place (a receiver, its engine, its links) or of a whole site (its agent, its trainer). inject() brings it
about and answers heal(); after that every place concerned must come to the newest version, and no process have ended.
"""

import contextlib
import itertools
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from random import Random
from typing import Callable

from harness import MODEL, Daemon
from links import DOWN, UP

EDGE_S = 10  # a version comes sooner
SYNC_STATES = ("negotiate", "pull_delta", "verify", "apply", "commit")
STEPS_IN_PLACE = ("prepared", "paused", "written", "serve")
AGENT_EVENTS = ("version_begun", "rank_finished", "version_committed", "pull_opened")
LOADS = {"sglang": "/update_weights_from_disk", "vllm": "/collective_rpc"}
WAYS = {"up": (UP,), "down": (DOWN,), "both ways": (UP, DOWN)}


class NotNow(Exception):
    """The moment for the fault did not come."""


@dataclass(frozen=True)
class Kind:
    name: str
    inject: "Callable[..., Callable[[], object]]"  # of a Place or Site, and a Random
    weight: int = 2  # how often it is chosen
    seconds: "tuple[float, float]" = (1, 8)
    fits: "Callable[..., bool]" = lambda target: True
    ends: bool = False  # the process of a daemon
    whole_site: bool = False


def nothing() -> None:
    pass


def flip(file, random: Random, at: "int | None" = None) -> None:
    """One bit of an open file, anywhere behind its first MiB or in the byte `at`."""
    file.seek(random.randrange(1 << 20, os.fstat(file.fileno()).st_size) if at is None else at)
    byte = file.read(1)[0]
    file.seek(-1, os.SEEK_CUR)
    file.write(bytes([byte ^ 1 << random.randrange(8)]))


def killed(daemon):
    daemon.kill()
    return daemon.start


def killed_at(daemon, needle: str, random: Random, begin=nothing):
    """By SIGKILL, within 20 ms of the line in its log that has `needle`; `begin` makes it come."""
    deadline = time.monotonic() + EDGE_S
    with daemon.log_path.open() as log:
        log.seek(0, os.SEEK_END)
        begin()
        while needle not in log.readline():
            if time.monotonic() > deadline:
                raise NotNow
            time.sleep(0.001)
    time.sleep(random.choice((0, random.uniform(0, 0.02))))
    return killed(daemon)


def killed_at_first(place, random: Random):
    """In the first pull of all."""
    place.receiver.kill()
    shutil.rmtree(place.root / MODEL)
    return killed_at(place.receiver, '"state":"pull_full"', random, lambda: Daemon.start(place.receiver))


def left(place, random: Random):
    """It ends as it should; its successor finds its directory, or nothing."""
    status = place.receiver.stop(timeout_s=20)
    assert status == 0, f"it ended with {status} when it was told to end"
    if random.random() < 0.5:
        shutil.rmtree(place.root / MODEL)
    return place.receiver.start


def stopped(process: subprocess.Popen):
    process.send_signal(signal.SIGSTOP)
    return lambda: process.send_signal(signal.SIGCONT)


def rotten(place, random: Random):
    """One bit flips of the replica that is not shown, and is the next to be written (raas_receiver/replica/FORMAT.md)."""
    go_on = stopped(place.receiver.process)
    try:
        shown = (place.current / "model.safetensors").stat().st_ino
        hidden, states = place.root / MODEL / ".lockstep", {}
        for number in (0, 1):
            state = (hidden / f"replica-{number}.state").read_bytes()
            states[struct.unpack_from("<Q", state, 32)] = hidden / f"replica-{number}.safetensors"
        older = states[min(states)]
        with open(os.open(older, os.O_RDWR | os.O_NONBLOCK), "r+b") as file:  # a lease: it is being written
            if older.stat().st_ino == shown:
                raise NotNow
            flip(file, random)
    except OSError:
        raise NotNow from None
    finally:
        go_on()
    return nothing


def full(directory):
    """Not one byte is left of the disk."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for piece in (1 << 20, 4096):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(piece))
    return ballast.unlink


def without_descriptors(daemon):
    """It gets no more than it has."""
    pid = daemon.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), before[1]))
    return lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def rotated(ca, name: str):
    ca.issue(name)
    return nothing


def loads(engine, fault: str, **more):
    """Every load until it is healed: "status" is a refusal."""
    if engine.over_http:
        give_faults(engine, [{"endpoint": LOADS[engine.kind], "kind": fault, "times": 1000, **more}])
        return lambda: give_faults(engine, [])
    engine.fault_file.write_text(fault)
    return engine.fault_file.unlink


def give_faults(engine, faults: "list[dict]") -> None:
    address = f"http://{engine.port.address}/conformance/faults"
    urllib.request.urlopen(address, json.dumps(faults).encode(), timeout=10).close()


def asleep(engine):
    engine.process.send_signal(signal.SIGUSR1)
    return lambda: engine.process.send_signal(signal.SIGUSR2)


def has_engine(*kinds: str):
    return lambda place: place.engine is not None and place.engine.kind in kinds


def is_far(place) -> bool:
    return bool(place.links)


LOADING, SERVERS = has_engine("hook", "sglang", "vllm"), has_engine("sglang", "vllm")
WITH_PROCESS, IN_PLACE = has_engine("sglang", "vllm", "in-place"), has_engine("in-place")


def killed_when(moment: str, needle: str, **options) -> Kind:
    return Kind(f"receiver killed {moment}", lambda p, r: killed_at(p.receiver, needle, r), 1, ends=True, **options)


def link_held(name: str, ways: str, torn: bool) -> Kind:
    end = "torn" if torn else "resumed"
    return Kind(
        f"{name} link held {ways}, {end}", lambda p, _: p.links[name].held(WAYS[ways], torn), 1, (1, 12), is_far
    )


def of_site(name: str, inject, weight: int = 1, **options) -> Kind:
    return Kind(name, inject, weight, whole_site=True, **options)


KINDS = [
    Kind("receiver killed", lambda p, _: killed(p.receiver), 3, ends=True),
    Kind("receiver killed in its first pull", killed_at_first, ends=True),
    *(killed_when(f"in {state}", f'"state":"{state}"') for state in SYNC_STATES),
    killed_when("at a call to its engine", '"engine_called"', fits=SERVERS),
    *(killed_when(f"at engine's {step}", f'"step":"{step}"', fits=IN_PLACE) for step in STEPS_IN_PLACE),
    Kind("receiver left, another came", left, 6, (0, 3), ends=True),
    Kind("receiver stopped", lambda p, _: stopped(p.receiver.process), 6, (1, 15)),
    Kind("receiver's other replica damaged", rotten, 3),
    Kind("receiver's disk full", lambda p, _: full(p.root), 6, fits=lambda p: p.has_disk),
    Kind("receiver without descriptors", lambda p, _: without_descriptors(p.receiver), 6),
    Kind("receiver's certificate rotated", lambda p, _: rotated(p.site.ca, p.name), fits=is_far),
    *(link_held(*row) for row in itertools.product(("control", "lanes"), WAYS, (False, True))),
    Kind("control link refused", lambda p, _: p.links["control"].refused(), fits=is_far),
    Kind("lanes link refused", lambda p, _: p.links["lanes"].refused(), fits=is_far),
    Kind("lanes link damaged", lambda p, _: p.links["lanes"].damaged(), seconds=(6, 8), fits=is_far),
    Kind("engine refuses", lambda p, _: loads(p.engine, "status"), 3, fits=LOADING),
    Kind("engine hangs", lambda p, _: loads(p.engine, "hang"), 3, fits=LOADING),
    Kind("engine slow", lambda p, _: loads(p.engine, "slow", delay_s=1), fits=LOADING),
    Kind("engine loads half", lambda p, _: loads(p.engine, "partial"), fits=SERVERS),
    Kind("engine's answer cut", lambda p, _: loads(p.engine, "truncated", effect=True), fits=SERVERS),
    Kind("engine killed", lambda p, _: p.engine.killed(), fits=WITH_PROCESS),
    Kind("engine stopped", lambda p, _: stopped(p.engine.process), seconds=(1, 10), fits=WITH_PROCESS),
    Kind("engine asleep", lambda p, _: asleep(p.engine), seconds=(1, 10), fits=IN_PLACE),
    of_site("agent killed", lambda s, _: killed(s.agent), ends=True),
    *(
        of_site(f"agent killed at {event}", lambda s, r, event=event: killed_at(s.agent, f'"{event}"', r), ends=True)
        for event in AGENT_EVENTS
    ),
    of_site("agent stopped", lambda s, _: stopped(s.agent.process)),
    of_site("agent's disk full", lambda s, _: full(s.segments), 2, fits=lambda s: s.has_disk),
    of_site("agent without descriptors", lambda s, _: without_descriptors(s.agent), 2),
    of_site("agent's certificate rotated", lambda s, _: rotated(s.ca, "agent"), fits=lambda s: s.ca is not None),
    of_site("trainer stopped", lambda s, _: stopped(s.trainer.process)),
    of_site("trainer killed, another goes on", lambda s, _: s.killed_trainer(same_run=True)),
    of_site("trainer killed, another begins", lambda s, _: s.killed_trainer(same_run=False)),
]
