"""A process that is forked off one that follows has no part in it."""

import os
import signal
import subprocess
import sys

import pytest

_RANK = """
import os, signal, sys, threading, time
import torch
import lockstep

def fork():
    if os.fork():
        time.sleep(600)
        os._exit(0)
    signal.alarm(120)  # a lock that is never released must not hang the test

follower = lockstep.Follower(torch.nn.Linear(2, 2), model="actor", socket=sys.argv[1])
follower.wait_for(1, timeout=120)

if sys.argv[2] == "inside":
    with follower.serving():
        # Another thread has the gate's lock at the fork.
        threading.Thread(target=lambda: follower._gate._changed.acquire() and time.sleep(600), daemon=True).start()
        time.sleep(0.1)
        fork()
else:
    fork()
try:
    with follower.serving(timeout=1):
        print("it reads", flush=True)
except lockstep.Error as error:
    print(type(error).__name__, error, flush=True)
follower.close()
print("closed", flush=True)
sys.stdin.read()  # until the test ends
os._exit(0)
"""


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_forked_process_reads_nothing_and_does_not_keep_its_dead_parents_connection(receiver, where):
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", _RANK, str(receiver.path), where]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        receiver._listener.settimeout(120)  # until PyTorch is there
        rank = receiver.accept()
        rank.attached()
        rank.commit(1, 1.0)
        refusal = parent.stdout.readline()
        assert "StateError" in refusal and "forked" in refusal
        assert parent.stdout.readline() == "closed\n" and rank.is_silent()
        parent.send_signal(signal.SIGKILL)
        assert rank.is_closed()
    finally:
        parent.kill()
        parent.stdin.close()
        parent.stdout.close()
        parent.wait()
