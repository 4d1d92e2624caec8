"""The examples run."""

import subprocess
import sys

from harness import ROOT
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def test_two_engines_write_at_every_step_what_the_trainers_model_writes(cluster):
    agent, socket = cluster.agent(), cluster.directory / "engine.sock"
    cluster.receiver(agent, engine_load="in-place", engine_socket=socket)
    command = [ROOT / "python/examples/two_engines.py", "--agent-socket", agent.socket, "--engine-socket", socket]
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    log = cluster.directory / "log"
    options = ["--steps", "5", "--tensorboard", log]
    result = subprocess.run(
        [sys.executable, *map(str, command + options)], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"step {step}" for step in range(1, 6)]
    logged = EventAccumulator(str(log)).Reload()
    for name in ("loss", "lockstep/publish_to_served_seconds", "lockstep/model_bytes"):
        assert [event.step for event in logged.Scalars(name)] == [1, 2, 3, 4, 5]
    assert [event.step for event in logged.Scalars("lockstep/density")] == [2, 3, 4, 5]
