"""lockstepctl doctor: faults that are planted on this host are found, and what it says corrects them."""

import json
import shlex
import socket
import subprocess

import pytest
from credentials import Ca
from harness import LOCKSTEPCTL

CONFIG = 78


def doctor(*options: object, files: int = 20_000) -> "tuple[int, dict[str, dict]]":
    command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", LOCKSTEPCTL, "--json", "doctor", *options]
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    return ran.returncode, {finding["about"]: finding for finding in json.loads(ran.stdout)}


def bad(findings: "dict[str, dict]") -> "set[str]":
    return {about for about, finding in findings.items() if finding["state"] == "bad"}


@pytest.fixture
def ca(tmp_path):
    return Ca(tmp_path / "ca")


def tls(files) -> "list[object]":
    return [part for name, file in files.items() for part in (f"--{name.replace('_', '-')}", file)]


def test_a_host_with_planted_faults_is_told_each_of_them_and_what_corrects_it(cluster, ca):
    small = cluster.small_tmpfs("small", 20)
    (small / "used").write_bytes(bytes(1 << 20))
    ca.issue("late", days=0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"127.0.0.1:{taken.getsockname()[1]}"
        faults = ["--directory", small, "--model-bytes", "16MiB", "--port", port, "--gpu", *tls(ca.files("late"))]
        status, found = doctor(*faults, files=256)
    assert status == CONFIG
    assert bad(found) >= {str(small), "open files", f"port {port}", "certificate"}
    assert "need 32.0 MiB" in found[str(small)]["found"] and "has expired" in found["certificate"]["found"]
    assert found["open files"]["remedy"].startswith("ulimit -n 65536")
    assert found["GPU"]["state"] != "bad" or "nvidia-smi" in found["GPU"]["remedy"]
    subprocess.run(shlex.split(found[str(small)]["remedy"]), check=True)
    ca.issue("agent")
    status, found = doctor("--directory", small, "--model-bytes", "16MiB", "--port", port, *tls(ca.files("agent")))
    assert status == 0 and not bad(found) and found["certificate"]["found"].startswith("good for 2")


def test_a_key_that_others_may_read_a_directory_that_is_not_there_and_a_host_that_is_none(ca, tmp_path):
    files = ca.files("agent")
    files["tls_key"].chmod(0o644)
    status, found = doctor("--directory", tmp_path / "none", "--port", "192.0.2.7:7700", "--port", "7700", *tls(files))
    assert status == CONFIG
    assert bad(found) == {str(tmp_path / "none"), "port 192.0.2.7:7700", "port 7700", "certificate"}
    for about in (str(tmp_path / "none"), "certificate"):
        subprocess.run(shlex.split(found[about]["remedy"]), check=True)
    status, found = doctor("--directory", tmp_path / "none", *tls(files))
    assert status == 0 and not bad(found)


def test_the_table_is_for_people_and_no_daemon_is_asked():
    shown = subprocess.run([LOCKSTEPCTL, "doctor"], capture_output=True, text=True)
    assert shown.returncode == 0 and "/dev/shm" in shown.stdout and "vm.overcommit_memory" in shown.stdout
    refused = subprocess.run([LOCKSTEPCTL, "--agent", "127.0.0.1:1", "doctor"], capture_output=True, text=True)
    assert refused.returncode == 64 and "asks no daemon" in refused.stderr


def test_no_command_makes_room_for_a_model_that_the_hosts_memory_does_not_hold(tmp_path):
    status, found = doctor("--directory", tmp_path, "--model-bytes", "4000TiB")
    assert status == CONFIG and found[str(tmp_path)]["remedy"] == ""
    assert "more than this host's memory" in found[str(tmp_path)]["found"]
