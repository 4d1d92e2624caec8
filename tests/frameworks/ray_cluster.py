"""A small Ray of this test run's own. Its workers import what the tests do."""

import contextlib
import os
import sys
from collections.abc import Iterator

import ray


@contextlib.contextmanager
def started(**environment: str) -> "Iterator[None]":
    """With eight places for workers, which are more than there are processors, and variables of theirs."""
    inherited = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "OMP_NUM_THREADS": "1",
    }
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=100 << 20,
        runtime_env={"env_vars": inherited | environment},
    )
    try:
        yield
    finally:
        ray.shutdown()
