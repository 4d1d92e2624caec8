"""In which order files are handed out when tests run side by side: those that take longest first, or the last one runs alone."""

LONGEST = (
    "test_vllm_in_place.py",
    "test_vllm_trainer.py",
    "test_serving.py",
    "test_in_place.py",
    "test_megatron.py",
    "test_drivers.py",
    "test_crashes.py",
    "test_vllm_loaders.py",
    "test_vllm_plugin.py",
    "test_fsdp.py",
    "test_versions.py",
    "test_training.py",
    "test_examples.py",
    "test_trust.py",
    "test_example.py",
    "test_package.py",
)


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))
