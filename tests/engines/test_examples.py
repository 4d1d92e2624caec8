"""The examples run."""

import subprocess
import sys

from harness import ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def test_two_engines_write_at_every_step_what_the_trainers_model_writes_in_one_run_and_the_next(cluster):
    agent, socket = cluster.agent(), cluster.directory / "engine.sock"
    cluster.receiver(agent, engine_load="in-place", engine_socket=socket)
    command = [ROOT / "python/examples/two_engines.py", "--agent-socket", agent.socket, "--engine-socket", socket]
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    log = cluster.directory / "log"

    def run(*options: object) -> "list[str]":
        words = [sys.executable, *map(str, [*command, *options])]
        result = subprocess.run(words, capture_output=True, text=True, env=environment)
        assert result.returncode == 0, result.stderr
        return [line.partition(",")[0] for line in result.stdout.splitlines()]

    assert run("--steps", 5, "--tensorboard", log) == [f"step {step}" for step in range(1, 6)]
    assert run("--steps", 2) == ["step 1", "step 2"]  # in a new run, whose versions begin again
    logged = EventAccumulator(str(log)).Reload()
    for name in ("loss", "lockstep/publish_to_served_seconds", "lockstep/model_bytes"):
        assert [event.step for event in logged.Scalars(name)] == [1, 2, 3, 4, 5]
    assert [event.step for event in logged.Scalars("lockstep/density")] == [2, 3, 4, 5]
