import os
import signal

# PyTorch's threads wait for each other in busy loops: where others want the processors, two are much slower than one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from harness import Cluster

# What a shell starts in the background has SIGINT ignored, and so have its children; tests interrupt what waits.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def cluster(request):
    """A test's daemons; ended and removed whatever happens."""
    cluster = Cluster()
    request.node.cluster = cluster
    yield cluster
    cluster.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows the end of each daemon's log."""
    report = yield
    if report.failed and hasattr(item, "cluster"):
        for daemon in item.cluster.daemons:
            report.sections.append((f"log of {daemon.name}", daemon.log_tail()))
    return report
