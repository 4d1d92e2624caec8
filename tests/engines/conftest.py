import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # ranks are forked, and OpenMP's threads are not

import pytest
import torch
from integration.conftest import cluster, pytest_runtest_makereport  # noqa: F401
from record_registry import recordings
from vllm_checkpoints import VllmCheckpoints
from vllm_process import VllmLoader, vllm_rank


@pytest.fixture(autouse=True)
def one_thread():
    """As ranks and servers have it: with more, sums are cut in other places."""
    torch.set_num_threads(1)


# Engines' processes are shared by all tests, for each is seconds of importing.


@pytest.fixture(scope="session")
def vllm_loader():
    """vLLM's loaders."""
    loader = VllmLoader()
    yield loader
    loader.close()


@pytest.fixture(scope="session")
def vllm_recordings():
    """The program that records vLLM's loaders."""
    program = recordings()
    yield program
    program.close()


@pytest.fixture(scope="session")
def sglang_recordings():
    """The program that records SGLang's loaders, of few models."""
    program = recordings("sglang", models="placed_models")
    yield program
    program.close()


@pytest.fixture(scope="session")
def vllm_ranks(tmp_path_factory):
    """Two ranks of vLLM; each builds the model that a test wants."""
    ranks = [vllm_rank(tmp_path_factory.mktemp("installed")) for _ in range(2)]
    yield ranks
    for rank in ranks:
        rank.close()


@pytest.fixture(scope="session")
def vllm_checkpoints(tmp_path_factory):
    """Tiny checkpoints."""
    return VllmCheckpoints(tmp_path_factory.mktemp("checkpoints"))
