"""Where the benchmarks' Python modules are: importing this puts their folders on the path. run.py gives them to the
programs that it starts, conftest.py to the tests."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
BINARIES = ROOT / "bazel-bin/tests/bench"
TESTS = "integration", "layouts", "engines", "bench/common", "bench/plots", "bench/sync", "bench/wan"
FOLDERS = [str(ROOT / "python"), str(ROOT / "tests"), *(str(ROOT / "tests" / folder) for folder in TESTS)]
sys.path += [folder for folder in FOLDERS if folder not in sys.path]
