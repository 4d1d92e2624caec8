"""The allowed edges between modules, and what the plugin may bring into a trainer's process.

A module is a Bazel package. Every one must be in ALLOWED: a new module starts with deciding what it may use. Test-only
targets may use anything.
"""

import re
import subprocess
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "bazel-bin/export_plugin/liblockstep.so"

# A module, and what it may use directly. `@name` is a library of the distribution.
_TABLE = """
# The ground that all stand on.
common/base:
common/os: common/base
common/peer: common/base
common/model: common/base kernels @nlohmann_json
common/changes: common/base common/model proto
common/layout: common/base common/model kernels
common/derive: common/base common/model kernels @nlohmann_json
common/json: common/base common/model common/layout @nlohmann_json
common/http: common/base common/net common/os @asio @curl
common/objects: common/base common/http common/net common/os kernels @expat @nlohmann_json @openssl
common/versionlog: common/base common/model common/net common/objects common/os common/payload proto @openssl
common/payload: common/base common/model kernels @zstd
common/wire: common/base common/model common/os common/payload common/peer kernels @openssl
common/net: common/base common/os @asio @openssl
common/access: common/base common/config common/os common/rpc common/telemetry @grpc
common/metrics: common/base common/net common/rpc common/telemetry @asio @prometheus
common/rpc: common/base common/config common/net common/os common/telemetry @asio @grpc @nlohmann_json @openssl
common/telemetry: common/base common/os @spdlog @nlohmann_json
common/config: common/base common/os @cli11 @tomlplusplus
common/gpu: common/base @cuda  # only with --config=cuda
kernels: @highway @xxhash
kernels/cuda: @cuda  # only with --config=cuda
proto: @grpc @protobuf
# The trainer's side.
export_plugin/client: common/base common/os common/peer common/model common/wire
export_plugin/rules: common/base common/model common/layout @nlohmann_json
export_plugin/plan: common/base common/json common/model common/layout export_plugin/rules @nlohmann_json
export_plugin/exporter: common/base common/os common/model common/layout common/gpu common/wire kernels kernels/cuda
    export_plugin/client export_plugin/plan @cuda @nlohmann_json  # what has cuda in its name: only with --config=cuda
export_plugin: common/base common/os common/model common/layout kernels export_plugin/client export_plugin/exporter
    export_plugin/plan @nlohmann_json
# The agent.
trainer_agent/run: common/base common/changes common/derive common/os common/peer common/model common/payload common/telemetry common/wire
    kernels @nlohmann_json
trainer_agent/derive: common/base common/derive common/model common/os common/telemetry trainer_agent/run
trainer_agent/serve: common/access common/base common/changes common/os common/peer common/telemetry common/model common/payload
    common/wire common/net common/rpc kernels proto trainer_agent/run
# The inference side.
raas_receiver/pull: common/base common/os common/model common/payload common/wire common/net
raas_receiver/replica: common/base common/os common/model common/payload kernels
raas_receiver/engine/placement/description: common/base common/json common/model common/layout @nlohmann_json
raas_receiver/engine/placement/plan: common/base common/model common/layout kernels raas_receiver/engine/placement/description
raas_receiver/engine/placement/writes: common/base common/os common/model common/layout common/payload kernels
    raas_receiver/engine/placement/plan
raas_receiver/engine/ranks: common/base common/os common/peer common/model common/payload common/telemetry
    raas_receiver/engine/placement/description raas_receiver/engine/placement/plan raas_receiver/engine/placement/writes @nlohmann_json
raas_receiver/engine/drivers: common/base common/http common/json common/model common/os common/telemetry @nlohmann_json
    @openssl
raas_receiver/archive: common/base common/model common/net common/objects common/os common/payload common/telemetry
    common/versionlog proto raas_receiver/replica
raas_receiver/origin: common/base common/model common/net common/objects common/os common/payload common/peer
    common/rpc common/telemetry common/versionlog common/wire kernels proto raas_receiver/pull
raas_receiver/receipts: common/base common/os common/telemetry kernels proto
raas_receiver/engine: common/base common/net common/telemetry kernels proto raas_receiver/engine/drivers
    raas_receiver/engine/ranks raas_receiver/origin raas_receiver/receipts raas_receiver/replica
# It knows no agent, lane or ticket: what it does with an origin, it does with every one.
raas_receiver/session: common/base common/os common/model common/payload common/telemetry proto raas_receiver/archive
    raas_receiver/engine raas_receiver/origin raas_receiver/pull raas_receiver/receipts raas_receiver/replica @nlohmann_json
# The tool.
ctl/output: common/base common/model common/rpc
ctl/changes: common/base ctl/output proto @cli11
ctl/daemon: common/base common/model common/os common/peer common/rpc common/versionlog ctl/changes ctl/output proto @grpc @nlohmann_json
ctl/plan: common/base common/derive common/layout common/model common/os ctl/output export_plugin/plan @cli11 @nlohmann_json
ctl/log: common/base common/changes common/model common/objects common/os common/payload common/telemetry common/versionlog
    ctl/changes ctl/output proto @cli11
ctl/doctor: common/base common/net common/os common/rpc ctl/output @asio @cli11
ctl/timeline: common/base common/net common/telemetry kernels ctl/daemon ctl/output proto @cli11 @grpc @nlohmann_json
ctl: common/base common/config common/net common/telemetry ctl/daemon ctl/doctor ctl/log ctl/output ctl/plan
    ctl/timeline @cli11
"""


