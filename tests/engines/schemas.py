"""What the servers' endpoints take (server_schemas.json), checked as pydantic does in its lax mode."""

import ast
import json
from pathlib import Path
from urllib.parse import parse_qsl

RECORDED = json.loads(Path(__file__).with_name("server_schemas.json").read_text())
REQUIRED = "required"
TRUE = {"1", "true", "t", "yes", "y", "on"}
FALSE = {"0", "false", "f", "no", "n", "off"}


class Invalid(Exception):
    """A validation error's text; `where` is the path to the field."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")
        self.where = where


def as_bool(value):
    if isinstance(value, bool):
        return value
    text = str(value).lower() if isinstance(value, (str, int, float)) else ""
    if text in TRUE | FALSE:
        return text in TRUE
    raise ValueError("Input should be a valid boolean")


def as_number(value, kind: type):
    if isinstance(value, (bool, int, float, str)):
        try:
            number = float(value)
        except ValueError:
            number = None
        if number is not None and (kind is float or number == int(number)):
            return kind(number)
    raise ValueError(f"Input should be a valid {'integer' if kind is int else 'number'}")


def as_kind(value, kind: type, name: str):
    if isinstance(value, kind):
        return value
    raise ValueError(f"Input should be a valid {name}")


def convert(value, type_text: str):
    """`value` as the annotation wants it; ValueError otherwise."""
    alternatives = [part.strip() for part in type_text.split(" | ")]
    for alternative in alternatives:
        try:
            return convert_one(value, alternative)
        except ValueError as error:
            last = error
    raise last


def convert_one(value, name: str):
    base = name.partition("[")[0].lower()
    if base == "literal":
        allowed = ast.literal_eval(name[len("Literal") :])
        if value in (allowed if isinstance(allowed, (tuple, list)) else [allowed]):
            return value
        raise ValueError(f"Input should be one of {allowed}")
    if base == "none":
        if value is None:
            return None
        raise ValueError("Input should be None")
    if base in ("int", "float"):
        return as_number(value, int if base == "int" else float)
    if base in ("dict", "list"):
        return as_kind(value, dict if base == "dict" else list, base)
    return {"bool": as_bool, "str": lambda v: as_kind(v, str, "string"), "any": lambda v: v}[base](value)


def fill(fields: dict, given: dict, where: str) -> dict:
    """All of `fields` from `given` or their defaults. Others are ignored, as the servers do."""
    values = {}
    for name, field in fields.items():
        if name not in given:
            if field["default"] == REQUIRED:
                raise Invalid(f"{where}.{name}", "Field required")
            values[name] = field["default"]
            continue
        try:
            values[name] = convert(given[name], field["type"])
        except ValueError as error:
            raise Invalid(f"{where}.{name}", str(error)) from None
    return values


def unknown_fields(endpoint: dict, query: str, body: bytes) -> "list[str]":
    """Names in a request that its endpoint does not know: the servers ignore them, their sender is mistaken."""
    given = dict(parse_qsl(query))
    names = [f"query.{name}" for name in given if name not in endpoint["query"]]
    with_body = json.loads(body) if body else {}
    if isinstance(with_body, dict):
        names += [f"body.{name}" for name in with_body if name not in endpoint.get("body", {})]
    return names


def read(endpoint: dict, query: str, content_type: str, body: bytes, body_required: bool) -> dict:
    """The query's and the body's values by name. Invalid when the server would refuse them."""
    values = fill(endpoint["query"], dict(parse_qsl(query)), "query")
    if "body" not in endpoint or endpoint.get("raw"):
        return values
    if not body:
        if body_required:
            raise Invalid("body", "Field required")
        return values | fill(endpoint["body"], {}, "body")
    if content_type.partition(";")[0].strip() != "application/json":
        raise Invalid("body", "Input should be a valid dictionary")
    try:
        given = json.loads(body)
    except ValueError as error:
        raise Invalid("body", f"JSON decode error: {error}") from None
    if not isinstance(given, dict):
        raise Invalid("body", "Input should be a valid dictionary")
    return values | fill(endpoint["body"], given, "body")
