"""Runs steps, each as processes of its own with a limit of its own, and says of each what came of it. `run.sh` is the command.

A step passed, failed (also by a crash or by its limit), or was not run, and why. Whatever is known is in DIR/results.json at
once and in DIR/log.txt, so that a run that was cut off tells what it found until then. A step prints what it measured as lines

    @figure {"name": ..., "value": ..., "unit": ..., and "goal", "ratio", "met" where there is one}
    @fact {"driver": ..., ...}

and ends with status 0 when it passed, with NOT_RUN, after a line "@not-run WHY", when it cannot be run here.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

NOT_RUN = 77
COUNTS = re.compile(r"\d+ passed, |tests passed|test cases: ")  # in the last line of tests
TAIL_LINES = 25  # of a failed step's output that are shown


@dataclass(frozen=True)
class Step:
    """A command, and how many seconds it may take. `unless`: why it is not to be run here. `shared_bytes`: of shared memory
    that must be free."""

    name: str
    command: "tuple[str, ...]"
    limit_s: float
    unless: str = ""
    environment: "dict[str, str]" = field(default_factory=dict)
    shared_bytes: int = 0


class Shared:
    """A directory of shared memory for what steps keep there, $LOCKSTEP_TEST_SHARED to them. A step that fails or is killed
    leaves files: they go after it, the directory with the run. What a killed run left goes with the next one."""

    def __init__(self, parent: Path = Path("/dev/shm")) -> None:
        self.parent = parent
        self.directory = parent / f"lockstep-gpu-{os.getpid()}"
        for left in parent.glob("lockstep-gpu-*"):
            if not Path("/proc", left.name.rpartition("-")[2]).exists():
                _remove(left)

    def __enter__(self) -> "Shared":
        self.empty()
        return self

    def __exit__(self, *exception: object) -> None:
        _remove(self.directory)

    def empty(self) -> None:
        _remove(self.directory)
        if self.parent.is_dir():
            self.directory.mkdir()

    def total_bytes(self) -> int:
        return shutil.disk_usage(self.parent).total if self.parent.is_dir() else 0

    def free_bytes(self) -> int:
        return shutil.disk_usage(self.parent).free if self.parent.is_dir() else 0

    def lacks(self, step: Step) -> str:
        """Why there is too little for a step; "" when there is enough."""
        free = self.free_bytes()
        if step.shared_bytes <= free:
            return ""
        return f"needs {step.shared_bytes / 1e9:.3g} GB of {self.parent}, and {free / 1e9:.3g} GB are free"


@dataclass
class Outcome:
    """`outcome` is "passed", "failed" or "not run"; `why` says more of the latter two."""

    step: str
    outcome: str
    why: str = ""
    seconds: float = 0.0
    figures: "list[dict]" = field(default_factory=list)
    facts: "dict[str, object]" = field(default_factory=dict)


class Run:
    """Steps' outcomes so far, in `directory`/results.json at any moment.

    Args:
        about: facts about the run as a whole, such as the digest of the sources.
        seconds: that all steps together may take.
        shared: where steps have shared memory.
    """

    def __init__(
        self, directory: Path, steps: "list[Step]", about: "dict[str, object]", seconds: float, shared: Shared
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "log.txt"
        self.results = directory / "results.json"
        self.steps, self.shared = steps, shared
        self.about = {**about, "shared_bytes": shared.total_bytes()}
        self.outcomes: "list[Outcome]" = []
        self._deadline = time.monotonic() + seconds
        self.log.write_bytes(b"")
        self.write(running="")

    def go(self) -> None:
        """All steps, in their order."""
        for step in self.steps:
            self.write(running=step.name)
            self.outcomes.append(self._outcome(step))
            self.write(running="")
            print(_line(self.outcomes[-1]), flush=True)

    def give_up(self, why: str) -> None:
        """None of the steps that are left is run."""
        left = self.steps[len(self.outcomes) :]
        self.outcomes += [Outcome(step.name, "not run", why) for step in left]
        self.write(running="")

    def facts(self) -> "dict[str, object]":
        return {key: value for outcome in self.outcomes for key, value in outcome.facts.items()}

    def figures(self) -> "list[dict]":
        return [figure for outcome in self.outcomes for figure in outcome.figures]

    def count(self, outcome: str) -> int:
        return sum(one.outcome == outcome for one in self.outcomes)

    def finished(self) -> bool:
        return len(self.outcomes) == len(self.steps)

    def write(self, running: str) -> None:
        """A reader of the file sees the state before or after, and never a part."""
        state = {
            **self.about,
            **self.facts(),
            "finished": self.finished(),
            "running": running,
            "steps": [asdict(outcome) for outcome in self.outcomes],
            "left": [step.name for step in self.steps[len(self.outcomes) :]],
        }
        write_whole(self.results, state)

    def status(self) -> int:
        """0: some steps passed and none failed; 1: one failed; NOT_RUN: not a single one was run."""
        if self.count("failed"):
            return 1
        return 0 if self.count("passed") else NOT_RUN

    def table(self) -> str:
        run = self.count("passed") + self.count("failed")
        lines = [_line(outcome) for outcome in self.outcomes]
        if run == 0:
            return "\n".join([*lines, f"0 of {len(self.steps)} run"])
        counts = f"{self.count('passed')} passed, {self.count('failed')} failed, {self.count('not run')} not run"
        return "\n".join([*lines, *map(figure_line, self.figures()), f"{run} of {len(self.steps)} run: {counts}"])

    def _outcome(self, step: Step) -> Outcome:
        unless = step.unless or self.shared.lacks(step)
        if unless:
            return Outcome(step.name, "not run", unless)
        limit = min(step.limit_s, self._deadline - time.monotonic())
        if limit < 1:
            return Outcome(step.name, "not run", "no time was left")
        began = time.monotonic()
        first = self.log.stat().st_size
        with self.log.open("ab") as log:
            log.write(f"\n=== {step.name}\n".encode())
            log.flush()
            try:
                status = _status(step, log, limit, {"LOCKSTEP_TEST_SHARED": str(self.shared.directory)})
            except OSError as error:  # the command is not there
                return Outcome(step.name, "failed", str(error))
            finally:
                self.shared.empty()
        seconds = time.monotonic() - began
        with self.log.open("rb") as log:
            log.seek(first)
            output = log.read().decode(errors="replace").splitlines()
        outcome, why = _judged(status, limit, output)
        if outcome != "not run" and output and COUNTS.search(output[-1]):
            why = f"{why}; {output[-1]}" if why else output[-1]
        if outcome == "failed":
            print("\n".join(output[-TAIL_LINES:]), flush=True)
        figures, facts, wrong = _reported(output)
        if wrong and outcome == "passed":
            outcome, why = "failed", wrong
        return Outcome(step.name, outcome, why, seconds, figures, facts)


def write_whole(path: Path, content: object) -> None:
    """JSON, in place at once."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, path)


