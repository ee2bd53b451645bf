"""NCCL and RCCL: their buffers, their shared memory, and what is no memory matter at all."""

from __future__ import annotations

from kvprobe.observe.logs.lines import Reader
from kvprobe.observe.logs.readers.signature import signature, table_reader

_ROWS = (
    signature(
        "nccl_no_memory", "NCCL WARN Cuda failure", r"Cuda failure ?\d* ?'out of memory'", what="device"
    ),
    signature("nccl_no_memory", "HIP failure", r"NCCL WARN HIP failure.{0,20}out of memory", what="device"),
    signature("nccl_no_memory", "Cuda failure", r"^\s*Cuda failure ?\d* 'out of memory'", what="device"),
    signature(
        "nccl_no_memory",
        "Failed to CUDA calloc",
        r"Failed to CUDA calloc(?: async)? (?P<asked__B>\d+) bytes",
        what="device",
    ),
    signature(
        "nccl_no_memory",
        "Failed to CUDA host alloc",
        r"Failed to CUDA host alloc (?P<asked__B>\d+) bytes",
        what="host",
    ),
    signature(
        "nccl_no_memory",
        "while creating shared memory segment",
        r"while creating shared memory segment \S{1,80} \(size (?P<asked__B>\d+)\)",
        what="shared memory",
    ),
    signature(
        "nccl_no_memory",
        "posix_fallocate failed",
        r"posix_fallocate failed ?: ?No space left on device",
        what="shared memory",
    ),
    signature(
        "nccl_no_memory", "nvshmem_malloc", r"nvshmem_malloc.{0,60}(?:out of memory|fail)", what="symmetric"
    ),
    signature("nccl_other", "Duplicate GPU detected", r"Duplicate GPU detected", what="two ranks on one GPU"),
    signature(
        "nccl_other",
        "unhandled system error",
        r"unhandled system error|ncclSystemError",
        what="system error (network, peer access)",
    ),
    signature("nccl_other", "ncclInvalidUsage", r"ncclInvalidUsage", what="invalid usage"),
    signature(
        "nccl_other",
        "NCCL error: invalid",
        r"NCCL error: invalid (?:usage|argument)",
        what="invalid usage",
    ),
    signature(
        "nccl_other",
        "NCCL WARN Cuda failure",
        r"NCCL WARN Cuda failure ?\d* '(?:operation not supported|peer access|no kernel image|invalid device|"
        r"system not yet initialized|driver version|CUDA driver version)",
        what="something the device or the driver does not support",
    ),
    signature("nccl_other", "ncclRemoteError", r"ncclRemoteError", what="a peer went away"),
)

READERS: tuple[Reader, ...] = (table_reader("nccl", None, _ROWS),)
