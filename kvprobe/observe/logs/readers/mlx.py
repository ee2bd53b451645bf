"""MLX and its servers on Apple silicon: limits of one Metal buffer, of their number, of memory."""

from __future__ import annotations

from kvprobe.observe.logs.lines import Reader
from kvprobe.observe.logs.readers.signature import signature, table_reader

ENGINE = "mlx"

_ROWS = (
    signature(
        "mlx_buffer_limit",
        "maximum allowed buffer size",
        r"Attempting to allocate (?P<asked__B>\d+) bytes which is greater than the maximum allowed buffer "
        r"size of "
        r"(?P<limit__B>\d+)",
    ),
    signature(
        "prefill_guarded",
        "Prefill would require",
        r"Prefill would require ~?(?P<asked__size>[\d.]+ GB) peak \(current (?P<used__size>[\d.]+ GB)"
        r".{0,60}?\) but .{0,40}?ceiling is (?P<limit__size>[\d.]+ GB)",
    ),
    signature(
        "mlx_resource_limit",
        "Resource limit (",
        r"\[metal::malloc\] Resource limit \((?P<limit__count>\d+)\) exceeded",
    ),
    signature(
        "mlx_no_memory",
        "Unable to allocate",
        r"(?:\[?(?:metal::)?malloc(?:_or_wait)?\]?).{0,8}Unable to allocate (?P<asked__B>\d+) bytes",
    ),
    signature(
        "metal_oom",
        "[METAL] Command buffer execution failed: Insufficient Memory",
        r"Insufficient Memory",
    ),
    signature(
        "metal_fault",
        "kIOGPUCommandBufferCallbackError",
        r"kIOGPUCommandBufferCallbackError(?P<kind__text>(?!OutOfMemory)\w{3,40})",
    ),
)

READERS: tuple[Reader, ...] = (table_reader("mlx", ENGINE, _ROWS),)
