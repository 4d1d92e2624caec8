"""The listings of docs/setups.md, each run as it stands there. test_listings.py runs those of the third setup."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib
import torch
from conformance_server import ConformanceServer
from credentials import Ca
from harness import MODEL, ROOT, wait_until
from hf_models import published_tensors
from layouts import trainer
from layouts.hosts import HOSTS, network_of
from ranks import Ranks
from replicas import ToyModel
from safetensors.torch import load_file
from topologies import topology_of
from vllm_checkpoints import VllmCheckpoints

PAGE = (ROOT / "docs/setups.md").read_text()
LISTINGS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
FSDP, MEGATRON, _ = LISTINGS
AGENT, POLICY, RECEIVER = re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
RANKS = 2


@pytest.fixture
def checkpoint(vllm_checkpoints: VllmCheckpoints):
    return vllm_checkpoints.get("qwen3")[0]


@pytest.fixture
def run(tmp_path, checkpoint):
    """Starts a listing in a process of its own, ended with the test."""
    with contextlib.ExitStack() as stack:

        def start(listing: str, *command: str, **environment: object) -> "subprocess.Popen[str]":
            file = tmp_path / f"listing-{len(list(tmp_path.iterdir()))}.py"
            file.write_text(listing)
            variables = {"CHECKPOINT": str(checkpoint), "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
            variables |= {name: str(value) for name, value in environment.items()}
            process = subprocess.Popen(
                [sys.executable, *command, str(file)],
                env={**os.environ, **variables},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


def train(run, agent) -> "subprocess.Popen[str]":
    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}")
    return run(FSDP, *torchrun, LOCKSTEP_EXPORT_SOCKET=agent.socket)


def beside_control(receiver) -> Path:
    return Path(receiver.addresses["control"]).with_name("engine.sock")


def ended_well(process: "subprocess.Popen[str]") -> str:
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said[-6000:]
    return said


def test_fsdp2_trains_and_vllms_plugin_follows(cluster, checkpoint, run, vllm_ranks, tmp_path):
    agent, rank = cluster.agent(), vllm_ranks[0]
    with ConformanceServer("vllm", checkpoint) as server:
        receiver = cluster.receiver(agent, engine=server.url, engine_load="in-place")
        rank.ask("load_plugins")
        rank.ask("build", checkpoint=checkpoint, tensor=(1, 0), data=(1, 0), expert_parallel=False)
        rank.ask("load", checkpoint=checkpoint)
        environment = {"LOCKSTEP_ENGINE_SOCKET": str(beside_control(receiver)), "LOCKSTEP_MODEL": MODEL}
        assert rank.ask("start", environment=environment, backend=None) == "LockstepWeightTransferEngine"
        ended_well(train(run, agent))
        assert receiver.model_status()["served_version"] == 3
        rank.ask("save", output=tmp_path / "held.safetensors")
        held, published = load_file(tmp_path / "held.safetensors"), load_file(receiver.file())
        for name in ("model.norm.weight", "model.embed_tokens.weight"):
            assert torch.equal(held[name][: len(published[name])], published[name]), name  # vLLM pads the vocabulary
        assert receiver.ctl("verify", "--engines").returncode == 0
        rank.ask("shut_down")


def set_up(rank, socket) -> None:
    os.environ["LOCKSTEP_EXPORT_SOCKET"] = str(socket)
    names = {"model_chunks": rank.chunks, "hf_config": rank.hf}
    exec(compile(MEGATRON, "docs/setups.md", "exec"), names)
    rank.after_step, rank.exporter = names["after_step"], names["publisher"]


def after_step(rank, step: int) -> bool:
    rank.after_step(step)
    return rank.exporter.writes


@pytest.mark.parametrize("hosts", HOSTS)
def test_megatron_on_two_hosts(cluster, checkpoint, hosts):
    remote = (2, 3)
    agent = cluster.agent()
    receivers = [cluster.receiver(agent, name=f"receiver-{number}") for number in range(2)]
    with network_of(hosts, remote, hidden=cluster.directory) as prepare:
        with Ranks(topology_of("tp2pp2"), prepare=prepare) as ranks:
            ranks.call(trainer.build, checkpoint)
            ranks.call(trainer.load_by_mbridge, checkpoint)
            ranks.call(set_up, agent.socket)
            for step in (10, 20):
                writes = ranks.call(after_step, step)
                assert writes == ([True, True, False, False] if hosts == "two hosts" else [True] * 4)
                assert agent.model_status()["newest_label"] == str(step)
            for receiver in receivers:
                receiver.wait_for(published_tensors(checkpoint))
    wait_until(lambda: agent.model_status()["newest_version"] == 2, "both steps are versions")


def written(directory: Path, text: str, names: "dict[str, object]") -> Path:
    """A configuration of the page, with files and addresses of this test in place of its own."""
    for name, here in names.items():
        assert name in text
        text = text.replace(name, str(here))
    directory.mkdir(exist_ok=True)
    file = directory / "config.toml"
    file.write_text(text)
    return file


def test_a_fleet_on_two_hosts_with_certificates_needs_ten_settings_and_a_policy(cluster):
    assert len(tomllib.loads(AGENT)) + len(tomllib.loads(RECEIVER)) == 10
    ca = Ca(cluster.directory / "ca")
    directories = {name: cluster.directory / f"config-{name}" for name in ("agent", "receiver", "policy")}

    def tls(name: str, host: str) -> "dict[str, object]":
        ca.issue(name, sans=f"DNS:{host},DNS:localhost,IP:127.0.0.1")
        files = ca.files(name)
        names = {"cert": "tls.crt", "key": "tls.key", "ca": "ca.crt"}
        return {f"/etc/lockstep/tls/{file}": files[f"tls_{short}"] for short, file in names.items()}

    policy = written(directories["policy"], POLICY, {})
    agent = cluster.agent(start=False)
    names = {
        **tls("agent", "trainer-0.example.org"),
        "/etc/lockstep/policy.toml": policy,
        "0.0.0.0:7700": agent.address,
    }
    agent.command += ["--config", str(written(directories["agent"], AGENT, names))]
    agent.start()
    model = ToyModel()
    for host, held in (("host-0.infer.example.org", True), ("elsewhere.example.org", False)):
        names = {**tls(host, host), "trainer-0.example.org:7700": agent.address}
        config = written(cluster.directory / f"config-{host}", RECEIVER, names)
        receiver = cluster.receiver(agent, name=host, config=config, listen="")
        if held:
            with agent.publisher(model.tensors) as publisher:
                publisher.publish(tensors=model.step())
                receiver.wait_for(model.tensors)
        else:
            wait_until(lambda: "policy" in receiver.model_status()["last_error"], "it is refused")
