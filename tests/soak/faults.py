"""What goes wrong in a soak: a table of kinds, each with how it is brought about and what ends it.

A kind is of one place (a receiver, its engine, its links) or of a whole site (its agent, its trainer). inject() brings it
about and answers heal(); after that every place concerned must come to the newest version.
"""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import time
import urllib.request
from dataclasses import dataclass
from random import Random
from typing import Callable

from harness import MODEL
from links import DOWN, UP

EDGE_S = 10  # a version comes sooner
SYNC_STATES = ("negotiate", "pull_delta", "pull_full", "verify", "apply", "commit", "switch")
AGENT_EVENTS = ("version_begun", "rank_finished", "version_committed", "pull_opened")
STEPS_IN_PLACE = ("prepared", "held", "written", "serve")
LOADS = {"sglang": "/update_weights_from_disk", "vllm": "/collective_rpc"}


class NotNow(Exception):
    """The moment for the fault did not come."""


@dataclass(frozen=True)
class Kind:
    name: str
    inject: "Callable[..., Callable[[], object]]"  # of a Place or Site, and a Random
    fits: "Callable[..., bool]" = lambda target: True
    seconds: "tuple[float, float]" = (1, 6)
    ends: bool = False  # the process
    whole_site: bool = False
    weight: int = 2  # how often it is chosen


def nothing() -> None:
    pass


# --- processes


def killed(daemon):
    daemon.kill()
    return daemon.start


def killed_at(daemon, needle: str, random: Random):
    """By SIGKILL, within 20 ms of the line in its log that has `needle`."""
    deadline = time.monotonic() + EDGE_S
    with daemon.log_path.open() as log:
        log.seek(0, os.SEEK_END)
        while needle not in log.readline():
            if time.monotonic() > deadline:
                raise NotNow
            time.sleep(0.001)
    time.sleep(random.choice((0, random.uniform(0, 0.02))))
    return killed(daemon)


def stopped(process: subprocess.Popen):
    process.send_signal(signal.SIGSTOP)
    return lambda: process.send_signal(signal.SIGCONT)


def left(place, random: Random):
    """It ends as it is told to; who comes in its place finds its directory, or nothing."""
    status = place.receiver.stop(timeout_s=20)
    assert status == 0, f"{place.name} ended with {status} when it was told to end"
    if random.random() < 0.5:
        shutil.rmtree(place.root / MODEL)
    return place.receiver.start


# --- what they need


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
    has = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (has, before[1]))
    return lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def rotated(ca, name: str):
    ca.issue(name)
    return nothing


# --- links


def held(link, ways, torn: bool):
    link.hold(*ways)
    return lambda: link.heal(torn)


def refused(link):
    link.refuse()
    return link.heal


def damaged(link):
    link.damage = 3
    return link.heal


# --- engines


def engine_does(engine, what: str, **more):
    """Every load until it is healed: "status" is a refusal."""
    if engine.over_http:
        give_faults(engine, [{"endpoint": LOADS[engine.kind], "kind": what, "times": 1000, **more}])
        return lambda: give_faults(engine, [])
    engine.fault_file.write_text({"status": "refuse"}.get(what, what))
    return engine.fault_file.unlink


def give_faults(engine, faults: "list[dict]") -> None:
    address = f"http://{engine.port.address}/conformance/faults"
    urllib.request.urlopen(address, json.dumps(faults).encode(), timeout=10).close()


def engine_killed(engine):
    engine.kill()
    engine.given.open("a").write('{"version": 0}\n')
    return engine.start


def asleep(engine):
    engine.process.send_signal(signal.SIGUSR1)
    return lambda: engine.process.send_signal(signal.SIGUSR2)


def has_engine(*kinds: str):
    return lambda place: place.engine is not None and place.engine.kind in kinds


def has_links(place) -> bool:
    return bool(place.links)


LOADING, SERVERS = has_engine("hook", "sglang", "vllm"), has_engine("sglang", "vllm")
WITH_PROCESS, IN_PLACE = has_engine("sglang", "vllm", "in-place"), has_engine("in-place")

