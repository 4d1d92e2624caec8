import os

# They need a GPU, and tests/gpu/run.sh to say that there is one: nowhere else are they collected, skipped or counted.
collect_ignore_glob = [] if "LOCKSTEP_GPU_DEVICE" in os.environ else ["test_gpu_*.py"]

from integration.conftest import cluster, pytest_runtest_makereport  # noqa: E402, F401
