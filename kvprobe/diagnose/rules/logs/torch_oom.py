"""PyTorch's out-of-memory, judged by its numbers and by what the program was doing.

The phase comes first: the same numbers mean the weights while loading, the batch while profiling, the
graphs while capturing, and a too greedy budget while serving. Only then the fragmentation rule.
"""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs import oom_phases
from kvprobe.diagnose.rules.logs.base import LogCandidate
from kvprobe.diagnose.rules.logs.oom_case import OomCase, case_of
from kvprobe.summary.units import percent, size

_MAX_CASES = 3
_OTHERS_LIKELY: Final = 0.08
_OTHERS_NEEDED_AT_LOAD: Final = 0.05
_UNIFIED_BYTES: Final = 60 * 2**30


def torch_oom(view: LogView) -> list[LogCandidate]:
    """Every sized out-of-memory of the log; the first ones suffice, the rest are echoes."""
    found: list[LogCandidate] = []
    for event in view.all("torch_oom")[:_MAX_CASES]:
        found += _judge(case_of(view, event))
    return found


def _judge(c: OomCase) -> list[LogCandidate]:
    if c.event.get("backend") == "mps":
        return [_mps(c)]
    step = c.verdict.step
    if step == "0":
        return _bogus(c)
    if step == "0b":
        return [_unusable(c)]
    if step == "1":
        return [_carve_out(c)] if _total_is_a_carve_out(c) else oom_phases.can_never_fit(c)
    if step == "3":
        return [_driver(c)]
    others = _unified_host(c) or _others(c)
    if others is not None:
        return [others]
    if c.verdict.fragmented:
        return _fragmented(c)
    return oom_phases.plainly_short(c)


def _bogus(c: OomCase) -> list[LogCandidate]:
    n = c.numbers
    against = f", {n.requested // n.total:,} times the card" if n.total else ""
    why = (
        f"{size(n.requested)} were asked for in one piece{against}: no tensor has that size, so a length or an "
        "index overflowed before it reached the allocator."
    )
    bug = c.found(
        "engine_accounting_bug",
        "certain",
        why,
        excludes={"capacity_exhausted": f"the size asked ({size(n.requested)}) is not a real demand"},
        check_first=["the shape that the innermost frame of the traceback computes"],
        remedy=["upgrade (or go back one version of) the engine and its kernels; no memory setting helps"],
        would_change_my_mind=["a plausible size in the same message"],
    )
    echo = c.found(
        "not_memory",
        "likely",
        "The message says out of memory, but memory is not what is wrong.",
        root=False,
    )
    return [bug, echo]


def _unusable(c: OomCase) -> LogCandidate:
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
            "how the driver divides memory (APU: BIOS carve-out and GTT; Windows: shared GPU memory, page file)"
        ],
        remedy=[
            "raise the driver's share (UMA frame buffer in the BIOS, `amdgpu.gttsize`, `ttm.pages_limit`; on Windows "
            "a larger page file), or split the allocation",
        ],
        would_change_my_mind=["a device with memory of its own and a free figure below its total"],
    )


def _total_is_a_carve_out(c: OomCase) -> bool:
    """An AMD APU that reports its small carve-out as the whole: nothing is allocated, everything free."""
    n = c.numbers
    empty = bool(n.total) and (n.free or 0) >= 0.95 * (n.total or 0) and (n.allocated or 0) < 0.01 * (n.total or 1)
    return c.event.get("backend") == "hip" and empty


def _carve_out(c: OomCase) -> LogCandidate:
    n = c.numbers
    return c.found(
        "driver_limit_not_capacity",
        "likely",
        f"{size(n.requested)} were refused on a device that reports {size(n.total or 0)} with nothing allocated: on an APU "
        "that figure is what the driver exposes, not the memory of the machine.",
        check_first=["`dmesg | grep -i vram` and the GTT size against what PyTorch reports as total"],
        remedy=["raise what the driver exposes (`amdgpu.gttsize`, `ttm.pages_limit`, the BIOS carve-out), or a newer ROCm"],
        would_change_my_mind=["a discrete GPU whose data sheet has the reported size"],
    )


def _unified_host(c: OomCase) -> LogCandidate | None:
    """HIP on unified memory: the total is the machine's, and the rest of it is in use by the host."""
    n, outside = c.numbers, c.verdict.outside or 0
    if c.event.get("backend") != "hip" or n.others is not None or not n.total or outside < 0.3 * n.total:
        return None
    if n.total < _UNIFIED_BYTES:
        return None
    return c.found(
        "host_memory_exhausted",
        "suspected",
        f"{c.lacks()}; {size(outside)} of the unified memory are not this process's GPU allocations: the host (page "
        "cache, a second copy of the weights in RAM) uses them.",
        check_first=["`free -h` at that moment, and whether the weights also lie in host memory"],
        remedy=["load without a host copy (`--no-mmap`, safetensors straight to the GPU), or free host memory"],
        would_change_my_mind=["another GPU process that holds that amount"],
    )


def _driver(c: OomCase) -> LogCandidate:
    n = c.numbers
    return c.found(
        "driver_limit_not_capacity",
        "likely",
        f"{size(n.requested)} were refused although {size(n.free or 0)} were free in the same message: neither "
        "capacity nor fragmentation refused it, but a limit of the driver or the system, or the memory came "
        "free between the refusal and the message.",
        excludes={
            "capacity_exhausted": f"{size(n.free or 0)} were free for {size(n.requested)}",
            "allocator_fragmentation": f"{size(n.free or 0)} were free in the driver, outside the allocator",
        },
        check_first=[
            "limits of the process and the container (`ulimit -v`, `vm.max_map_count`, MIG or vGPU slice, WSL2 or WDDM)",
            "whether another process on this card ended at that moment",
        ],
        remedy=[
            "on Windows or WSL2 enlarge the page file or the memory of the virtual machine; on MIG take a larger slice",
            "allocate in smaller pieces where the driver caps a single allocation",
        ],
        would_change_my_mind=["a second message of the same run in which free is below the request"],
    )


