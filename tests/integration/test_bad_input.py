"""Bad input at process level: each mistake gets an error that names the thing, and what is held stays held."""

import contextlib
import json
import os
import re
import shutil
import socket
import stat
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import xxhash
from harness import LOCKSTEPCTL, MODEL, RAAS_RECEIVER, TRAINER_AGENT, flags_of, wait_until
from replicas import ToyModel

import lockstep

USAGE, UNAVAILABLE, NOT_ALLOWED, CONFIG = 64, 69, 77, 78
DAEMONS = pytest.mark.parametrize("daemon", ["trainer_agent", "raas_receiver"])


def command(daemon: str, directory, **options: object) -> "list[str]":
    """A daemon that would start, were it not for `options`."""
    usual: "dict[str, object]" = {"listen": "127.0.0.1:0", "control_socket": directory / "control.sock"}
    if daemon == "trainer_agent":
        usual |= {"lane_listen": "127.0.0.1:0", "socket": directory / "a.sock", "segment_dir": directory / "segments"}
        return [str(TRAINER_AGENT), *flags_of(usual | options)]
    usual |= {"model": MODEL, "root": directory / "root", "source": "127.0.0.1:1"}
    return [str(RAAS_RECEIVER), *flags_of(usual | options)]


def run(arguments) -> subprocess.CompletedProcess:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60)


@DAEMONS
def test_an_unknown_flag_is_a_usage_error_that_names_it(cluster, daemon):
    result = run(command(daemon, cluster.directory, no_such_flag=1))
    assert result.returncode == USAGE and "no-such-flag" in result.stderr


def test_lockstepctl_names_an_unknown_flag_and_command():
    for arguments in (["--no-such-flag", "status"], ["no-such-command"]):
        result = run([str(LOCKSTEPCTL), *arguments])
        assert result.returncode == USAGE and "no-such" in result.stderr


@DAEMONS
@pytest.mark.parametrize(
    "line, complaint",
    [("no_such_key = 1", "no_such_key"), ('threads = "many"', "threads"), ("threads = ", "daemon.toml")],
    ids=["unknown-key", "wrong-type", "no-toml"],
)
def test_a_bad_config_file_is_a_config_error_that_names_key_or_file(cluster, daemon, line, complaint):
    config = cluster.directory / "daemon.toml"
    config.write_text(line + "\n")
    result = run(command(daemon, cluster.directory, config=config))
    assert result.returncode == CONFIG and complaint in result.stderr


@DAEMONS
def test_flags_win_over_environment_over_file_over_defaults(cluster, daemon):
    config = cluster.directory / "daemon.toml"
    config.write_text("threads = 3\ndrain_timeout = '111ms'\nlog_level = 'warn'\n")
    environment = {f"{daemon.upper()}_THREADS": "4", f"{daemon.upper()}_DRAIN_TIMEOUT": "222ms"}
    arguments = command(daemon, cluster.directory, config=config, threads=5, print_config=None)
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 0, result.stderr
    lines = {line.split("=")[0].strip(): line for line in result.stdout.splitlines() if "=" in line}
    assert "5" in lines["threads"] and "222" in lines["drain_timeout"] and "warn" in lines["log_level"]


@DAEMONS
def test_the_error_for_an_impossible_value_names_the_option_variable_or_line_that_set_it(cluster, daemon):
    config = cluster.directory / "daemon.toml"
    config.write_text("# ours\nthreads = 3\nlisten = 5\n")
    flagged = command(daemon, cluster.directory)
    at = flagged.index("--listen")
    without = flagged[:at] + flagged[at + 2 :]
    variable = f"{daemon.upper()}_LISTEN"
    cases = [
        (without, {variable: "bad"}, f"environment variable {variable}: address 'bad'"),
        ([*without, "--config", str(config)], {}, f"{config}:3: key 'listen': address '5'"),
    ]
    for arguments, environment, blamed in cases:
        result = subprocess.run(arguments, capture_output=True, text=True, timeout=60, env=environment)
        assert result.returncode == CONFIG and blamed in result.stderr and "--listen" not in result.stderr
    result = run(command(daemon, cluster.directory, listen="bad"))
    assert result.returncode == CONFIG and "--listen: address 'bad'" in result.stderr


