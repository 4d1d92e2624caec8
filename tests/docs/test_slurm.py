"""The job script of docs/howto/slurm.md under Slurm itself: three nodes, each with a network and a /dev/shm of its own.

It trains the first listing of docs/setups.md on one node. `vllm` is a stand-in: the conformance server, and a module
that the receiver writes in place.
"""

import os
import sys
from pathlib import Path

import pytest
from hf_models import tiny_config, write_checkpoint
from test_listings import listing, run_alone

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make nodes"),
]

NODES = ("n0", "n1", "n2")
CONFIGURATION = """
ClusterName=test
SlurmctldHost=ctl
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
StateSaveLocation={state}
SlurmdSpoolDir={state}/%n
SlurmctldPidFile={state}/ctl.pid
SlurmdPidFile={state}/%n.pid
SlurmctldLogFile={state}/ctl.log
SlurmdLogFile={state}/%n.log
SlurmdParameters=config_overrides
NodeName=n[0-2] CPUs=16 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES
"""
CLUSTER = """
set -eu
hostname ctl
mount --bind hosts /etc/hosts
mount -t tmpfs none /run; mkdir -p /run/netns /run/munge; chmod 755 /run/munge
mount -t tmpfs none /sys/fs/cgroup
mount -t tmpfs none /etc/munge; mount -t tmpfs none /var/lib/munge; mount -t tmpfs none /var/log/munge
chmod 700 /etc/munge /var/lib/munge /var/log/munge
head -c 1024 /dev/urandom > /etc/munge/munge.key; chmod 400 /etc/munge/munge.key
mount -t tmpfs none /etc/slurm; cp slurm.conf cgroup.conf /etc/slurm
munged
ip link set lo up
ip link add bridge type bridge; ip addr add 10.20.0.254/16 dev bridge; ip link set bridge up
for i in 0 1 2; do
  ip netns add n$i
  ip link add v$i type veth peer name e$i; ip link set v$i master bridge up; ip link set e$i netns n$i
  ip netns exec n$i sh -c "ip link set lo up; ip addr add 10.20.0.$((i + 1))/16 dev e$i; ip link set e$i up"
done
slurmctld
for i in 0 1 2; do
  ip netns exec n$i unshare --mount --uts sh -c "hostname n$i; mount -t tmpfs none /dev/shm; slurmd -N n$i"
done
until [ "$(sinfo --noheader --format=%T)" = idle ]; do sleep 0.2; done
sbatch --wait --output job.log job.sh
for node in n0 n1 n2; do
  left=$(nsenter --target "$(cat state/$node.pid)" --mount ls /dev/shm)
  [ -z "$left" ] || { echo "$node has $left"; exit 1; }
done
"""
ENGINE = """
import os, socket, sys, time
import lockstep, torch
from conformance_server import ConformanceServer
from transformers import AutoModelForCausalLM

server = ConformanceServer("vllm", sys.argv[2], 8000)
module = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.bfloat16)
follower = lockstep.Follower(module, model=os.environ["LOCKSTEP_MODEL"])
last = None
while True:
    with follower.serving() as served:
        if served.label != last:
            last = served.label
            print(f"{socket.gethostname()} serves step {last}", flush=True)
    time.sleep(0.01)
"""


def program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_the_job_script_runs_and_leaves_nothing_on_its_nodes(tmp_path):
    (tmp_path / "state").mkdir()
    for node in NODES:
        (tmp_path / "state" / node).mkdir()
    names = "\n".join(f"10.20.0.{number + 1} {node}" for number, node in enumerate(NODES))
    (tmp_path / "hosts").write_text(f"127.0.0.1 localhost\n10.20.0.254 ctl\n{names}\n")
    (tmp_path / "slurm.conf").write_text(CONFIGURATION.format(state=tmp_path / "state"))
    (tmp_path / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupMountpoint=/sys/fs/cgroup\n")
    (tmp_path / "job.sh").write_text(listing("docs/howto/slurm.md", 2))
    (tmp_path / "train.py").write_text(listing("docs/setups.md", 1))
    (tmp_path / "engine.py").write_text(ENGINE)
    write_checkpoint(tmp_path / "checkpoint", tiny_config("qwen3"), seed=3)
    programs = tmp_path / "programs"
    programs.mkdir()
    program(programs / "vllm", f'exec {sys.executable} {tmp_path}/engine.py "$@"')
    program(programs / "torchrun", f'exec {sys.executable} -m torch.distributed.run --standalone "$@"')
    checkpoint = tmp_path / "checkpoint"
    ran = run_alone(CLUSTER, tmp_path, programs=(programs,), timeout_s=300, CHECKPOINT=checkpoint, USER="root")
    log = (tmp_path / "job.log").read_text() if (tmp_path / "job.log").exists() else ""
    assert ran.returncode == 0, ran.stdout + log[-6000:]
    for node in NODES[1:]:
        assert f"{node} serves step 3" in log
