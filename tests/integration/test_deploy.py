"""What deploy/ holds fits the daemons of this build and the tools that read it."""

import re
import shutil
import subprocess

import kubernetes_validate
import pytest
import tomllib
import yaml
from harness import RAAS_RECEIVER, ROOT, TRAINER_AGENT

CONFIG = ROOT / "deploy/config"
UNITS = ROOT / "deploy/systemd"
KUBERNETES = ROOT / "deploy/k8s/base"


def needs(tool: str):
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


def printed_config(binary, *arguments) -> "dict[str, str]":
    """What --print-config shows: each key's value, without its origin."""
    result = subprocess.run(
        [binary, "--print-config", *arguments], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert result.returncode == 0, result.stderr
    lines = [line.partition("  # ")[0] for line in result.stdout.splitlines()]
    return dict(line.split(" = ", 1) for line in lines)


def keys_of(path) -> "set[str]":
    lines = [line.lstrip("# ") for line in path.read_text().splitlines() if not line.startswith("#   ")]  # no table's
    return {line.split(" = ")[0] for line in lines if " = " in line and line.split(" = ")[0].isidentifier()}


@pytest.mark.parametrize("binary", [TRAINER_AGENT, RAAS_RECEIVER], ids=lambda path: path.name)
def test_the_example_configuration_has_every_key_with_its_default(binary):
    example = CONFIG / f"{binary.name}.toml"
    without_default = ["--model", "actor"] if binary == RAAS_RECEIVER else []
    defaults = printed_config(binary, *without_default)
    assert printed_config(binary, "--config", example) == defaults
    assert keys_of(example) == set(defaults)


@pytest.mark.parametrize("binary", [TRAINER_AGENT, RAAS_RECEIVER], ids=lambda path: path.name)
def test_the_configuration_of_the_kubernetes_base_is_understood(binary):
    printed_config(binary, "--config", KUBERNETES / f"{binary.name}.toml")


@needs("systemd-analyze")
@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda path: path.name)
def test_the_unit_is_valid(unit, tmp_path):
    # The daemons need not be installed where tests run.
    installed = tmp_path / unit.name
    installed.write_text(unit.read_text().replace("ExecStart=/usr/bin/", "ExecStart=/bin/true "))
    result = subprocess.run(["systemd-analyze", "verify", installed], capture_output=True, text=True)
    assert result.returncode == 0 and str(tmp_path) not in result.stderr, result.stderr


@pytest.mark.parametrize("unit", sorted(UNITS.glob("*.service")), ids=lambda path: path.name)
def test_a_unit_is_limited_and_not_spared_where_memory_is_short(unit):
    lines = unit.read_text().splitlines()
    assert not [line for line in lines if line.startswith("OOM")]
    [limit] = [line.partition("=")[2] for line in lines if line.startswith("MemoryMax=")]
    shared_memory = 50  # percent of the host's that /dev/shm may have, unless it is mounted with more
    assert limit.endswith("%") and shared_memory + 10 <= int(limit[:-1]) < 100


def bytes_of(text: str) -> int:
    number, unit = re.fullmatch(r'"?(\d+)([KMG]?)i?B?"?', text).groups()
    return int(number) << {"": 0, "K": 10, "M": 20, "G": 30}[unit]


@pytest.mark.parametrize("binary", [TRAINER_AGENT, RAAS_RECEIVER], ids=lambda path: path.name)
def test_the_kubernetes_limits_hold_what_sizing_says(binary):
    model, delta = 3 << 30, 300 << 20  # of the base, and a tenth of it
    config = printed_config(binary, "--config", KUBERNETES / f"{binary.name}.toml")
    if binary == TRAINER_AGENT:
        manifest, name = "trainer.yaml", "segments"
        files = 2 * model + 3 * bytes_of(config["retain_bytes"])
        heap = delta + 700_000_000
    else:
        manifest, name = "inference.yaml", "replicas"
        files = 2 * model
        heap = bytes_of(config["keep_delta_bytes"]) + delta + bytes_of(config["engine_stage_bytes"]) + 300_000_000
    [pod] = yaml.safe_load_all((KUBERNETES / manifest).read_text())
    spec = pod["spec"]["template"]["spec"]
    [volume] = [volume for volume in spec["volumes"] if volume["name"] == name]
    [sidecar] = spec["initContainers"]
    room = bytes_of(volume["emptyDir"]["sizeLimit"])
    assert room >= files
    assert bytes_of(sidecar["resources"]["limits"]["memory"]) >= room + heap


def check_objects(text: str) -> "list[str]":
    """Their kinds. Every field is one that the API of Kubernetes 1.29, the first with native sidecars, knows."""
    objects = [entry for entry in yaml.safe_load_all(text) if entry]
    for entry in objects:
        kubernetes_validate.validate(entry, "1.29", strict=True)
    return [entry["kind"] for entry in objects]


def test_the_kubernetes_objects_are_what_the_api_takes():
    kinds = [
        kind
        for path in KUBERNETES.glob("*.yaml")
        if "kustom" not in path.name
        for kind in check_objects(path.read_text())
    ]
    assert sorted(kinds) == ["Deployment", "NetworkPolicy", "Service", "StatefulSet"]


@needs("kubectl")
@pytest.mark.parametrize("overlay", ["base", "overlays/vllm", "overlays/sglang"])
def test_the_kubernetes_overlay_builds_with_both_daemons_as_sidecars(overlay):
    result = subprocess.run(["kubectl", "kustomize", KUBERNETES.parent / overlay], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert len(check_objects(result.stdout)) == 6
    assert result.stdout.count("restartPolicy: Always") == 2
    assert "lockstep/trainer-agent" in result.stdout and "lockstep/raas-receiver" in result.stdout


def test_the_receivers_engine_in_kubernetes_is_the_server_of_its_pod():
    config = tomllib.loads((KUBERNETES / "raas_receiver.toml").read_text())
    [pod] = yaml.safe_load_all((KUBERNETES / "inference.yaml").read_text())
    spec = pod["spec"]["template"]["spec"]
    [engine], [receiver] = spec["containers"], spec["initContainers"]
    environment = {entry["name"]: entry["value"] for entry in engine["env"]}
    assert environment == {"LOCKSTEP_ENGINE_SOCKET": config["engine_socket"], "LOCKSTEP_MODEL": config["model"][0]}
    for container in (engine, receiver):
        assert "/run/raas-receiver" in [mount["mountPath"] for mount in container["volumeMounts"]]
    assert [entry["url"] for entry in config["engine"]] == [f"http://127.0.0.1:{engine['ports'][0]['containerPort']}"]
    assert receiver["readinessProbe"]["exec"]["command"][-1] == f"raas-receiver-engine/{config['model'][0]}"
    [service, _] = yaml.safe_load_all((KUBERNETES / "network.yaml").read_text())
    assert config["source"] == [f"trainer-0.{service['metadata']['name']}:7700"]