def test_no_error_and_no_printed_configuration_shows_a_password_of_a_url(cluster):
    user = "admin:s3cr3t@"
    receiver = command("raas_receiver", cluster.directory)
    config = cluster.directory / "receiver.toml"
    config.write_text(f'[[engine]]\nurl = "http://{user}127.0.0.1:1"\n')
    endpoint = {"AWS_ENDPOINT_URL": f"https://{user}127.0.0.1:1"}
    log = "s3://bucket/prefix"
    cases = [
        ([*receiver, "--engine", f"a=vllm:http://{user}127.0.0.1:1"], {}),
        ([*receiver, "--engine", f"vllm:{user}127.0.0.1:1"], {}),
        ([*receiver, "--engine", f"hook:/no/such/command http://{user}127.0.0.1:1"], {}),
        ([*receiver, "--config", str(config)], {}),
        ([*receiver, "--source", f"http://{user}127.0.0.1:1"], {}),
        ([*receiver, "--source", f"{user}127.0.0.1:1"], {}),
        ([*receiver, "--source", f"{log}?endpoint=http://{user}127.0.0.1:1"], {}),
        ([*receiver, "--archive", log], endpoint),
        ([*receiver, "--archive", f"{log}?endpoint={user}127.0.0.1"], {}),
        ([*receiver, "--archive", f"s3://{user}bucket"], {}),
        ([*receiver, f"http://{user}127.0.0.1:1"], {}),
        ([str(LOCKSTEPCTL), "log", "ls", log], endpoint),
        ([str(LOCKSTEPCTL), "status", f"http://{user}127.0.0.1:1"], {}),
        ([str(LOCKSTEPCTL), "--agent", f"{user}127.0.0.1:1", "status"], {}),
    ]
    for arguments, environment in cases:
        refused = subprocess.run(
            arguments, capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"} | environment
        )
        assert refused.returncode in (USAGE, CONFIG), arguments
        assert "s3cr3t" not in refused.stdout + refused.stderr, arguments
        assert "***@" in refused.stderr, arguments
    printed = run([*receiver, "--print-config", "--engine", f"http://{user}127.0.0.1:1", "--config", str(config)])
    assert printed.returncode == 0 and "s3cr3t" not in printed.stdout and "http://***@127.0.0.1:1" in printed.stdout


@DAEMONS
def test_listening_beyond_loopback_is_refused_unless_told_so_in_as_many_words(cluster, daemon):
    result = run(command(daemon, cluster.directory, listen="0.0.0.0:0"))
    assert result.returncode == CONFIG and "--allow-insecure-network" in result.stderr


@DAEMONS
def test_a_directory_it_may_not_write_is_named(cluster, daemon):
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    locked = cluster.directory / "locked"
    locked.mkdir(mode=0o755)
    cluster.directory.chmod(0o755)
    binary = cluster.directory / daemon
    shutil.copy(TRAINER_AGENT if daemon == "trainer_agent" else RAAS_RECEIVER, binary)
    binary.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    arguments = command(daemon, locked)[1:]
    result = run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(binary), *arguments])
    assert result.returncode == NOT_ALLOWED and str(locked) in result.stderr


def test_a_second_receiver_on_the_same_root_is_refused_and_the_first_lives_on(cluster):
    model = ToyModel(blocks=2)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    result = run(command("raas_receiver", cluster.directory, root=receiver.root, source=agent.address))
    assert result.returncode != 0 and str(receiver.root) in result.stderr
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.tensors)
        receiver.wait_for(model.tensors)


def test_publishing_without_an_agent_names_the_socket(cluster):
    with pytest.raises(lockstep.UnavailableError, match="nobody.sock"):
        lockstep.Publisher.in_place(
            {"a": np.zeros(1)}, model=MODEL, socket=cluster.directory / "nobody.sock", connect_timeout=0.2
        )


