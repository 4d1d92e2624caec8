import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks are forked, and OpenMP's threads are not

import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from harness import Cluster
from hf_models import tiny_config, write_checkpoint
from integration.conftest import cluster, pytest_runtest_makereport  # noqa: F401


class Checkpoints:
    """Checkpoints written when first asked for, and kept until all tests are done."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def get(self, model: str, seed: int = 1, **overrides: object) -> Path:
        """The directory of a checkpoint; another seed means other weights."""
        name = "-".join([model, str(seed), *(f"{key}={value}" for key, value in overrides.items())])
        path = self._directory / name
        if not path.exists():
            write_checkpoint(path, tiny_config(model, **overrides), seed)
        return path


@pytest.fixture(autouse=True)
def one_thread():
    """As ranks have it: with more, sums are cut in other places, and logits differ in their last bits."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Each test finds for itself what a bridge makes its tensors of."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def checkpoints():
    """Writes tiny transformers checkpoints."""
    directory = tempfile.mkdtemp(prefix="lockstep-layouts-")
    yield Checkpoints(Path(directory))
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def module_cluster():
    """Daemons that all tests of a file share."""
    shared = Cluster()
    yield shared
    shared.close()


@pytest.fixture(autouse=True)
def show_daemons_of_the_module(request):
    """A failed test shows the logs of shared daemons, too."""
    if "module_cluster" in request.fixturenames:
        request.node.cluster = request.getfixturevalue("module_cluster")
