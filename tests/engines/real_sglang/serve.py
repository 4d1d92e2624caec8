"""SGLang's server (python -m sglang.launch_server) where neither Triton nor operators of torchvision are: for sglang_server.py.

SGLang imports Triton for the definitions of kernels for GPUs. Here, its own stand-in for Triton is installed, which it has
for macOS. Each process that SGLang spawns begins with this module, too.
"""

import contextlib
import importlib.util
import sys
from unittest import mock

import torch
from torch.utils import _triton


def install_triton() -> None:
    """SGLang's stand-in. PyTorch is asked first, and remembers that there is none."""
    assert not _triton.has_triton_package()
    (sources,) = importlib.util.find_spec("sglang").submodule_search_locations
    with mock.patch("sys.path", [sources, *sys.path]):  # the package itself imports Triton
        import _platform_stubs
    with contextlib.ExitStack() as pretended:
        pretended.enter_context(mock.patch("sys.platform", "darwin"))
        pretended.enter_context(mock.patch("platform.machine", lambda: "arm64"))
        pretended.enter_context(mock.patch("torch.backends.mps.is_available", lambda: True))
        pretended.enter_context(mock.patch.object(_platform_stubs, "_patch_non_blocking"))  # of Tensor.copy_
        _platform_stubs.install_platform_stubs()


def declare_operators() -> "torch.library.Library":
    """Those that torchvision says more of when it is imported. They stay as long as what is returned."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


install_triton()
_operators = declare_operators()

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    run_server(prepare_server_args(sys.argv[1:]))
