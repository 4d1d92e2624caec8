"""liblockstep.so over ctypes: where it is, and its functions with their types (contract: export_plugin/lockstep.h)."""

import ctypes
import functools
import os
from pathlib import Path
from typing import Iterator

from lockstep.core.errors import NotFoundError, from_code

ABI_VERSION = 4

INTERRUPTED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class CTensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_uint64)),
        ("rank", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
    ]


class CSource(ctypes.Structure):
    _fields_ = [
        ("tensor", ctypes.c_size_t),
        ("address", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("convert", ctypes.c_uint32),
    ]


class CLocalTensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_uint64)),
        ("strides", ctypes.POINTER(ctypes.c_uint64)),
        ("rank", ctypes.c_uint32),
        ("address", ctypes.c_void_p),
        ("convert", ctypes.c_uint32),
    ]


START_SEND = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_uint32,
    ctypes.c_void_p,
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.c_uint64),
)
START_RECEIVE = START_SEND
WAIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64)
ERROR = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class CExchange(ctypes.Structure):
    _fields_ = [
        ("context", ctypes.c_void_p),
        ("in_gpu_memory", ctypes.c_uint32),
        ("device", ctypes.c_int32),
        ("start_send", START_SEND),
        ("start_receive", START_RECEIVE),
        ("wait", WAIT),
        ("error", ERROR),
    ]


class COptions(ctypes.Structure):
    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("socket_path", ctypes.c_char_p),
        ("model", ctypes.c_char_p),
        ("rank", ctypes.c_uint32),
        ("ranks", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("connect_timeout_ms", ctypes.c_uint32),
        ("reconnect_timeout_ms", ctypes.c_uint32),
        ("call_timeout_ms", ctypes.c_uint32),
        ("run", ctypes.c_char_p),
        ("attachments", ctypes.c_char_p),
        ("guard", ctypes.c_char_p),
        ("interrupted", INTERRUPTED),
        ("context", ctypes.c_void_p),
        ("tensors", ctypes.POINTER(CTensor)),
        ("tensor_count", ctypes.c_size_t),
        ("owned", ctypes.POINTER(ctypes.c_size_t)),
        ("owned_count", ctypes.c_size_t),
        ("descriptions", ctypes.POINTER(ctypes.c_char_p)),
        ("locals", ctypes.POINTER(CLocalTensor)),
        ("local_count", ctypes.c_size_t),
        ("bucket_bytes", ctypes.c_uint64),
        ("exchange", ctypes.POINTER(CExchange)),
        ("hosts", ctypes.POINTER(ctypes.c_uint32)),
        ("part", ctypes.c_uint32),
    ]


class CPublishStats(ctypes.Structure):
    _fields_ = [
        ("bytes_copied", ctypes.c_uint64),
        ("bytes_frozen", ctypes.c_uint64),
        ("bytes_sent", ctypes.c_uint64),
        ("bytes_received", ctypes.c_uint64),
        ("buckets_sent", ctypes.c_uint64),
        ("buckets_received", ctypes.c_uint64),
        ("exchange_memory_bytes", ctypes.c_uint64),
        ("begin_us", ctypes.c_uint64),
        ("total_us", ctypes.c_uint64),
    ]


class CServedQuery(ctypes.Structure):
    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("socket_path", ctypes.c_char_p),
        ("model", ctypes.c_char_p),
        ("run", ctypes.c_char_p),
        ("version", ctypes.c_uint64),
        ("label", ctypes.c_char_p),
        ("receivers", ctypes.c_uint32),
        ("engines", ctypes.c_uint32),
        ("names", ctypes.POINTER(ctypes.c_char_p)),
        ("name_count", ctypes.c_size_t),
        ("timeout_ms", ctypes.c_uint32),
        ("interrupted", INTERRUPTED),
        ("context", ctypes.c_void_p),
    ]


class CChangesQuery(ctypes.Structure):
    _fields_ = [
        ("abi_version", ctypes.c_uint32),
        ("socket_path", ctypes.c_char_p),
        ("model", ctypes.c_char_p),
        ("run", ctypes.c_char_p),
        ("version", ctypes.c_uint64),
        ("timeout_ms", ctypes.c_uint32),
        ("interrupted", INTERRUPTED),
        ("context", ctypes.c_void_p),
    ]


