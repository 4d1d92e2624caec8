"""A model's config.json, from whatever a caller has of it. For the Megatron-core part and derived models."""

import json
import os
from typing import Any, Mapping

from lockstep.core import arguments
from lockstep.core.errors import BadDataError, IoError


def config_json(config: Any, what: str = "hf_config") -> str:
    """A transformers configuration, a dict, or a path to a config.json, as one text that is the same on every rank. ``what``:
    the argument's name, for errors."""
    if hasattr(config, "to_dict"):
        given = config.to_dict()
    elif isinstance(config, Mapping):
        given = dict(config)
    else:
        given = _read(os.fsdecode(arguments.path(what, config)), what)
    for key, value in given.items():
        try:
            json.dumps(value, default=str, allow_nan=False)
        except ValueError as error:  # as in 5.0 / 0, or in a loop of references
            raise BadDataError(f'{what}: "{key}" is {value}, which is no JSON: {error}') from None
    return json.dumps(given, sort_keys=True, default=str)


def _read(path: str, what: str) -> "dict[str, Any]":
    if os.path.isdir(path):
        raise BadDataError(f"{what}: {path} is a directory; give {os.path.join(path, 'config.json')}")
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except OSError as error:
        raise IoError(f"{what}: {path}: {error.strerror}") from None
    except ValueError as error:
        raise BadDataError(f"{what}: {path} is no JSON: {error}") from None
    if not isinstance(config, dict):
        raise BadDataError(f"{what}: {path} has a {type(config).__name__}, not an object with keys")
    return config
