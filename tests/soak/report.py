"""What a soak came to: judged, as JSON, and for people (soak.py)."""

from measures import BUGS, MAY_GROW, percentile

P99_S = 10


def of(soak) -> dict:
    soak.logs.look()
    seconds = {"after faults": [waited for waited, _, _ in soak.converged], "from publish": soak.arrivals.seconds}
    seconds["all"] = seconds["after faults"] + seconds["from publish"]
    convergence = {
        what: {"count": len(values), "p50": percentile(values, 50), "p99": percentile(values, 99)}
        for what, values in seconds.items()
    }
    failures = soak.failures + soak.growth.too_much()
    failures += [f"a daemon logged {event}" for event in BUGS if soak.logs.events[event]]
    failures += [
        f"convergence, {what}: p99 is {figure['p99']:.1f} s, not under {P99_S} s"
        for what, figure in convergence.items()
        if figure["p99"] >= P99_S
    ]
    return {
        "seed": soak.options.seed,
        "minutes": soak.options.minutes,
        "versions": sum(len(site.versions) for site in soak.sites),
        "pulls": dict(soak.logs.pulls),
        "faults": dict(sorted(soak.faults.items())),
        "missed": dict(sorted(soak.missed.items())),
        "not_run": soak.not_run,
        "repaired_blocks": soak.logs.repaired_blocks,
        "checked": soak.checked,
        "wrong": soak.wrong,
        "convergence_s": convergence,
        "slowest": sorted(soak.converged, reverse=True)[:10],
        "growth": soak.growth.grown(),
        "logged": dict(soak.logs.events),
        "failures": failures,
        "passed": not failures and not soak.wrong,
    }


def show(report: dict) -> None:
    checked = report["checked"]
    print(f"soak           {report['minutes']:g} minutes, seed {report['seed']}")
    print(f"versions       {report['versions']}")
    print(f"pulls          {sum(report['pulls'].values())}: {report['pulls']}")
    print(f"faults         {sum(report['faults'].values())}, of {len(report['faults'])} kinds")
    for name, count in report["faults"].items():
        print(f"{count:10}  {name}")
    for name, count in report["missed"].items():
        print(f"{count:10}  times not, for its moment did not come: {name}")
    for name in report["not_run"]:
        print(f"   NOT RUN  {name}: not possible here")
    print(f"repairs        {report['repaired_blocks']} blocks")
    print(f"wrong commits  {len(report['wrong'])}, of {checked['readings']} readings, {checked['bytes'] >> 20} MiB")
    for what, figure in report["convergence_s"].items():
        print(f"convergence    p50 {figure['p50']:.2f} s, p99 {figure['p99']:.2f} s: {what}, {figure['count']} times")
    for seconds, place, kind in report["slowest"][:3]:
        print(f"{seconds:10.1f} s  {place} after: {kind}")
    if not report["growth"]:
        print("growth         not measured: no process lived for long")
    for what, most in MAY_GROW.items() if report["growth"] else ():
        one = max(report["growth"], key=lambda one: one[what][1] - one[what][0])
        first, last = one[what]
        print(f"growth         {what} {first:.0f} to {last:.0f}, {one['daemon']}: the most; it may be {most}")
    print(f"logged         {report['logged']}")
    for text in report["failures"]:
        print(f"FAILED {text}")
    for text in report["wrong"]:
        print(f"error: wrong commit: {text}")
    print("passed" if report["passed"] else "failed")
