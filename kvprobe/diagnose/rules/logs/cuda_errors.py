"""Failures of the CUDA run time without a size: library handles, workspaces, faults, host allocations."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_site import Site, site_of
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, candidate, cite
from kvprobe.evidence.events import Event
from kvprobe.summary.units import size


def said(
    event: Event,
    cause: str,
    confidence: Confidence,
    why: str,
    *,
    check: list[str],
    remedy: list[str],
    mind: list[str],
    root: bool = True,
    site: Site | None = None,
) -> LogCandidate:
    return candidate(
        cause,
        confidence,
        why,
        [cite(event), *[cite(f, "function") for f in (site.frames[-1:] if site else [])]],
        fatal=True,
        root=root,
        at=event,
        phase=site.phase if site else event.phase,
        check_first=check,
        remedy=remedy,
        would_change_my_mind=mind,
    )


def library_handles(view: LogView) -> list[LogCandidate]:
    """cuBLAS and its kin allocate outside the framework's pool. A cuDNN failure is only ever suspected."""
    event = view.first("library_alloc_failed")
    if event is None:
        return []
    library = str(event.get("library"))
    unclear = event.get("unclear")
    confidence: Confidence = "suspected" if library == "cuDNN" or unclear else "likely"
    doubt = f" ({unclear} has other reasons too: a broken context, an index out of range)" if unclear else ""
    return [
        said(
            event,
            "library_handle_alloc_failed",
            confidence,
            f"{library} could not allocate its handle or workspace{doubt}: the framework's pool has "
            "taken the card, and "
            "the library allocates outside it.",
            check=["free memory on the card at that moment (`nvidia-smi`)", "the first error above this one"],
            remedy=[
                "leave room outside the pool: a lower memory fraction or utilisation (a handle needs "
                "10 to 100 MiB)",
                "smaller batches in the step that failed",
            ],
            mind=["gigabytes free at the moment of the failure"],
            site=site_of(view, event),
        )
    ]


_HARDWARE: Final = {"ECC", "NVLink", "off the bus"}
_SOFT: Final = {
    "illegal memory access",
    "misaligned address",
    "illegal instruction",
    "page fault",
    "HSA exception",
}


def faults(view: LogView) -> list[LogCandidate]:
    """A kernel's or the hardware's fault, never a lack of memory."""
    event = view.first("gpu_fault")
    if event is None:
        return []
    kind = str(event.get("kind"))
    if kind in _HARDWARE:
        return [_hardware(event, kind)]
    if kind == "device-side assert":
        return [_assert(event)]
    return [
        said(
            event,
            "gpu_software_fault",
            "likely" if kind in _SOFT else "suspected",
            f"A kernel failed ({kind}): a fault of the program on the GPU, reported at a later call, "
            "and no lack of memory.",
            check=["`dmesg | grep Xid`: 13, 31 and 43 are such faults, 48, 79 and 94 are the hardware's"],
            remedy=[
                "upgrade (or go back) the engine and its kernels; try another attention back end, or "
                "`--enforce-eager`",
                "`CUDA_LAUNCH_BLOCKING=1` names the kernel",
            ],
            mind=["an Xid of the hardware class at the same time"],
        )
    ]


def _hardware(event: Event, kind: str) -> LogCandidate:
    return said(
        event,
        "gpu_hw_fault",
        "certain" if kind == "ECC" else "likely",
        f"The GPU itself failed ({kind}): memory or link hardware, not memory use.",
        check=["`nvidia-smi -q -d ECC,ROW_REMAPPER` and `dmesg | grep Xid`"],
        remedy=["take the GPU out of service and reset it; replace it when errors return"],
        mind=["clean ECC counters after a reset, and the same failure on another card"],
    )


def _assert(event: Event) -> LogCandidate:
    return said(
        event,
        "not_memory",
        "suspected",
        "A device-side assertion: an index out of range (a token id beyond the vocabulary, a "
        "position beyond the "
        "table), not memory.",
        check=["the same run with `CUDA_LAUNCH_BLOCKING=1`: it names the line"],
        remedy=["mend the input or the tokenizer that produces the index"],
        mind=["an out-of-memory before this line"],
    )


def unusable(view: LogView) -> list[LogCandidate]:
    event = view.first("gpu_unusable")
    if event is None:
        return []
    needed, limit = event.get("needed"), event.get("limit")
    sizes = f" ({needed:,} B needed, {limit:,} B per block)" if needed and limit else ""
    return [
        said(
            event,
            "not_memory",
            "certain" if sizes else "likely",
            f"Not the card's memory: {event.get('kind')}{sizes}; the installed build or driver does "
            "not serve this GPU.",
            check=["the GPU's compute capability, the driver, and what the wheels were built for"],
            remedy=["a build for this GPU; for a kernel's shared memory a smaller block configuration"],
            mind=["an out-of-memory with sizes before this line"],
        )
    ]


def workspaces(view: LogView) -> list[LogCandidate]:
    event = view.first("workspace_overflow")
    if event is None:
        return []
    needed, available = event.get("needed"), event.get("available")
    short = f": {size(needed)} needed, {size(available or 0)} available" if needed is not None else ""
    return [
        said(
            event,
            "fixed_workspace_missized",
            "certain" if needed is not None and available is not None else "likely",
            f"A preallocated workspace is too small{short}; the card's memory is not the limit.",
            check=[
                "the workspace size in the engine's settings or environment (FlashInfer: `*_WORKSPACE_SIZE`)"
            ],
            remedy=["a larger workspace (twice the default costs some 400 MiB), or smaller batches per step"],
            mind=["the same overflow with a workspace of twice the size"],
        )
    ]


RULES: Final = (library_handles, faults, unusable, workspaces)
