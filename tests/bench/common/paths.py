"""Where the benchmarks' Python modules are: importing this puts their folders on the path. run.py gives them to the
programs that it starts, conftest.py to the tests."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = [
    str(ROOT / folder)
    for folder in (
        "python",
        "tests",
        "tests/integration",
        "tests/layouts",
        "tests/engines",
        "tests/bench/common",
        "tests/bench/plots",
        "tests/bench/sync",
        "tests/bench/wan",
    )
]
sys.path += [folder for folder in FOLDERS if folder not in sys.path]