def test_a_full_segment_directory_refuses_the_model_and_the_ones_held_live_on(cluster):
    agent = cluster.agent(segment_dir=cluster.small_tmpfs("segments", 24))
    receiver = cluster.receiver(agent)
    small, large = ToyModel(blocks=8), ToyModel(blocks=120)
    with agent.publisher(small.tensors) as publisher:
        publisher.publish(version=1, tensors=small.step())
        with pytest.raises(lockstep.ResourceExhaustedError, match=str(agent.segment_dir)):
            agent.publisher(large.tensors, "large")
        small.reach(publisher, 2, receiver)


def test_a_full_receiver_root_is_reported_and_the_models_held_live_on(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent, models=("actor", "large"), root=cluster.small_tmpfs("root", 24))
    small, large = ToyModel(blocks=8), ToyModel(blocks=120)
    with agent.publisher(small.tensors) as publisher, agent.publisher(large.tensors, "large") as other:
        small.reach(publisher, 1, receiver)
        other.publish(version=1, tensors=large.tensors)
        root = str(receiver.root)
        wait_until(lambda: root in receiver.model_status("large")["last_error"], "the full disk is reported")
        small.reach(publisher, 2, receiver)


def test_a_layout_that_finds_no_room_leaves_the_version_before_to_roll_back_to(cluster):
    agent = cluster.agent()
    receiver = cluster.receiver(agent, root=cluster.small_tmpfs("root", 24))
    small, large = ToyModel(blocks=8), ToyModel(blocks=120)
    with agent.publisher(small.tensors) as publisher:
        for version in (1, 2):
            small.reach(publisher, version, receiver)
    before = receiver.model_status()
    with agent.publisher(large.tensors) as publisher:
        publisher.publish(version=1, tensors=large.tensors)
        error = wait_until(lambda: receiver.model_status()["last_error"], "the full disk is reported")
        assert f"in {receiver.root} for a replica" in error
        assert receiver.ctl("rollback", MODEL).returncode == 0
        after = receiver.model_status()
    assert (before["held"]["version"], after["held"]["version"]) == (2, 1)


def test_what_a_model_needs_for_both_replicas_and_what_is_free_are_sums_that_one_can_check(cluster):
    """One replica would fit, two do not."""
    agent = cluster.agent()
    model = ToyModel(blocks=80)
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.tensors)
        receiver = cluster.receiver(agent, root=cluster.small_tmpfs("root", 40))
        errors = set()
        for _ in range(2):  # a failure leaves nothing behind that would make the next one another
            failures = receiver.model_status()["failures"]
            wait_until(lambda: receiver.model_status()["failures"] > failures, "another sync fails")
            errors.add(receiver.model_status()["last_error"])
    assert len(errors) == 1
    figures = re.search(
        rf"model {MODEL} needs .* \((\d+) bytes\) in {receiver.root} for 2 replicas of .* \((\d+) bytes\), "
        r"and its tmpfs has .* \((\d+) bytes\) free",
        errors.pop(),
    )
    needed, each, free = map(int, figures.groups())
    assert needed == 2 * each and publisher.data_bytes < each < free < needed
    assert not list(receiver.root.glob("*/.lockstep/*.safetensors"))


