"""How large the model is, and whether the machine has memory for all of its copies."""

import os

from failure import EX_OSERR, DemoFailed

RECEIVERS = 3
COPIES = 2 + 2 * RECEIVERS  # the agent's slots, and two replicas per receiver
OVERHEAD_BYTES = 768 << 20  # processes, retained deltas, page tables

STATE_BYTES = 14  # of the trainer, for each element: master, two moments, and what it published

VLLM_BYTES = 4 << 30  # the server, and PyTorch in the demo itself
VLLM_SHARED_BYTES = 256 << 20


def check_memory(model):
    trainer_bytes = STATE_BYTES * model.elements
    shared = COPIES * model.model_bytes + (16 << 20)
    free = _free_shared_memory()
    if free < shared:
        raise DemoFailed(
            EX_OSERR,
            f"{model.title} needs {_gib(shared)} in /dev/shm ({COPIES} copies of {_gib(model.model_bytes)}) and "
            f"{_gib(free)} are free: choose a smaller model, or remount it with a larger size=",
        )
    wanted = shared + trainer_bytes + OVERHEAD_BYTES
    available = _available_memory()
    if available < wanted:
        raise DemoFailed(
            EX_OSERR,
            f"{model.title} needs {_gib(wanted)} of memory ({_gib(shared)} for {COPIES} copies in /dev/shm, "
            f"{_gib(trainer_bytes)} for the trainer) and {_gib(available)} are available: choose a smaller model",
        )


def check_memory_for_vllm():
    for kind, wanted, there in (
        ("memory", VLLM_BYTES, _available_memory()),
        ("space in /dev/shm", VLLM_SHARED_BYTES, _free_shared_memory()),
    ):
        if there < wanted:
            raise DemoFailed(EX_OSERR, f"--vllm needs {_gib(wanted)} of {kind}, and {_gib(there)} are available")


def _free_shared_memory():
    space = os.statvfs("/dev/shm")
    return space.f_bavail * space.f_frsize


def _available_memory():
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise DemoFailed(EX_OSERR, "/proc/meminfo does not say how much memory is available")


def _gib(count):
    return f"{count / 2**30:.1f} GiB"