KINDS = [
    Kind("receiver killed", lambda p, _: killed(p.receiver), ends=True, weight=4),
    Kind("receiver stopped", lambda p, _: stopped(p.receiver.process), seconds=(1, 15), weight=6),
    Kind("receiver left, another came", left, seconds=(0, 3), ends=True, weight=6),
    *(
        Kind(
            f"receiver killed in {state}",
            lambda p, random, state=state: killed_at(p.receiver, f'"state":"{state}"', random),
            ends=True,
            weight=1,
        )
        for state in SYNC_STATES
    ),
    Kind(
        "receiver killed at a call to its engine",
        lambda p, random: killed_at(p.receiver, '"engine_called"', random),
        SERVERS,
        ends=True,
    ),
    *(
        Kind(
            f"receiver killed at engine's {step}",
            lambda p, random, step=step: killed_at(p.receiver, f'"step":"{step}"', random),
            IN_PLACE,
            ends=True,
            weight=1,
        )
        for step in STEPS_IN_PLACE
    ),
    Kind("receiver's disk full", lambda p, _: full(p.root), lambda p: p.has_disk, weight=6),
    Kind("receiver without descriptors", lambda p, _: without_descriptors(p.receiver), weight=6),
    Kind("receiver's certificate rotated", lambda p, _: rotated(p.site.ca, p.name), lambda p: p.site.ca is not None),
    *(
        Kind(
            f"{name} link held {what}, {'torn' if torn else 'resumed'}",
            lambda p, _, name=name, ways=ways, torn=torn: held(p.links[name], ways, torn),
            has_links,
            seconds=(1, 12),
            weight=1,
        )
        for name in ("control", "lanes")
        for what, ways in {"up": (UP,), "down": (DOWN,), "both ways": (UP, DOWN)}.items()
        for torn in (False, True)
    ),
    *(
        Kind(f"{name} link refused", lambda p, _, name=name: refused(p.links[name]), has_links)
        for name in ("control", "lanes")
    ),
    Kind("lanes link damaged", lambda p, _: damaged(p.links["lanes"]), has_links, seconds=(6, 8)),
    Kind("engine refuses", lambda p, _: engine_does(p.engine, "status"), LOADING, weight=3),
    Kind("engine hangs", lambda p, _: engine_does(p.engine, "hang"), LOADING, weight=3),
    Kind("engine slow", lambda p, _: engine_does(p.engine, "slow", delay_s=1), LOADING),
    Kind("engine loads half", lambda p, _: engine_does(p.engine, "partial"), SERVERS),
    Kind("engine's answer cut", lambda p, _: engine_does(p.engine, "truncated", effect=True), SERVERS),
    Kind("engine killed", lambda p, _: engine_killed(p.engine), WITH_PROCESS),
    Kind("engine stopped", lambda p, _: stopped(p.engine.process), WITH_PROCESS, seconds=(1, 10)),
    Kind("engine asleep", lambda p, _: asleep(p.engine), IN_PLACE, seconds=(1, 10)),
    Kind("agent killed", lambda s, _: killed(s.agent), ends=True, whole_site=True, weight=1),
    *(
        Kind(
            f"agent killed at {event}",
            lambda s, random, event=event: killed_at(s.agent, f'"{event}"', random),
            ends=True,
            whole_site=True,
            weight=1,
        )
        for event in AGENT_EVENTS
    ),
    Kind("agent stopped", lambda s, _: stopped(s.agent.process), seconds=(1, 8), whole_site=True, weight=1),
    Kind("agent's disk full", lambda s, _: full(s.segments), lambda s: s.has_disk, whole_site=True),
    Kind("agent without descriptors", lambda s, _: without_descriptors(s.agent), whole_site=True),
    Kind(
        "agent's certificate rotated", lambda s, _: rotated(s.ca, "agent"), lambda s: s.ca is not None, whole_site=True
    ),
    Kind("trainer stopped", lambda s, _: stopped(s.trainer), seconds=(1, 8), whole_site=True, weight=1),
    Kind(
        "trainer killed, another goes on",
        lambda s, _: (s.kill_trainer(), s.start_trainer)[1],
        whole_site=True,
        weight=1,
    ),
    Kind(
        "trainer killed, another begins",
        lambda s, _: (s.kill_trainer(), lambda: s.start_trainer(same_run=False))[1],
        whole_site=True,
        weight=1,
    ),
]
