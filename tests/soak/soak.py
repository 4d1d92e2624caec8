"""Faults for hours: real daemons, and everything that may go wrong, chosen by a seed (tests/soak/run.sh).

faults.py is the table of what goes wrong, sites.py what takes part; checker.py judges what is shown. Faults overlap where
they concern different receivers. After each, the time is taken until the receiver has the newest version again; the
product's backoffs count. One site's agent and first receiver are not killed in the first half, the other's in the second:
growth is seen in long lives.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from faults import KINDS, Kind, NotNow, flip
from harness import Cluster, Served
from measures import Arrivals, Growth, Logs, report_of, show
from sites import ENGINES, HERE, Site

AT_ONCE = 4
EVERY_S = (0.5, 4.5)  # between the beginnings of two faults
LOOK_S = 0.03
CONVERGES_S = 60  # else it never does
CANARY_AFTER_S = 5


class Soak:
    def __init__(self, cluster: Cluster, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.options = options
        self.random = random.Random(options.seed)
        self.sites: "list[Site]" = []
        for name, engines in ENGINES.items():
            self.sites.append(Site(cluster, name, options.seed, options.megabytes, engines))
            stack.callback(self.sites[-1].close)
        self.places = [place for site in self.sites for place in site.places]
        self.daemons = [daemon for daemon in cluster.daemons if isinstance(daemon, Served)]
        self.deck: "list[Kind]" = []
        self.faults: "Counter[str]" = Counter()
        self.missed: "Counter[str]" = Counter()
        self.not_run = [kind.name for kind in KINDS if not any(map(kind.fits, self.targets(kind)))]
        self.converged: "list[tuple[float, str, str]]" = []  # seconds, place, after what
        self.failures: "list[str]" = []
        self.wrong: "list[str]" = []
        self.checked: "dict[str, int]" = {"readings": 0, "bytes": 0}
        self.arrivals, self.growth, self.logs = Arrivals(), Growth(), Logs(self.daemons)
        self.over = threading.Event()
        self.begun = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun:7.1f} s  {text}", flush=True)

    def fail(self, text: str) -> None:
        self.failures.append(text)
        self.say(f"FAILED {text}")

    def watch(self) -> None:
        next_second = 0.0
        while not self.over.wait(LOOK_S):
            for site in self.sites:
                site.look()
            for place in self.places:
                place.look()
                late = self.arrivals.look(place)
                if not place.fault and (late or not place.receiver.running()):
                    self.fail(late or f"{place.name} ended by itself: {place.receiver.process.returncode}")
                    place.fault = "lost"
            if time.monotonic() > next_second:
                next_second = time.monotonic() + 1
                self.growth.look(self.daemons)
                self.logs.look()

    def judge(self, checker: subprocess.Popen) -> None:
        for line in checker.stdout:
            told = json.loads(line)
            if "wrong" in told:
                self.wrong.append(told["wrong"])
                self.say(f"WRONG {told['wrong']}")
            else:
                self.checked = told
        if not self.over.is_set():
            self.fail("the checker ended")

    def targets(self, kind: Kind) -> list:
        return self.sites if kind.whole_site else self.places

    def fits(self, kind: Kind, target) -> bool:
        site = self.sites[0 if time.monotonic() - self.begun < self.options.minutes * 30 else 1]
        return kind.fits(target) and not (kind.ends and target in (site, site.places[0]))

    def choose(self) -> "tuple[Kind, Site | object] | None":
        """The next kind and its target. Each comes as often as its weight says before any comes again."""
        if not any(self.fits(kind, target) for kind in self.deck for target in self.targets(kind)):
            self.deck = [kind for kind in KINDS if kind.name not in self.not_run for _ in range(kind.weight)]
            self.random.shuffle(self.deck)
        for at, kind in enumerate(self.deck):
            fitting = [target for target in self.targets(kind) if self.fits(kind, target)]
            free = [target for target in fitting if not any(place.fault for place in target.places)]
            if free:
                return self.deck.pop(at), self.random.choice(free)
            if fitting and kind.whole_site:
                return None  # its turn has come: nothing else begins until a site is free
        return None

    def befall(self, kind: Kind, target, seed: int) -> None:
        choice, problem = random.Random(seed), ""
        try:
            heal = kind.inject(target, choice)
            self.faults[kind.name] += 1
            time.sleep(choice.uniform(*kind.seconds))
            heal()
        except NotNow:
            self.missed[kind.name] += 1
        except Exception as error:
            problem = f"{error!r}"
        daemons = (target.places[0].site.agent, *(place.receiver for place in target.places))
        for daemon in [daemon for daemon in daemons if not daemon.running()]:
            problem = f"{daemon.name} ended with {daemon.process.returncode}: {daemon.log_tail().splitlines()[-1:]}"
            daemon.start()
        if problem:
            self.fail(f"{kind.name} at {target.name}: {problem}")
        self.converge(kind, target)

    def converge(self, kind: Kind, target) -> None:
        healed, newest, left = time.monotonic(), target.places[0].site.newest, list(target.places)
        while left and not self.over.wait(LOOK_S):
            waited = time.monotonic() - healed
            for place in [place for place in left if place.has >= newest or waited > CONVERGES_S]:
                left.remove(place)
                self.converged.append((waited, place.name, kind.name))
                place.calm_since, place.fault = time.monotonic(), ""
                if waited > CONVERGES_S:
                    self.fail(f"{place.name} has {place.has}, not {newest}, {waited:.0f} s after {kind.name}")

    def begin(self, kind: Kind, target) -> threading.Thread:
        for place in target.places:
            place.fault = kind.name
        if self.options.verbose:
            self.say(f"{target.name}: {kind.name}")
        worker = threading.Thread(target=self.befall, args=(kind, target, self.random.getrandbits(32)), daemon=True)
        worker.start()
        return worker

    def plant_canary(self) -> None:
        """One wrong byte in what a receiver shows, as soon as it shows it."""
        place = self.places[-1]
        while place.fault:
            time.sleep(LOOK_S)
        place.fault, shown = "canary", place.shown
        while place.shown == shown:
            time.sleep(LOOK_S)
        with (place.current / "model.safetensors").open("r+b") as file:
            at = os.fstat(file.fileno()).st_size // 2
            flip(file, random.Random(at), at)
        self.say(f"canary: byte {at} of version {place.shown}, shown by {place.name}, is wrong now")

    def run(self) -> None:
        for site in self.sites:
            site.start()
        self.begun = time.monotonic()
        for place in self.places:
            place.calm_since = self.begun
        watcher = threading.Thread(target=self.watch, daemon=True)
        watcher.start()
        if self.options.canary:
            threading.Timer(CANARY_AFTER_S, self.plant_canary).start()
        workers: "list[threading.Thread]" = []
        while time.monotonic() < self.begun + self.options.minutes * 60 and not self.wrong:
            workers = [worker for worker in workers if worker.is_alive()]
            chosen = self.choose() if len(workers) < AT_ONCE else None
            if chosen:
                workers.append(self.begin(*chosen))
            time.sleep(self.random.uniform(*EVERY_S) if chosen else LOOK_S)
        for worker in workers:
            worker.join(timeout=0 if self.wrong else 2 * CONVERGES_S)
        time.sleep(0 if self.wrong else 3)  # the checker reads what came last
        self.over.set()
        watcher.join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/soak/run.sh")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--megabytes", type=int, default=24, help="of each trainer's model")
    parser.add_argument("--canary", action="store_true", help="plants one wrong byte: the run must end with an error")
    parser.add_argument("--json", type=Path, help="file for the report as JSON")
    parser.add_argument("--logs", type=Path, help="directory for the logs of a run that failed, below it")
    parser.add_argument("--verbose", action="store_true", help="names each fault as it begins")
    try:
        options = parser.parse_args()
    except SystemExit as end:
        return 64 if end.code else 0
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    with Cluster() as cluster, contextlib.ExitStack() as stack:
        soak = Soak(cluster, options, stack)
        config = cluster.directory / "checker.json"
        config.write_text(json.dumps([place.for_checker() for place in soak.places]))
        checker = subprocess.Popen([sys.executable, HERE / "checker.py", config], stdout=subprocess.PIPE, text=True)
        stack.callback(checker.wait)
        stack.callback(checker.kill)
        threading.Thread(target=soak.judge, args=(checker,), daemon=True).start()
        soak.run()
        outcome = report_of(soak)
        if not outcome["passed"]:
            kept = Path(tempfile.mkdtemp(prefix="lockstep-soak-", dir=options.logs))
            for log in cluster.directory.rglob("*.log"):
                (kept / "-".join(log.relative_to(cluster.directory).parts)).write_bytes(log.read_bytes())
            print(f"logs are in {kept}")
    show(outcome)
    if options.json:
        options.json.write_text(json.dumps(outcome, indent=1))
    return 0 if outcome["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
