"""The CPU as a device of verl, which comes with GPUs and NPUs alone."""

from typing import Any

import torch
from verl.plugin.platform import PlatformBase, set_platform


def use_cpu() -> None:
    """For this process, before verl asks for its device."""
    methods: "dict[str, Any]" = dict.fromkeys(PlatformBase.__abstractmethods__, lambda *_: None)
    methods |= {
        "device_name": "cpu",
        "device_module": torch.cpu,
        "current_device": lambda _: torch.device("cpu"),
        "ray_resource_name": lambda _: "CPU",
        "visible_devices_envvar": lambda _: "CUDA_VISIBLE_DEVICES",
    }
    torch.cpu.empty_cache = lambda: None  # which a GPU's module has, and verl calls
    set_platform(type("Cpu", (PlatformBase,), methods)())
