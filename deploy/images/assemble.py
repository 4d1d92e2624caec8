#!/usr/bin/env python3
"""Makes an image's root file system of a Dockerfile, without Docker: for deploy/release.sh and tests/release.

    deploy/images/assemble.py DOCKERFILE CONTEXT ROOT [NAME=VALUE...]

ROOT is a directory that is not there yet; NAME=VALUE is a build argument. Prints the image's configuration as JSON, under the
names that OCI images have. Knows FROM scratch, ARG, COPY, ENV, LABEL, USER, HEALTHCHECK and ENTRYPOINT, the latter two
without a shell, and refuses what else a Dockerfile may say.
"""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path


class Refused(Exception):
    pass


def command(text: str) -> "list[str]":
    if not text.startswith("["):
        raise Refused(f"an image has no shell, so a command is a list: {text}")
    return json.loads(text)


class Image:
    def __init__(self, context: Path, root: Path, arguments: "dict[str, str]") -> None:
        self.context = context
        self.root = root
        self.given = arguments
        self.arguments: "dict[str, str]" = {}
        self.config: "dict[str, object]" = {"Env": [], "Labels": {}}

    def take(self, instruction: str, text: str) -> None:
        method = getattr(self, f"_{instruction.lower()}", None)
        if method is None:
            raise Refused(f"assemble.py does not know {instruction}")
        method(text)

    def _from(self, text: str) -> None:
        if text != "scratch":
            raise Refused(f"an image begins with scratch, not with {text}")
        self.root.mkdir()

    def _arg(self, text: str) -> None:
        self.arguments[text] = self.given.get(text, "")

    def _copy(self, text: str) -> None:
        """A directory's content, or files; to a directory, which ends with a slash, or one file to its new name."""
        *sources, target = text.split()
        place = self.root / target.lstrip("/")
        directory = place if target.endswith("/") else place.parent
        directory.mkdir(parents=True, exist_ok=True)
        for source in sources:
            path = self.context / source
            if path.is_dir():
                shutil.copytree(path, place, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy2(path, place)

    def _pairs(self, text: str) -> "dict[str, str]":
        replaced = re.sub(r"\$(\w+)", lambda name: self.arguments[name[1]], text)
        return dict(word.split("=", 1) for word in shlex.split(replaced))

    def _env(self, text: str) -> None:
        self.config["Env"] += [f"{name}={value}" for name, value in self._pairs(text).items()]

    def _label(self, text: str) -> None:
        self.config["Labels"].update(self._pairs(text))

    def _user(self, text: str) -> None:
        if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", text):
            raise Refused(f"a user and a group are numbers, and not root's: {text}")
        self.config["User"] = text

    def _healthcheck(self, text: str) -> None:
        self.config["Healthcheck"] = {"Test": ["CMD", *command(text.partition(" CMD ")[2])]}

    def _entrypoint(self, text: str) -> None:
        self.config["Entrypoint"] = command(text)


def assemble(dockerfile: Path, context: Path, root: Path, arguments: "dict[str, str]") -> "dict[str, object]":
    image = Image(context, root, arguments)
    for line in dockerfile.read_text().splitlines():
        if line and not line.startswith("#"):
            image.take(*line.split(" ", 1))
    return image.config


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    paths = [Path(argument) for argument in sys.argv[1:4]]
    try:
        config = assemble(*paths, dict(argument.split("=", 1) for argument in sys.argv[4:]))
    except Refused as refusal:
        sys.exit(f"assemble.py: {paths[0]}: {refusal}")
    print(json.dumps(config, indent=2))
