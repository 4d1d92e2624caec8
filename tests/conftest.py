"""For all tests: what a fork costs, and how files are handed out when tests run side by side."""

import gc
import os

import pytest

# A collection in a forked process would write to every object of its parent, and so copy PyTorch and all the rest.
os.register_at_fork(after_in_child=gc.freeze)

# Handed out first, in this order, or the last one runs alone.
LONGEST = (
    "test_real_vllm_in_place.py",
    "test_real_vllm_directory.py",
    "test_real_sglang_in_place.py",
    "test_real_sglang_directory.py",
    "test_vllm_trainer.py",
    "test_debs.py",
    "test_in_place.py",
    "test_sudden_ends.py",
    "test_serving.py",
    "test_crashes.py",
    "test_versions.py",
    "test_drivers.py",
    "test_megatron.py",
    "test_tutorial.py",
    "test_quickstart.py",
    "test_fsdp.py",
    "test_importer.py",
    "test_fsdp_placements.py",
    "test_trust.py",
    "test_examples.py",
    "test_generators.py",
    "test_plan.py",
    "test_rank_failures.py",
    "test_package.py",
)


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
    for item in items:
        if item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.timeout(2 * 3600))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """By file; but what starts vLLM, 8 s of importing each time, shares its processes, and whole servers run one at a
    time."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid):
            groups = {"/test_vllm_": "vllm", "/test_real_": "servers"}
            return next((groups[part] for part in groups if part in nodeid), super()._split_scope(nodeid))

    return ByFile(config, log)
