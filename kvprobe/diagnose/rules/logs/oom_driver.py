"""Out-of-memory messages whose numbers show that the chip's memory is not what refused: limits of the driver
and the system, memory that is shared with the host, and Metal's own cap."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.rules.logs.base import LogCandidate
from kvprobe.diagnose.rules.logs.oom_case import OomCase
from kvprobe.summary.units import size

_NEARLY_FULL: Final = 0.02
"""Of the card: so little may have come free between the refusal and the message."""
_SMALLEST_CARD_BYTES: Final = 2 * 2**30
"""No card that ROCm serves has less: such a total is an APU's carve-out."""
_ONE_TENSOR: Final = 0.25
"""Of what is allowed: a request above it is a transient of the input's size, not the sum of what is held."""
_UNIFIED_BYTES: Final = 60 * 2**30


def unusable(c: OomCase) -> LogCandidate:
    n = c.numbers
    told = (
        f"free ({size(n.free)}) exceeds the total ({size(n.total)})"
        if n.free is not None and n.total and n.free > n.total
        else f"{size(n.allocated or 0)} are allocated on a card of {size(n.total or 0)}"
    )
    return c.found(
        "driver_limit_not_capacity",
        "likely",
        f"The driver's numbers do not hold: {told}; the device shares memory with the host, and the limit "
        f"that refused {size(n.requested)} is the driver's, not the chip's.",
        check_first=[
            "how the driver divides memory (APU: BIOS carve-out and GTT; Windows: shared GPU memory, "
            "page file)"
        ],
        remedy=[
            "raise the driver's share (UMA frame buffer in the BIOS, `amdgpu.gttsize`, "
            "`ttm.pages_limit`; on Windows "
            "a larger page file), or split the allocation",
        ],
        would_change_my_mind=["a device with memory of its own and a free figure below its total"],
    )


def total_is_a_carve_out(c: OomCase) -> bool:
    """An AMD APU that reports its small carve-out as the whole: nothing is allocated, everything free."""
    n = c.numbers
    empty = (
        bool(n.total)
        and (n.free or 0) >= 0.95 * (n.total or 0)
        and (n.allocated or 0) < 0.01 * (n.total or 1)
    )
    tiny = bool(n.total) and (n.total or 0) <= _SMALLEST_CARD_BYTES
    return c.event.get("backend") == "hip" and (empty or tiny)


def carve_out(c: OomCase) -> LogCandidate:
    n = c.numbers
    return c.found(
        "driver_limit_not_capacity",
        "likely" if (n.total or 0) <= _SMALLEST_CARD_BYTES else "suspected",  # an empty discrete card, too
        f"{size(n.requested)} were refused on a device that reports {size(n.total or 0)} with "
        f"{size(n.allocated or 0)} allocated: on an APU "
        "that figure is what the driver exposes, not the memory of the machine.",
        check_first=["`dmesg | grep -i vram` and the GTT size against what PyTorch reports as total"],
        remedy=[
            "raise what the driver exposes (`amdgpu.gttsize`, `ttm.pages_limit`, the BIOS "
            "carve-out), or a newer ROCm"
        ],
        would_change_my_mind=["a discrete GPU whose data sheet has the reported size"],
    )


def unified_host(c: OomCase) -> LogCandidate | None:
    """HIP on unified memory: the total is the machine's, and the rest of it is in use by the host."""
    n, outside = c.numbers, c.verdict.outside or 0
    if c.event.get("backend") != "hip" or n.others is not None or not n.total or outside < 0.3 * n.total:
        return None
    if n.total < _UNIFIED_BYTES:
        return None
    return c.found(
        "host_memory_exhausted",
        "suspected",
        f"{c.lacks()}; {size(outside)} of the unified memory are not this process's GPU allocations: "
        "the host (page "
        "cache, a second copy of the weights in RAM) uses them.",
        check_first=["`free -h` at that moment, and whether the weights also lie in host memory"],
        remedy=[
            "load without a host copy (`--no-mmap`, safetensors straight to the GPU), or free host memory"
        ],
        would_change_my_mind=["another GPU process that holds that amount"],
    )


def driver(c: OomCase) -> LogCandidate:
    n = c.numbers
    full = (n.free or 0) < _NEARLY_FULL * (n.total or 0)
    return c.found(
        "driver_limit_not_capacity",
        "suspected" if full else "likely",
        f"{size(n.requested)} were refused although {size(n.free or 0)} were free in the same "
        "message: neither "
        "capacity nor fragmentation refused it, but a limit of the driver or the system, or the memory came "
        "free between the refusal and the message.",
        excludes={
            "capacity_exhausted": f"{size(n.free or 0)} were free for {size(n.requested)}",
            "allocator_fragmentation": f"{size(n.free or 0)} were free in the driver, outside the allocator",
        },
        check_first=[
            "limits of the process and the container (`ulimit -v`, `vm.max_map_count`, MIG or vGPU "
            "slice, WSL2 or WDDM)",
            "whether another process on this card ended at that moment",
        ],
        remedy=[
            "on Windows or WSL2 enlarge the page file or the memory of the virtual machine; on MIG "
            "take a larger slice",
            "allocate in smaller pieces where the driver caps a single allocation",
        ],
        would_change_my_mind=["a second message of the same run in which free is below the request"],
    )


def mps(c: OomCase) -> LogCandidate:
    e = c.event
    held, other, most = e.get("mps_allocated"), e.get("mps_other"), e.get("allowed")
    told = ""
    if held is not None and other is not None and most is not None:
        told = f": {size(held)} in the heap + {size(other)} of this process outside it + "
        told += f"{size(c.numbers.requested)} asked = {size(held + other + c.numbers.requested)}, "
        told += f"above the {size(most)} allowed"
    return c.found(
        "capacity_exhausted",
        "likely" if told and c.numbers.requested < _ONE_TENSOR * (most or 0) else "suspected",
        f"The Metal back end is at its own limit{told}; `other allocations` is memory of this "
        "process, not of "
        "another program.",
        check_first=["the size of the weights in the loaded precision against the allowed amount"],
        remedy=[
            "a smaller or quantised model, a shorter input, or fewer inputs at once",
            "`PYTORCH_MPS_HIGH_WATERMARK_RATIO` raises the allowed amount at the price of the "
            "system's memory",
        ],
        would_change_my_mind=["the same step with far less in the heap after `torch.mps.empty_cache()`"],
    )
