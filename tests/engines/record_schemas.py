"""Records what the servers' control endpoints take, from the servers' own sources, into server_schemas.json.

    python3 record_schemas.py --sglang DIR [--vllm DIR] ...

DIR holds the package, as `pip download --no-deps` and `unzip` leave it; what is recorded of the packages that are not
given stays. The sources are parsed, not run: neither torch nor a GPU is needed. Recorded are an endpoint's methods, and of each field of its query and body the type as it is
written there and the default ("required" when there is none).
"""

import argparse
import ast
import json
from pathlib import Path

RECORDED = Path(__file__).with_name("server_schemas.json")
SGLANG_HTTP = "sglang/srt/entrypoints/http_server.py"
SGLANG_STRUCTS = "sglang/srt/managers/io_struct.py"
SGLANG_ENDPOINTS = (
    "/begin_weight_update",
    "/continue_generation",
    "/end_weight_update",
    "/flush_cache",
    "/health",
    "/model_info",
    "/pause_generation",
    "/ready",
    "/server_info",
    "/update_weight_version",
    "/update_weights_from_disk",
    "/weights_checker",
)
VLLM_ROUTERS = (
    "vllm/entrypoints/rl/online/api_router.py",
    "vllm/entrypoints/serve/dev/rpc/api_router.py",
    "vllm/entrypoints/serve/dev/cache/api_router.py",
)
VLLM_ENDPOINTS = (
    "/collective_rpc",
    "/finish_weight_update",
    "/is_paused",
    "/pause",
    "/reset_prefix_cache",
    "/resume",
    "/start_weight_update",
    "/update_weight_version",
    "/update_weights",
    "/weight_checker",
    "/weight_info",
)
# Names of types that the sources give elsewhere.
ALIASES = {
    "PauseMode": "vllm/v1/engine/__init__.py",
    "WeightTransferUpdatePayload": "vllm/distributed/weight_transfer/base.py",
}

REQUIRED = "required"


def parse(root: Path, file: str) -> ast.Module:
    return ast.parse((root / file).read_text(), file)


def type_text(root: Path, node: ast.expr) -> str:
    """The annotation as text, with Optional[X] as "X | None" and known aliases replaced by what they stand for."""
    text = ast.unparse(node)
    if text in ALIASES:
        for statement in parse(root, ALIASES[text]).body:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
            if isinstance(target, ast.Name) and target.id == text:
                return ast.unparse(statement.value)
        raise SystemExit(f"{ALIASES[text]} does not define {text}")
    if text.startswith("Optional[") and text.endswith("]"):
        return f"{text[len('Optional[') : -1]} | None"
    return text


def field(root: Path, annotation: ast.expr, default: "ast.expr | None") -> dict:
    if isinstance(default, ast.Call):  # Query(0.0, ge=0.0), Query(default=False)
        named = {keyword.arg: keyword.value for keyword in default.keywords}
        default = default.args[0] if default.args else named.get("default")
    entry = {"type": type_text(root, annotation)}
    entry["default"] = REQUIRED if default is None else ast.literal_eval(default)
    return entry


def routes(module: ast.Module):
    """(path, methods, function) of every decorated handler."""
    for function in module.body:
        if not isinstance(function, ast.AsyncFunctionDef):
            continue
        for decorator in function.decorator_list:
            call = isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute)
            if not call or not decorator.args or not isinstance(decorator.args[0], ast.Constant):
                continue
            verb = decorator.func.attr
            if verb in ("get", "post"):
                yield ast.literal_eval(decorator.args[0]), [verb.upper()], function
            elif verb == "api_route":
                methods = next(keyword.value for keyword in decorator.keywords if keyword.arg == "methods")
                yield ast.literal_eval(decorator.args[0]), ast.literal_eval(methods), function


def struct_fields(root: Path, structs: "dict[str, ast.ClassDef]", name: str) -> "dict[str, dict]":
    found = {}
    for base in structs[name].bases:
        if isinstance(base, ast.Name) and base.id in structs:
            found.update(struct_fields(root, structs, base.id))
    for statement in structs[name].body:
        if isinstance(statement, ast.AnnAssign):
            found[statement.target.id] = field(root, statement.annotation, statement.value)
    return found


