import os
import shutil
import tempfile
from pathlib import Path

import pytest
from integration.conftest import cluster, pytest_runtest_makereport  # noqa: F401


@pytest.fixture
def place():
    """A directory where none but root may write, all the way up: a trainer of root trusts sockets that other users have there."""
    if os.geteuid() != 0:
        pytest.skip("only root makes other roots and other users' daemons")
    path = Path(tempfile.mkdtemp(prefix="lockstep-test-", dir="/run"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)
