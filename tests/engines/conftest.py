import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks are forked, and OpenMP's threads are not

import pytest  # noqa: E402
import torch  # noqa: E402

from integration.conftest import cluster, pytest_runtest_makereport  # noqa: E402, F401


@pytest.fixture(autouse=True)
def one_thread():
    """As ranks and servers have it: with more, sums are cut in other places."""
    torch.set_num_threads(1)
