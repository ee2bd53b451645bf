"""Buffers of llama.cpp that something else than full device memory refused."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.model import Evidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, candidate, cite
from kvprobe.diagnose.rules.logs.words import size
from kvprobe.evidence.events import Event

_NO_BUFFER: Final = 2**40
"""A buffer of a TiB comes of a wrong size as easily as of a large model."""
_LARGEST_CARD: Final = 24 * 2**30
"""Of Intel's cards that SYCL serves."""


def host_buffer(event: Event, asked: float | None, evidence: list[Evidence], fatal: bool) -> LogCandidate:
    return candidate(
        "host_memory_exhausted",
        "suspected" if asked is not None and asked >= _NO_BUFFER else "likely",
        f"A host buffer of {size(asked)} was refused: system memory, not GPU memory, is too small.",
        evidence,
        fatal=fatal,
        at=event,
        phase="load",
        check_first=["free RAM and swap, limits of the container, `ulimit -v`"],
        remedy=[
            "memory-map the file (no --no-mmap, no --mlock)",
            "a smaller model, context or batch",
            "more RAM",
        ],
        would_change_my_mind=["as much free RAM as was asked for"],
        excludes={"capacity_exhausted": "the buffer is on the host"},
    )


def one_block(
    event: Event, asked: float, free: float | None, evidence: list[Evidence], fatal: bool
) -> LogCandidate:
    return candidate(
        "driver_limit_not_capacity",
        "suspected" if asked > (free if free is not None else _LARGEST_CARD) else "likely",
        f"One buffer of {size(asked)} was asked of {event.get('device')}: Intel's driver refuses single "
        "blocks above 4 GiB, whatever is free.",
        evidence,
        fatal=fatal,
        at=event,
        phase="load",
        check_first=["whether a model whose largest buffer is below 4 GiB loads"],
        remedy=["UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1, in recent builds", "the Vulkan back end"],
        would_change_my_mind=["a refusal of buffers below 4 GiB too: then memory is short"],
    )


def free_but_refused(
    event: Event, asked: float, free: float, evidence: list[Evidence], fatal: bool
) -> LogCandidate:
    return candidate(
        "driver_limit_not_capacity",
        "suspected",
        f"{size(asked)} were refused on {event.get('device')} although {size(free)} were free at start: a "
        f"limit of the driver or of the host's memory, or another process took it since.",
        evidence,
        fatal=fatal,
        at=event,
        phase="load",
        check_first=["free device memory at the moment of the failure, and free host RAM"],
        remedy=[
            "smaller single buffers (--no-mmap off, split over devices)",
            "a newer driver; on APUs a larger GTT or carve-out",
        ],
        would_change_my_mind=["less free memory than asked at the moment of the failure"],
    )


def allocation_limit(
    limit: Event, event: Event, asked: float | None, evidence: list[Evidence]
) -> LogCandidate:
    return candidate(
        "driver_limit_not_capacity",
        "certain",
        f"One buffer of {size(asked)} is above what the driver allows for a single allocation "
        f"({limit.get('limit_of') or 'maxBufferLength'}); the device may have more memory free than that.",
        [cite(limit), *evidence],
        fatal=True,
        at=limit,
        check_first=[
            "maxMemoryAllocationSize / maxBufferLength of the device (vulkaninfo) against the buffer"
        ],
        remedy=[
            "make the buffer smaller: a smaller -ub or -c, flash attention on",
            "another back end or driver (RADV instead of AMDVLK; ROCm, CUDA)",
        ],
        would_change_my_mind=["a refusal of buffers far below the limit"],
        excludes={"capacity_exhausted": "a limit of one allocation, not the device's memory, refused it"},
    )
