"""Whether the packed programs start on this machine, and the packed library loads and has CUDA."""

import subprocess

from lockstep import programs
from lockstep.core import abi

for name in ("trainer_agent", "raas_receiver", "lockstepctl"):
    subprocess.run([programs.find(name), "--version"], check=True, timeout=20)
assert abi.load().lockstep_has_cuda(), "liblockstep.so was built without CUDA"
