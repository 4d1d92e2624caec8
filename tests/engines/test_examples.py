"""The examples run."""

import subprocess
import sys

from harness import ROOT


def test_two_engines_write_at_every_step_what_the_trainers_model_writes(cluster):
    agent, socket = cluster.agent(), cluster.directory / "engine.sock"
    cluster.receiver(agent, engine_load="in-place", engine_socket=socket)
    command = [ROOT / "python/examples/two_engines.py", "--agent-socket", agent.socket, "--engine-socket", socket]
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *map(str, command), "--steps", "5"], capture_output=True, text=True, env=environment
    )
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line.partition(",")[0] for line in lines] == [f"step {step}" for step in range(1, 6)]