@DAEMONS
@pytest.mark.parametrize("on", ["disk", "memory"])
def test_a_directory_on_a_disk_is_warned_of(cluster, tmp_path, daemon, on):
    kind = run(["stat", "-f", "-c", "%T", str(tmp_path)]).stdout.strip()
    if kind in ("tmpfs", "ramfs"):
        pytest.skip("temporary directories are memory here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        directory = {"disk": tmp_path / "d", "memory": Path(memory)}[on]
        if daemon == "trainer_agent":
            log = cluster.agent(segment_dir=directory).log()
        else:
            log = cluster.receiver("127.0.0.1:1", root=directory).log()
    warnings = [json.loads(line) for line in log.splitlines() if '"disk_directory_used"' in line]
    assert len(warnings) == (1 if on == "disk" else 0)
    for warning in warnings:
        flag = "--segment-dir" if daemon == "trainer_agent" else "--root"
        assert warning["level"] == "warn" and warning["path"] == str(directory) and flag in warning["message"]
        assert warning["file_system"] not in ("", "tmpfs")


def send_and_read(address: str, *pieces: bytes) -> bytes:
    """What a server at HOST:PORT, or at a path, answers before it closes; it must close within the timeout."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET if host else socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(60)
        client.connect((host, int(port)) if host else address)
        try:
            for piece in pieces:
                client.sendall(piece)
            client.shutdown(socket.SHUT_WR)
        except TimeoutError:
            raise
        except OSError:
            pass  # turned away while we were still talking, and maybe told why
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := client.recv(4096):
                answer += piece
    return answer


def lane_hello(pull_id: int, ticket: bytes) -> bytes:
    """common/wire/FORMAT.md, "Hello"."""
    hello = struct.pack("<4sHHQ16sII", b"LSLO", 2, 48, pull_id, ticket, 0, 0)
    return hello + struct.pack("<Q", xxhash.xxh3_64_intdigest(hello))


def test_a_wrong_ticket_is_refused_with_a_code(cluster):
    agent = cluster.agent()
    answer = send_and_read(agent.addresses["lanes"], lane_hello(1, bytes(range(16))))
    magic, _, _, code, _, _ = struct.unpack("<4sHHIIQ", answer)
    assert magic == b"LSWA" and code != 0
    wait_until(lambda: "ticket" in agent.log(), "the refusal is in the log")


def test_garbage_on_the_lane_port_is_turned_away_and_pulls_go_on(cluster):
    model = ToyModel(blocks=8)
    agent = cluster.agent()
    noise = np.random.default_rng(1).bytes(100_000)
    good = lane_hello(1, bytes(16))
    with agent.publisher(model.tensors) as publisher:
        publisher.publish(version=1, tensors=model.step())
        flipped = good[:20] + bytes([good[20] ^ 1]) + good[21:]
        for pieces in ([noise], [b"GET / HTTP/1.1\r\n\r\n"], [good[:30]], [b""], [flipped], [good, noise]):
            send_and_read(agent.addresses["lanes"], *pieces)
        cluster.receiver(agent).wait_for(model.tensors)


def test_garbage_on_the_trainers_socket_is_turned_away_and_publishing_goes_on(cluster):
    model = ToyModel(blocks=8)
    agent = cluster.agent()
    receiver = cluster.receiver(agent)
    with agent.publisher(model.tensors) as publisher:
        for pieces in ([np.random.default_rng(2).bytes(100_000)], [b"\0" * 64], [b"\xff" * 64], [b"x"], [b""]):
            send_and_read(str(agent.socket), *pieces)
        model.reach(publisher, 1, receiver)


def test_garbage_on_the_grpc_port_is_turned_away(cluster):
    agent = cluster.agent()
    send_and_read(agent.address, np.random.default_rng(3).bytes(10_000))
    assert agent.answers()


def test_a_hook_that_is_not_there_or_may_not_be_executed_is_refused_at_start(cluster):
    hook = cluster.directory / "hook.sh"
    command = [RAAS_RECEIVER, "--model", MODEL, "--root", cluster.directory / "root", "--engine", f"hook:{hook} now"]
    missing = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert missing.returncode == 78 and f"{hook}: No such file" in missing.stderr
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o644)
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == 78 and f"{hook} may not be executed; chmod +x it" in refused.stderr


def test_assets_among_which_versions_would_lie_are_refused_at_start(cluster):
    assets = cluster.directory
    command = [RAAS_RECEIVER, "--model", MODEL, "--root", assets / "roots" / "root", "--assets", assets]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert refused.returncode == CONFIG
    assert f"--assets: {assets}/roots/root, where versions are written, is in {assets}" in refused.stderr


class _OnGpu(np.ndarray):
    """What PyTorch's tensors on a GPU say of themselves, over memory of the host."""

    is_cuda, device = True, "cuda:3"


def test_a_tensor_on_a_gpu_that_the_library_does_not_reach_is_named_with_the_reason(tmp_path):
    for make in (
        lambda tensors: lockstep.Publisher.from_tensors(tensors, socket=tmp_path / "none.sock", model=MODEL),
        lambda tensors: lockstep.Importer.from_named_tensors(tensors).load(tmp_path),
    ):
        with pytest.raises(lockstep.BadDataError, match='"w" is on cuda:3, and .*CUDA'):
            make({"w": np.ones((4, 4), "float32").view(_OnGpu)})