def arguments(function: ast.AsyncFunctionDef):
    """(name, annotation, default or None) of a handler's arguments."""
    given = function.args.args
    defaults = [None] * (len(given) - len(function.args.defaults)) + list(function.args.defaults)
    for argument, default in zip(given, defaults):
        yield argument.arg, argument.annotation, default


def annotated(annotation: ast.expr) -> "tuple[ast.expr, str]":
    """Annotated[X, Body(...)] as (X, "Body"); anything else as (itself, "")."""
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Annotated":
        inner, marker = annotation.slice.elts[:2]
        return inner, ast.unparse(marker.func)
    return annotation, ""


def raw_body_fields(function: ast.AsyncFunctionDef) -> "dict[str, dict]":
    """Fields of a handler that takes the JSON apart by itself, with body.get(NAME[, DEFAULT])."""
    found = {}
    for statement in ast.walk(function):
        call = getattr(statement, "value", None)
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "body.get":
            continue
        name, *default = [ast.literal_eval(argument) for argument in call.args]
        kind = ast.unparse(statement.annotation) if isinstance(statement, ast.AnnAssign) else "Any"
        required = f"Missing '{name}'" in ast.unparse(function)
        found[name] = {"type": kind, "default": REQUIRED if required else (default[0] if default else None)}
    return found


def sglang(root: Path) -> dict:
    structs = {node.name: node for node in parse(root, SGLANG_STRUCTS).body if isinstance(node, ast.ClassDef)}
    endpoints = {}
    for path, methods, function in routes(parse(root, SGLANG_HTTP)):
        if path not in SGLANG_ENDPOINTS:
            continue
        entry = {"methods": methods, "query": {}, "source": f"{SGLANG_HTTP}:{function.name}"}
        levels = [ast.unparse(d.args[0]) for d in function.decorator_list if ast.unparse(d.func) == "auth_level"]
        entry["auth"] = levels[0].rpartition(".")[2] if levels else "NORMAL"
        for name, annotation, default in arguments(function):
            inner, marker = annotated(annotation)
            if marker == "Body":
                struct = type_text(root, inner).removesuffix(" | None")
                entry["body"] = struct_fields(root, structs, struct)
                entry["struct"] = f"{SGLANG_STRUCTS}:{struct}"
            elif ast.unparse(inner) != "Request":
                entry["query"][name] = field(root, inner, default)
        endpoints[path] = entry
    return endpoints


def vllm(root: Path) -> dict:
    endpoints = {}
    for file in VLLM_ROUTERS:
        for path, methods, function in routes(parse(root, file)):
            if path not in VLLM_ENDPOINTS:
                continue
            entry = {"methods": methods, "query": {}, "source": f"{file}:{function.name}"}
            body = raw_body_fields(function)
            for name, annotation, default in arguments(function):
                inner, marker = annotated(annotation)
                if marker == "Body":
                    body[name] = field(root, inner, default)
                elif ast.unparse(inner) != "Request":
                    entry["query"][name] = field(root, inner, default)
            entry["raw"] = bool(raw_body_fields(function))  # the types of a raw body are hopes: they are not checked
            if body:
                entry["body"] = body
            endpoints[path] = entry
    return endpoints


# By package: what reads the endpoints in its sources, and which of them are recorded.
SERVERS = {"sglang": (sglang, SGLANG_ENDPOINTS), "vllm": (vllm, VLLM_ENDPOINTS)}


def version(root: Path, package: str) -> str:
    metadata = sorted(root.glob(f"{package}-*.dist-info/METADATA"))
    lines = metadata[0].read_text().splitlines() if metadata else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("Version: ")), "unknown")


def record(package: str, root: Path) -> dict:
    """{"version", "endpoints"} of the sources of `package` below `root`."""
    read, wanted = SERVERS[package]
    endpoints = read(root)
    missing = set(wanted) - endpoints.keys()
    if missing:
        raise SystemExit(f"{package}: no handler of {sorted(missing)} in the sources below {root}")
    return {"version": version(root, package), "endpoints": dict(sorted(endpoints.items()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for package in SERVERS:
        parser.add_argument(f"--{package}", type=Path, metavar="DIR")
    given = {package: root for package, root in vars(parser.parse_args()).items() if root is not None}
    recorded = json.loads(RECORDED.read_text())
    recorded |= {package: record(package, root) for package, root in given.items()}
    RECORDED.write_text(json.dumps(dict(sorted(recorded.items())), indent=1) + "\n")


if __name__ == "__main__":
    main()
