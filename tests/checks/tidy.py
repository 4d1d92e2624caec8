"""Runs clang-tidy, with the checks of .clang-tidy, over every C++ source that is in a target.

tidy.py [FILE ...]     only these
"""

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from compile_commands import ROOT, compile_commands


def tidy(source: str, database: str) -> "tuple[str, str]":
    """Name and findings; no findings where all is well."""
    command = ["nice", "clang-tidy", "--quiet", f"--config-file={ROOT / '.clang-tidy'}", "-p", database, source]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return source, result.stdout if result.returncode == 0 else result.stdout + result.stderr


def main() -> int:
    wanted = {os.path.relpath(Path(name).resolve(), ROOT) for name in sys.argv[1:]}
    entries = [entry for entry in compile_commands() if not wanted or entry["file"] in wanted]
    if unknown := wanted - {entry["file"] for entry in entries}:
        sys.exit(f"tidy: no target compiles {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as database:
        Path(database, "compile_commands.json").write_text(json.dumps(entries))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            outcomes = list(pool.map(lambda entry: tidy(entry["file"], database), entries))
    found = [findings for _, findings in outcomes if findings.strip()]
    print("\n".join(dict.fromkeys(found)), f"\ntidy: {len(entries)} sources, {len(found)} with findings", sep="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