def figure_line(figure: dict) -> str:
    """As in `publish_blocked_gpu  52.1 GB/s  0.95 of 54.8 GB/s: >= 0.9, met`."""
    text = f"{figure['name']:<24} {figure['value']:.4g} {figure['unit']}"
    if "ratio" in figure:
        text += f", {figure['ratio']:.3g} of {figure['of']}"
    if "goal" in figure:
        text += f" ({figure['goal']}: {'met' if figure['met'] else 'MISSED'})"
    return text


def _remove(directory: Path) -> None:
    """Also where a process that is being killed adds to it."""
    for _ in range(50):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(0.1)


def _status(step: Step, log: object, limit: float, environment: "dict[str, str]") -> "int | None":
    """The command's exit status; None when it was killed at its limit, with all that it had started."""
    process = subprocess.Popen(
        step.command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, **environment, **step.environment},
        start_new_session=True,
    )
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end_session(process)


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    """What a crashed step leaves running would take the GPU and the time of the next one."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _judged(status: "int | None", limit: float, output: "list[str]") -> "tuple[str, str]":
    if status is None:
        return "failed", f"not done within {limit:.0f} s"
    if status < 0:
        return "failed", f"ended by {signal.Signals(-status).name}"
    if status == NOT_RUN:
        reasons = [line.removeprefix("@not-run ") for line in output if line.startswith("@not-run ")]
        return ("not run", reasons[-1]) if reasons else ("failed", f"ended with status {NOT_RUN} and no reason")
    return ("passed", "") if status == 0 else ("failed", f"ended with status {status}")


def _reported(output: "list[str]") -> "tuple[list[dict], dict[str, object], str]":
    """Figures and facts of a step's output; and what is wrong with them, such as a goal that was missed."""
    figures, facts, wrong = [], {}, ""
    for line in output:
        kind, _, text = line.partition(" ")
        if kind not in ("@figure", "@fact"):
            continue
        try:
            found = json.loads(text)
        except ValueError:
            wrong = f"a torn line: {line[:80]}"
            continue
        if kind == "@fact":
            facts.update(found)
            continue
        figures.append(found)
        if found.get("met") is False:
            wrong = f"{found['name']} is {found['ratio']:.3g}, not {found['goal']}"
    return figures, facts, wrong


def _line(outcome: Outcome) -> str:
    why = f": {outcome.why}" if outcome.why else ""
    return f"{outcome.step:<42} {outcome.seconds:6.1f} s  {outcome.outcome}{why}"