def parsed(table: str) -> "dict[str, set[str]]":
    """By module; no module stands there twice."""
    found: "dict[str, set[str]]" = {}
    for line in re.sub(r"\n +", " ", re.sub(r"#.*", "", table)).split("\n"):
        module, _, used = line.partition(":")
        assert module not in found or not module, f"{module} stands there twice"
        found[module] = set(used.split())
    del found[""]
    return found


ALLOWED = parsed(_TABLE)

# A daemon's wiring may use all of its own daemon, everything common, and nothing of the other daemon.
WIRING = {"trainer_agent/agent": "trainer_agent/", "raas_receiver/receiver": "raas_receiver/"}
WIRING_LIBRARIES = {"@asio", "@cli11", "@grpc", "@nlohmann_json", "@prometheus", "@spdlog"}

# Not part of the product: the build's own macros, what deploys it, tests.
OUTSIDE = ("bazel", "deploy", "tests")

# Their names must not appear in a trainer's process: PyTorch brings its own copies.
KEPT_OUT_OF_THE_PLUGIN = {"@grpc", "@protobuf", "@spdlog", "@asio", "proto"}
PLUGIN_MAY_NEED = re.compile(r"(libc|libm|libpthread|librt|libdl|ld-linux-x86-64|libgcc_s)\.so\.\d+")


def bazel_query(*arguments: str) -> str:
    return output_of("bazel", "query", "--noshow_progress", *arguments)


def output_of(*command: "str | Path") -> str:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(map(str, command))}: {result.stderr}"
    return result.stdout


def module_of(label: str) -> str:
    """ "//common/base:hash" -> "common/base"; "@grpc//:grpc" -> "@grpc"."""
    return label.partition("//")[0] or label.partition("//")[2].partition(":")[0]


def is_for_tests(rule: ElementTree.Element) -> bool:
    testonly = rule.find("boolean[@name='testonly']")
    return rule.get("class").endswith("_test") or (testonly is not None and testonly.get("value") == "true")


@pytest.fixture(scope="module")
def edges() -> "dict[str, set[str]]":
    """Module -> the other modules that its product targets name in deps."""
    rules = ElementTree.fromstring(bazel_query("--output=xml", "kind(rule, //...)")).iter("rule")
    found: "dict[str, set[str]]" = {}
    for rule in rules:
        module = module_of(rule.get("name"))
        if is_for_tests(rule) or module.partition("/")[0] in OUTSIDE:
            continue
        used = {module_of(label.get("value")) for label in rule.findall("list[@name='deps']/label")}
        found.setdefault(module, set()).update(used - {module})
    return found


def may_use(module: str, used: str) -> bool:
    if module in WIRING:
        return used.startswith((WIRING[module], "common/")) or used in {"proto", "kernels"} | WIRING_LIBRARIES
    return used in ALLOWED[module]


def test_every_module_has_its_place_in_the_table(edges):
    homeless = edges.keys() - ALLOWED.keys() - WIRING.keys()
    assert not homeless, f"say in ALLOWED what these may use: {sorted(homeless)}"


def test_modules_use_only_what_they_are_allowed_to(edges):
    known = {module: used for module, used in edges.items() if module in ALLOWED or module in WIRING}
    wrong = [f"{module} -> {to}" for module, used in known.items() for to in sorted(used) if not may_use(module, to)]
    assert not wrong, "edges that no rule allows: " + ", ".join(wrong)


def test_the_table_allows_no_cycle_and_no_way_between_the_daemons():
    def reachable(module, seen):
        for used in ALLOWED.get(module, set()) - seen:
            seen.add(used)
            reachable(used, seen)
        return seen

    for module in ALLOWED:
        found = reachable(module, set())
        assert module not in found, f"{module} can reach itself"
        daemons = {used.partition("/")[0] for used in found | {module}} & {"trainer_agent", "raas_receiver"}
        assert len(daemons) <= 1, f"{module} joins the two daemons"


def test_the_plugin_is_built_of_nothing_that_pytorch_brings_too():
    labels = bazel_query("deps(//export_plugin:liblockstep.so)").split()
    assert not {module_of(label) for label in labels} & KEPT_OUT_OF_THE_PLUGIN


def test_the_plugin_exports_only_its_c_abi():
    symbols = output_of("nm", "-D", "--defined-only", PLUGIN)
    names = {line.split()[2].partition("@")[0] for line in symbols.splitlines()}
    header = (ROOT / "export_plugin/lockstep.h").read_text()
    assert names == set(re.findall(r"\b(lockstep_\w+)\(", re.sub(r"/\*.*?\*/", "", header, flags=re.S)))


def test_the_plugin_needs_only_the_c_library():
    dynamic = output_of("readelf", "-d", PLUGIN)
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert needed and not [name for name in needed if not PLUGIN_MAY_NEED.fullmatch(name)], needed


def test_the_plugin_needs_no_newer_c_library_than_2_34():
    """What Ubuntu 22.04 and RHEL 9 have, and containers of trainers are made of."""
    wanted = re.findall(r"(\w+)@GLIBC_([0-9.]+)", output_of("nm", "-D", "--undefined-only", PLUGIN))
    versions = {name: tuple(map(int, version.split("."))) for name, version in wanted}
    assert versions and not {name: version for name, version in versions.items() if version > (2, 34)}