def _mps(c: OomCase) -> LogCandidate:
    e = c.event
    held, other, most = e.get("mps_allocated"), e.get("mps_other"), e.get("allowed")
    told = ""
    if held is not None and other is not None and most is not None:
        told = f": {size(held)} in the heap + {size(other)} of this process outside it + {size(c.numbers.requested)}"
        told += f" asked = {size(held + other + c.numbers.requested)}, above the {size(most)} allowed"
    return c.found(
        "capacity_exhausted",
        "likely",
        f"The Metal back end is at its own limit{told}; `other allocations` is memory of this process, not of "
        "another program.",
        check_first=["the size of the weights in the loaded precision against the allowed amount"],
        remedy=[
            "a smaller or quantised model, a shorter input, or fewer inputs at once",
            "`PYTORCH_MPS_HIGH_WATERMARK_RATIO` raises the allowed amount at the price of the system's memory",
        ],
        would_change_my_mind=["the same step with far less in the heap after `torch.mps.empty_cache()`"],
    )


def _others(c: OomCase) -> LogCandidate | None:
    """Somebody else holds what was missing; while loading, they must hold a notable part of the card."""
    v, n = c.verdict, c.numbers
    share = c.share(v.outside)
    if not v.outside_decides or share is None or v.outside is None:
        return None
    if share < _OTHERS_NEEDED_AT_LOAD and (c.starting or c.pool_engine or not v.own_process_known):
        return None
    named = n.others is not None or v.own_process_known
    who = "other processes hold" if named else "memory that this process's PyTorch does not hold amounts to"
    sure = named and share >= _OTHERS_LIKELY
    return c.found(
        "other_process_on_gpu",
        "certain" if sure and share >= 0.25 else "likely" if sure or share >= 0.2 else "suspected",
        f"{c.lacks()}; {who} {size(v.outside)} ({percent(share)} of the card), more than was missing.",
        excludes={"allocator_fragmentation": f"free and pieces together are {size(v.deficit)} short"}
        if v.step == "4"
        else {},
        check_first=["`nvidia-smi` and `fuser -v /dev/nvidia*`: who holds the memory, and is it still alive"],
        remedy=[
            f"end or move the other processes: frees up to {size(v.outside)}",
            "choose another device (`CUDA_VISIBLE_DEVICES`), or a budget that is a share of what is free, not of the card",
        ],
        would_change_my_mind=["the same failure on a card that nobody else uses"],
    )


def _fragmented(c: OomCase) -> list[LogCandidate]:
    """Steps 5a, 5b and 6."""
    pieces = _pieces(c)
    if c.verdict.full and (c.pool_engine or c.starting):
        pieces.root = False
        return [*oom_phases.behind_fragmentation(c), pieces]
    if c.site.phase == "capture":
        pieces.root = False
        return [*oom_phases.plainly_short(c), pieces]
    return [pieces, _tight(c)]


def _pieces(c: OomCase) -> LogCandidate:
    n, v = c.numbers, c.verdict
    strong = v.step == "5a"
    spare = v.margin or 0
    why = (
        f"Fragmentation decides: needs {size(n.requested)}, has {size((n.free or 0) + (n.unallocated or 0))} in pieces, "
        f"{size(n.free or 0)} in one piece; {size(spare)} to spare"
    )
    why += "." if strong else f" ({percent(spare / n.total)} of the card)." if n.total else "."
    return c.found(
        "allocator_fragmentation",
        _how_sure(c),
        why,
        excludes={"other_process_on_gpu": _no_others(c)} if _no_others(c) else {},
        check_first=[
            "the same run with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` (`PYTORCH_ALLOC_CONF` since 2.9)",
            "`torch.cuda.memory_stats()`: inactive_split_bytes near the unallocated amount",
        ],
        remedy=[
            f"`expandable_segments:True`: makes up to {size(n.unallocated or 0)} of stranded memory usable",
            f"cut the peak as well (batch tokens, KV budget): after perfect packing only {size(spare)} are left",
        ],
        would_change_my_mind=["the same failure, at the same place, with expandable segments on"],
    )


def _how_sure(c: OomCase) -> Confidence:
    """A strong band on a card with room is proof; a few MiB on a full card prove little."""
    spare = (c.verdict.margin or 0) / c.numbers.total if c.numbers.total else 0.0
    if c.verdict.step == "5a":
        return "certain" if not c.verdict.full and spare >= 0.01 else "likely" if spare >= 0.005 else "suspected"
    return "likely"


def _no_others(c: OomCase) -> str | None:
    n = c.numbers
    if n.total is None or n.free is None or n.allocated is None or c.verdict.outside:
        return None
    rest = n.total - n.free - n.allocated - (n.unallocated or 0)
    return f"only {size(max(0, rest))} of the card lie outside this process's PyTorch: a normal context"


def _tight(c: OomCase) -> LogCandidate:
    spare = c.verdict.margin or 0
    return c.found(
        "capacity_exhausted",
        "suspected",
        f"Even perfectly packed only {size(spare)} would be left: the next larger request fails.",
        root=False,
    )


RULES = (torch_oom,)
