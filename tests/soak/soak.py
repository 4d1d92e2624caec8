"""Faults for hours: real daemons, and everything that may go wrong, chosen by a seed (tests/soak/run.sh).

faults.py is the table of what goes wrong, sites.py who takes part, checker.py, a process that shares no code with the
product, judges what is shown. Faults overlap where they concern different receivers. After each, the time is taken until
the receiver has the newest version again; backoffs count. One site's agent and first receiver are spared from being
killed in the first half, the other's in the second, so that there are long lives whose growth is seen.
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

from faults import KINDS, Kind, NotNow
from harness import Cluster
from measures import MAY_GROW, Arrivals, Growth, Logs, percentile
from sites import ENGINES, HERE, Site

AT_ONCE = 3
EVERY_S = (0.5, 4.5)  # between the beginnings of two faults
LOOK_S = 0.03
CONVERGES_S = 60  # else it never does
P99_S = 10
CANARY_AFTER_S = 10


class Soak:
    def __init__(self, cluster: Cluster, options) -> None:
        self.options = options
        self.random = random.Random(options.seed)
        self.sites = [
            Site(cluster, name, options.seed, options.megabytes, engines) for name, engines in ENGINES.items()
        ]
        self.places = [place for site in self.sites for place in site.places]
        self.daemons = cluster.daemons
        self.faults: "Counter[str]" = Counter()
        self.missed: "Counter[str]" = Counter()
        self.not_run = sorted(
            kind.name for kind in KINDS if not any(kind.fits(target) for target in self.targets(kind))
        )
        self.converged: "list[tuple[float, str, str]]" = []
        self.failures: "list[str]" = []
        self.wrong: "list[str]" = []
        self.totals = {"readings": 0, "bytes": 0, "discarded": 0}
        self.arrivals, self.growth, self.logs = Arrivals(), Growth(), Logs(self.daemons)
        self.deck: "list[Kind]" = []
        self.over = threading.Event()
        self.working: "list[threading.Thread]" = []
        self.begun = time.monotonic()

    def targets(self, kind: Kind) -> list:
        return self.sites if kind.whole_site else self.places

    # --- what is seen

    def watch(self) -> None:
        next_second = 0.0
        while not self.over.is_set():
            for site in self.sites:
                site.look()
            for place in self.places:
                place.look()
                if late := self.arrivals.look(place):
                    self.fail(late)
                if not place.fault and not place.receiver.running():
                    place.fault = "ended"
                    self.fail(f"{place.name} ended with {place.receiver.process.returncode} by itself")
            if time.monotonic() > next_second:
                next_second = time.monotonic() + 1
                self.growth.look(self.daemons)
                self.logs.look()
            time.sleep(LOOK_S)

    def judge(self, checker: subprocess.Popen) -> None:
        for line in checker.stdout:
            told = json.loads(line)
            if "wrong" in told:
                self.wrong.append(told["wrong"])
                self.say(f"WRONG {told['wrong']}")
            else:
                self.totals = told
        if not self.over.is_set():
            self.fail("the checker ended")

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.begun:7.1f} s  {text}", flush=True)

    def fail(self, text: str) -> None:
        self.failures.append(text)
        self.say(f"FAILED {text}")

    # --- what goes wrong

    def spared(self, target, kind: Kind) -> bool:
        first_half = time.monotonic() - self.begun < self.options.minutes * 30
        site = self.sites[0 if first_half else 1]
        return kind.ends and target in (site, site.places[0])

    def free(self, target, kind: Kind) -> bool:
        places = target.places if kind.whole_site else [target]
        free = not any(place.fault for place in places)
        return free and kind.fits(target) and not self.spared(target, kind)

    def choose(self) -> "tuple[Kind, object] | None":
        """The next kind and whom it befalls; each comes as often as its weight before any comes again."""
        if not self.deck:
            self.deck = [kind for kind in KINDS if kind.name not in self.not_run for _ in range(kind.weight)]
            self.random.shuffle(self.deck)
        for at, kind in enumerate(self.deck):
            targets = [target for target in self.targets(kind) if self.free(target, kind)]
            if targets:
                return self.deck.pop(at), self.random.choice(targets)
            if kind.whole_site and any(kind.fits(s) and not self.spared(s, kind) for s in self.sites):
                return None  # its turn has come: no other begins until a site is free for it
        return None

    def befall(self, kind: Kind, target, seed: int) -> None:
        places = target.places if kind.whole_site else [target]
        choice = random.Random(seed)
        try:
            try:
                heal = kind.inject(target, choice)
            except NotNow:
                self.missed[kind.name] += 1
            else:
                self.faults[kind.name] += 1
                time.sleep(choice.uniform(*kind.seconds))
                heal()
            self.converge(kind, places)
        except Exception as error:
            self.fail(f"{kind.name} at {target.name}: {error!r}")
            for place in places:
                place.fault = f"lost by {kind.name}"

    def converge(self, kind: Kind, places) -> None:
        healed = time.monotonic()
        places[0].site.look()
        newest, left = places[0].site.newest, list(places)
        while left and not self.over.is_set():
            waited = time.monotonic() - healed
            for place in [place for place in left if place.has >= newest or waited > CONVERGES_S]:
                left.remove(place)
                self.converged.append((waited, place.name, kind.name))
                place.calm_since, place.fault = time.monotonic(), ""
                if waited > CONVERGES_S:
                    place.fault = f"lost by {kind.name}"
                    has = f"shows {place.shown}" + (f", its engine {place.engine.served}" if place.engine else "")
                    self.fail(f"{place.name} {has}, not {newest}, {waited:.0f} s after: {kind.name}")
                elif waited > P99_S:
                    self.say(f"slow: {waited:.1f} s at {place.name} after: {kind.name}")
            time.sleep(LOOK_S)

    def begin(self, kind: Kind, target) -> None:
        for place in target.places if kind.whole_site else [target]:
            place.fault = kind.name
        if self.options.verbose:
            self.say(f"{target.name}: {kind.name}")
        worker = threading.Thread(target=self.befall, args=(kind, target, self.random.randrange(1 << 32)), daemon=True)
        worker.start()
        self.working.append(worker)

    def plant_canary(self) -> None:
        """One wrong byte in what a receiver shows, until somebody notices."""
        place = self.places[-1]
        while place.fault:
            time.sleep(LOOK_S)
        place.fault = "canary"
        shown = place.shown
        while place.shown == shown:
            time.sleep(LOOK_S)
        with (place.current / "model.safetensors").open("r+b") as file:
            at = os.fstat(file.fileno()).st_size // 2
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))
        self.say(f"canary: byte {at} of what {place.name} shows as version {place.shown} is wrong now")

    def run(self) -> None:
        for site in self.sites:
            site.start()
        self.begun = time.monotonic()
        for place in self.places:
            place.calm_since = self.begun
        threading.Thread(target=self.watch, daemon=True).start()
        ends = self.begun + self.options.minutes * 60
        if self.options.canary:
            threading.Timer(CANARY_AFTER_S, self.plant_canary).start()
        while time.monotonic() < ends and not self.wrong:
            self.working = [worker for worker in self.working if worker.is_alive()]
            chosen = self.choose() if len(self.working) < AT_ONCE else None
            if chosen:
                self.begin(*chosen)
            time.sleep(self.random.uniform(*EVERY_S) if chosen else LOOK_S)
        for worker in self.working:
            worker.join(timeout=0 if self.wrong else 2 * CONVERGES_S)
        time.sleep(3)  # the checker reads what came last
        self.over.set()

    # --- what came of it

    def report(self) -> dict:
        self.logs.look()
        after = [seconds for seconds, _, _ in self.converged]
        calm = self.arrivals.seconds
        everything = after + calm
        self.failures += [f"it grew: {text}" for text in self.growth.too_much()]
        self.failures += [f"logged: {bug}" for bug in Logs.BUGS if self.logs.events[bug]]
        for what, values in {"after faults": after, "from publish": calm}.items():
            if percentile(values, 99) > P99_S:
                self.failures.append(f"convergence {what}: p99 is {percentile(values, 99):.1f} s, not under {P99_S} s")
        figures = {
            what: {"count": len(values), "p50": percentile(values, 50), "p99": percentile(values, 99)}
            for what, values in {"all": everything, "after_faults": after, "from_publish": calm}.items()
        }
        return {
            "seed": self.options.seed,
            "minutes": (time.monotonic() - self.begun) / 60,
            "versions": sum(len(site.versions) for site in self.sites),
            "pulls": dict(self.logs.pulls),
            "faults": dict(self.faults),
            "missed": dict(self.missed),
            "not_run": self.not_run,
            "repaired_blocks": self.logs.repaired_blocks,
            "checker": self.totals,
            "wrong": self.wrong,
            "convergence_s": figures,
            "slowest": sorted(self.converged, reverse=True)[:10],
            "growth": self.growth.grown(),
            "logged": dict(self.logs.events),
            "failures": self.failures,
        }


def show(report: dict) -> None:
    total = sum(report["faults"].values())
    print(f"versions        {report['versions']}")
    print(f"pulls           {sum(report['pulls'].values())}  {report['pulls']}")
    print(f"faults          {total}, of {len(report['faults'])} kinds")
    for name, count in sorted(report["faults"].items()):
        print(f"  {count:6}  {name}")
    for name, count in sorted(report["missed"].items()):
        print(f"  {count:6}  times its moment did not come: {name}")
    for name in report["not_run"]:
        print(f"     NOT RUN, for it cannot be brought about here: {name}")
    print(f"repairs         {report['repaired_blocks']} blocks")
    checker = report["checker"]
    print(f"wrong commits   {len(report['wrong'])}, of {checker['readings']} readings of {checker['bytes'] >> 20} MiB")
    for what, figure in report["convergence_s"].items():
        print(f"convergence     p50 {figure['p50']:.2f} s, p99 {figure['p99']:.2f} s  ({what}: {figure['count']})")
    for seconds, place, kind in report["slowest"][:5]:
        print(f"  {seconds:6.1f} s  {place} after: {kind}")
    if not report["growth"]:
        print("growth          not measured: no process lived long enough")
    for what in MAY_GROW:
        most = max(report["growth"], key=lambda entry: entry[what][1] - entry[what][0], default=None)
        if most:
            first, last = most[what]
            print(f"growth          {what}: at most {last - first:+.0f} ({first:.0f} to {last:.0f}), {most['daemon']}")
    print(f"logged          {report['logged']}")
    for failure in report["failures"]:
        print(f"FAILED {failure}")
    for wrong in report["wrong"]:
        print(f"error: wrong commit: {wrong}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests/soak/run.sh")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--megabytes", type=int, default=24, help="of each model")
    parser.add_argument("--canary", action="store_true", help="plants one wrong byte: the run must end with an error")
    parser.add_argument("--json", type=Path, help="the report as JSON")
    parser.add_argument("--keep", type=Path, help="where the daemons' logs are left when it fails")
    parser.add_argument("--verbose", action="store_true", help="names every fault as it begins")
    try:
        options = parser.parse_args()
    except SystemExit as end:
        return 64 if end.code else 0
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(Cluster())
        soak = Soak(cluster, options)
        for site in soak.sites:
            stack.callback(site.close)
        places = [
            {
                "name": place.name,
                "root": str(place.root / "actor"),
                "truth": str(place.site.truth),
                "given": str(place.engine.given if place.engine else "/dev/null"),
            }
            for place in soak.places
        ]
        config = cluster.directory / "checker.json"
        config.write_text(json.dumps({"places": places}))
        checker = subprocess.Popen([sys.executable, HERE / "checker.py", config], stdout=subprocess.PIPE, text=True)
        stack.callback(checker.wait)
        stack.callback(checker.kill)
        threading.Thread(target=soak.judge, args=(checker,), daemon=True).start()
        soak.run()
        report = soak.report()
        if report["failures"] or report["wrong"]:
            kept = Path(tempfile.mkdtemp(prefix="lockstep-soak-", dir=options.keep))
            for log in (*cluster.directory.rglob("*.log"), *cluster.directory.rglob("log")):
                (kept / "-".join(log.relative_to(cluster.directory).parts)).write_bytes(log.read_bytes())
            print(f"logs are in {kept}")
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    failed = bool(report["failures"] or report["wrong"])
    print("failed" if failed else "passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