_PUBLISHER = ctypes.c_void_p
_ADDRESSES = ctypes.POINTER(ctypes.c_void_p)
_DESCRIPTIONS = ctypes.POINTER(ctypes.c_char_p)
_SIGNATURES = {
    "lockstep_open": (ctypes.c_int, [ctypes.POINTER(COptions), ctypes.POINTER(_PUBLISHER)]),
    "lockstep_begin": (ctypes.c_int, [_PUBLISHER, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p)]),
    "lockstep_write": (ctypes.c_int, [_PUBLISHER, ctypes.POINTER(CSource), ctypes.c_size_t]),
    "lockstep_tensors_done": (ctypes.c_int, [_PUBLISHER, ctypes.POINTER(ctypes.c_size_t), ctypes.c_size_t]),
    "lockstep_commit": (ctypes.c_int, [_PUBLISHER, ctypes.c_char_p]),
    "lockstep_publish": (ctypes.c_int, [_PUBLISHER, ctypes.c_uint64, ctypes.c_char_p, _ADDRESSES]),
    "lockstep_fill": (
        ctypes.c_int,
        [_PUBLISHER, _ADDRESSES, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_void_p],
    ),
    "lockstep_describe": (ctypes.c_char_p, [_PUBLISHER]),
    "lockstep_abort": (ctypes.c_int, [_PUBLISHER, ctypes.c_uint64, ctypes.c_char_p]),
    "lockstep_run": (ctypes.c_char_p, [_PUBLISHER]),
    "lockstep_committed_version": (ctypes.c_uint64, [_PUBLISHER]),
    "lockstep_stats": (ctypes.c_int, [_PUBLISHER, ctypes.POINTER(CPublishStats)]),
    "lockstep_leave": (None, [_PUBLISHER]),
    "lockstep_close": (None, [_PUBLISHER]),
    "lockstep_last_error": (ctypes.c_char_p, [_PUBLISHER]),
    "lockstep_import": (
        ctypes.c_int,
        [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(CLocalTensor), ctypes.c_size_t, ctypes.c_uint32],
    ),
    "lockstep_tensors_meta": (ctypes.c_int, [_DESCRIPTIONS, ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p)]),
    "lockstep_wait_served": (
        ctypes.c_int,
        [ctypes.POINTER(CServedQuery), ctypes.POINTER(ctypes.c_void_p)],
    ),
    "lockstep_wait_changes": (
        ctypes.c_int,
        [ctypes.POINTER(CChangesQuery), ctypes.POINTER(ctypes.c_void_p)],
    ),
    "lockstep_free": (None, [ctypes.c_void_p]),
    "lockstep_has_cuda": (ctypes.c_int, []),
    "lockstep_check_gpu": (ctypes.c_int, []),
    "lockstep_version": (ctypes.c_char_p, []),
}


def _candidates() -> Iterator[Path]:
    if os.environ.get("LOCKSTEP_LIBRARY"):
        yield Path(os.environ["LOCKSTEP_LIBRARY"])
        return
    package = Path(__file__).resolve().parents[1]
    yield package / "liblockstep.so"
    for directory in package.parents:
        if (directory / "WORKSPACE").exists():
            yield directory / "bazel-bin/export_plugin/liblockstep.so"


@functools.cache
def load() -> ctypes.CDLL:
    """The library, loaded once per process. NotFoundError lists the places that were tried."""
    tried = list(_candidates())
    path = next((path for path in tried if path.exists()), None)
    if path is None:
        raise NotFoundError(
            f"liblockstep.so is not at {' or '.join(map(str, tried))}; build it with "
            "'bazel build //export_plugin:liblockstep.so' or set LOCKSTEP_LIBRARY to its path"
        )
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def raise_failure(code: int) -> None:
    """Raises what a failed call without a handle left; nothing for a call that went well."""
    if code != 0:
        raise from_code(code, load().lockstep_last_error(None).decode(errors="replace"))


def library_version() -> str:
    """The version of liblockstep.so, as "1.2.3"."""
    version: bytes = load().lockstep_version()
    return version.decode()
