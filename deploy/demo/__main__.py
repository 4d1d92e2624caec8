"""Runs the demo: flags, build, memory check, scenario, report."""

import argparse
import signal
import subprocess
import sys
from pathlib import Path

from failure import EX_OK, EX_OSERR, EX_UNAVAILABLE, EX_USAGE, DemoFailed
from memory import check_memory
from models import SHAPES, of_checkpoint, of_shape
from processes import Binaries
from report import print_report, summarize, write_json
from scenario import MIN_STEPS, MIN_STEPS_WITH_AGENT_KILL, Scenario
from workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]

EXIT_STATUSES = f"""\
exit status:
  {EX_OK}   every replica equals the trainer's bytes, and every sync was verified
  1   it does not, or a sync went another way than it should have
  {EX_USAGE}  a flag is wrong
  {EX_UNAVAILABLE}  something is missing, or was late: the message says what, with its log
  {EX_OSERR}  the machine has too little memory for this model
"""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(EX_USAGE, f"demo.sh: {message}; see --help\n")


def parse_flags(arguments):
    parser = Parser(
        prog="demo.sh",
        description="Shows Lockstep at work and proves what it did.",
        epilog=EXIT_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--shape", choices=SHAPES, default="tiny", help="made-up weights of a real layout")
    source.add_argument("--checkpoint", type=Path, metavar="DIR", help="start from this HuggingFace directory")
    parser.add_argument("--steps", type=int, default=12, metavar="N", help="optimizer steps (12)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there, too")
    parser.add_argument("--kill-agent", action="store_true", help="SIGKILL the agent in mid-run and start it again")
    parser.add_argument(
        "--keep", action="store_true", help="leave the directories, with logs and replicas, where they are"
    )
    parser.add_argument("--no-build", action="store_true", help="neither install nor build: run what bazel-bin holds")
    flags = parser.parse_args(arguments)
    least = MIN_STEPS_WITH_AGENT_KILL if flags.kill_agent else MIN_STEPS
    if flags.steps < least:
        parser.error(f"--steps must be {least} or more: receivers join, die and come back between the steps")
    if flags.checkpoint and not flags.checkpoint.is_dir():
        parser.error(f"--checkpoint {flags.checkpoint} is not a directory")
    if flags.json and not flags.json.absolute().parent.is_dir():
        parser.error(f"--json {flags.json}: there is no such directory")
    return flags


def build():
    print("building (a first time takes some minutes) ...", flush=True)
    command = ["bazel", "build", *Binaries.TARGETS]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise DemoFailed(EX_UNAVAILABLE, "the build failed; the reason is above")


def run(flags):
    if not flags.no_build:
        build()
    binaries = Binaries(ROOT)
    binaries.check()
    model = of_checkpoint(flags.checkpoint) if flags.checkpoint else of_shape(flags.shape)
    check_memory(model)
    with Workspace(keep=flags.keep) as workspace:
        outcome = Scenario(workspace, binaries, model, flags).run()
        result = summarize(model, outcome)
        print_report(model, outcome, result)
        if flags.json:
            write_json(flags.json, result)
    return EX_OK if not outcome.complaints else 1


def end_on_signal(number, _frame):
    raise DemoFailed(128 + number, f"ended by {signal.Signals(number).name}")


def main():
    flags = parse_flags(sys.argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_on_signal)
    try:
        return run(flags)
    except DemoFailed as failure:
        print(f"demo.sh: {failure}", file=sys.stderr)
        return failure.exit_status


sys.exit(main())
