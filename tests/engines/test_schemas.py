"""The conformance servers take what the real servers' sources define, field by field."""

import ast
import importlib.util
import json
import os
from pathlib import Path

import conformance_server
import pytest
import record_schemas
from harness import ROOT
from http_plumbing import Request
from safetensors.numpy import save_file
from schemas import RECORDED, REQUIRED
from served_model import digest_of, tensors_in
from toy_weights import digest_of_tensors, weights

# What no value of a type looks like, and what one does.
WRONG = {"bool": "maybe", "str": 5, "int": "x", "float": "x", "literal": "nonsense", "dict": 3, "list": 3}
RIGHT = {"bool": True, "str": "1", "int": 1, "float": 0.5, "dict": {}, "list": [], "any": "method"}
FIELDS = [
    (kind, path, part, name)
    for kind, recorded in RECORDED.items()
    for path, endpoint in recorded["endpoints"].items()
    for part in ("query", "body")
    for name in endpoint.get(part, {})
]
# Of the others the server takes the body apart by itself and checks no types.
TYPED = [entry for entry in FIELDS if not RECORDED[entry[0]]["endpoints"][entry[1]].get("raw")]


def base_of(type_text: str) -> str:
    return type_text.partition(" | ")[0].partition("[")[0].lower()


def right_value(field: dict):
    base = base_of(field["type"])
    if base == "literal" and field["default"] == REQUIRED:
        return ast.literal_eval(field["type"].removeprefix("Literal"))[0]
    return field["default"] if base == "literal" else RIGHT[base]


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    directory = tmp_path_factory.mktemp("checkpoint")
    save_file(weights(0), directory / "model.safetensors")
    servers = {kind: conformance_server.ConformanceServer(kind, directory) for kind in RECORDED}
    yield servers
    for server in servers.values():
        server.close()


def status_of(server, path: str, body: dict, query: str = "") -> int:
    endpoint = server.rules.endpoints[path]
    headers = {"content-type": "application/json"}
    content = json.dumps(body).encode() if endpoint["methods"] != ["GET"] else b""
    return server.rules.answer(Request(endpoint["methods"][-1], path, query, headers, content)).status


def required(endpoint: dict, part: str) -> dict:
    fields = endpoint.get(part, {}).items()
    return {name: right_value(field) for name, field in fields if field["default"] == REQUIRED}


def sources(package: str) -> "Path | None":
    """Where the package's sources are: LOCKSTEP_SGLANG_SOURCE, LOCKSTEP_VLLM_SOURCE, where tests/run.sh puts it, or
    installed."""
    given = os.environ.get(f"LOCKSTEP_{package.upper()}_SOURCE")
    if given:
        return Path(given)
    installed = ROOT / ".cache" / package
    if (installed / package).is_dir():
        return installed
    found = importlib.util.find_spec(package)
    return Path(found.origin).parents[1] if found and found.origin else None


@pytest.mark.parametrize("package", sorted(RECORDED))
def test_what_is_recorded_is_what_the_sources_say(package):
    root = sources(package)
    if root is None:
        pytest.skip(f"{package} is neither installed nor named by LOCKSTEP_{package.upper()}_SOURCE")
    found, recorded = record_schemas.record(package, root), RECORDED[package]
    if found["version"] in (recorded["version"], "unknown"):
        assert found["endpoints"] == recorded["endpoints"]
    for path, endpoint in recorded["endpoints"].items():
        for part in ("query", "body"):
            assert endpoint.get(part, {}).items() <= found["endpoints"][path].get(part, {}).items(), (path, part)


@pytest.mark.parametrize("kind, path, part, name", TYPED)
def test_a_field_of_another_type_is_refused(servers, kind, path, part, name):
    endpoint = RECORDED[kind]["endpoints"][path]
    wrong = WRONG[base_of(endpoint[part][name]["type"])]
    body = required(endpoint, "body")
    if part == "query":
        assert status_of(servers[kind], path, body, f"{name}={wrong}") == 400
    else:
        assert status_of(servers[kind], path, body | {name: wrong}) == 400


@pytest.mark.parametrize("kind, path, part, name", [entry for entry in FIELDS if entry[2] == "body"])
def test_a_field_may_be_missing_only_where_there_is_a_default(servers, kind, path, part, name):
    endpoint = RECORDED[kind]["endpoints"][path]
    body = required(endpoint, "body")
    expected = 400 if endpoint["body"][name]["default"] == REQUIRED else None
    body.pop(name, None)
    if expected:
        assert status_of(servers[kind], path, body) == expected
    elif path not in servers[kind].rules.conditional:
        assert status_of(servers[kind], path, body) == 200


def test_a_checkpoint_is_read_as_the_safetensors_library_writes_it(tmp_path):
    tensors = weights(7)
    names = sorted(tensors)
    save_file({name: tensors[name] for name in names[:4]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({name: tensors[name] for name in names[4:]}, tmp_path / "model-00002-of-00002.safetensors")
    assert digest_of(dict(tensors_in(tmp_path))) == digest_of_tensors(tensors)
