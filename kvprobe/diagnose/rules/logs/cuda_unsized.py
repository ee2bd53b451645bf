"""Allocations that failed and printed no sizes, on the GPU and on the host: only the place can tell."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from kvprobe.diagnose.fragmentation import BOGUS_BYTES
from kvprobe.diagnose.log_site import Site, site_of
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs import model_size
from kvprobe.diagnose.rules.logs.base import LogCandidate
from kvprobe.diagnose.rules.logs.cuda_errors import said
from kvprobe.diagnose.rules.logs.oom_case import POOL_ENGINES
from kvprobe.diagnose.rules.logs.oom_starting import worst_case_images
from kvprobe.diagnose.rules.logs.vllm_room import card_total
from kvprobe.evidence.events import Event
from kvprobe.summary.units import size

_READINGS: Final = 4
_GROWTH: Final = 0.1
_TABLE_LINES: Final = 6
_TAKEN: Final = 0.9


def without_size(view: LogView) -> list[LogCandidate]:
    """An allocation that failed and printed no numbers: only the place can tell."""
    event = view.first("cuda_oom", "nvml_assert")
    if event is None or view.all("torch_oom"):
        return []
    site = site_of(view, event)
    cause, confidence, what = _unsized(view, event, site)
    taken = _card_taken(view) if cause == "capacity_exhausted" and not site.sites else None
    if taken is not None:
        used, total = size(taken.get("used")), size(taken.get("total"))
        what = f"{used} of {total} are in use by the table beside the error"
        cause = "other_process_on_gpu"
    return [
        said(
            event,
            cause,
            confidence,
            f"{what}; the message carries no sizes.",
            check=[
                "`nvidia-smi` before the start and at the failure",
                "the lines above: what was being done",
            ],
            remedy=["free memory on the card, or ask for less (a lower memory fraction, a smaller batch)"],
            mind=["the sizes: free above what was asked is a driver limit, not capacity"],
            site=site,
        )
    ]


def _card_taken(view: LogView) -> Event | None:
    """A table that shows a full card, beside an allocation that failed at nobody's place."""
    tables = view.all("smi_memory")
    return next((e for e in tables if (e.get("used") or 0) >= _TAKEN * (e.get("total") or 0) > 0), None)


def _unsized(view: LogView, event: Event, site: Site) -> tuple[str, Confidence, str]:
    if event.get("where") == "cumem" or "wake" in site:
        return (
            "other_process_on_gpu",
            "likely" if "wake" in site else "suspected",  # with sleep mode on, a start uses it too
            "The engine asked for its memory back after sleeping and it was gone: a trainer or "
            "another process took it",
        )
    if event.get("where") in ("pinned", "init") or "pin" in site:
        return (
            "driver_limit_not_capacity",
            "suspected",
            "Pinned host memory or the first context was refused by the driver, as WSL2 and WDDM do "
            "well below the card's size",
        )
    if site.phase == "load" and (by_name := _over_by_name(view)) is not None:
        return by_name
    if event.name == "nvml_assert":
        return (
            "capacity_exhausted",
            "suspected",
            "An out-of-memory whose report itself failed (MIG or vGPU hide the numbers)",
        )
    if site.phase == "capture":
        return "cudagraph_memory", "likely", "Memory ran out while CUDA graphs were captured"
    if "convert" in site:
        return "loading_peak", "suspected", "Memory ran out while weights were converted after loading"
    if "context" in site and not site.told:
        return _at_load(site)
    if site.phase == "load" and site.told:
        return _at_load(site)
    if site.phase == "serve" and site.engine in POOL_ENGINES:
        return (
            "gpu_memory_utilization_too_high",
            "suspected",
            "An allocation beside the engine's pool failed while it served",
        )
    if site.phase == "profile":
        return _profiling(view)
    return "capacity_exhausted", "suspected", "An allocation on the GPU failed"


def _profiling(view: LogView) -> tuple[str, Confidence, str]:
    if not worst_case_images(view):
        return "startup_activation_peak", "suspected", "Memory ran out in the start-up profiling pass"
    return (
        "multimodal_profiling",
        "likely",
        "Memory ran out in the start-up profiling pass, and the engine says that the images or videos of "
        "its worst case are several times the text's pass",
    )


def _over_by_name(view: LogView) -> tuple[str, Confidence, str] | None:
    """The weights against the card by the model's name, where the message has no sizes."""
    estimate, total = model_size.estimate(view), card_total(view)
    if estimate is None or estimate.fit(total) != "over":
        return None
    card = f" on a card of {size(total)}" if total else ", more than most cards have"
    return (
        "weights_plus_fixed_too_large",
        "suspected" if estimate.ambiguous or not total else "likely",
        f"Memory ran out while weights were loaded: {estimate.text}{card}",
    )


def _at_load(site: Site) -> tuple[str, Confidence, str]:
    if site.frame("engine_init", "context") is not None and site.frame("load") is None:
        return (
            "other_process_on_gpu",
            "suspected",
            "The card was full before anything was loaded: creating the first context or tensor failed",
        )
    return "weights_plus_fixed_too_large", "suspected", "Memory ran out while weights were loaded"


def xla(view: LogView) -> list[LogCandidate]:
    event = view.first("accelerator_oom")
    if event is None:
        return []
    asked = event.get("requested")
    return [
        said(
            event,
            "capacity_exhausted",
            "suspected",  # a preallocation, or somebody else, may hold the rest
            f"XLA could not place {size(asked) if asked else 'a buffer'} on the device.",
            check=["the program's memory table above the message: arguments (weights) against temporaries"],
            remedy=["a smaller batch or context, sharding over more devices, or lower precision"],
            mind=[
                "a preallocation fraction (`XLA_PYTHON_CLIENT_MEM_FRACTION`) that left the device half empty"
            ],
        )
    ]


def growth(view: LogView) -> list[LogCandidate]:
    """Readings of the card that only rise: never more than suspected without a proof of what holds it."""
    tables = _tables(view)
    used = [int(e.get("used")) for e in tables]
    totals = {e.get("total") for e in tables}
    if len(used) < _READINGS or len(totals) != 1 or any(b < a for a, b in pairwise(used)):
        return []
    if used[-1] - used[0] < _GROWTH * totals.pop():
        return []
    event = tables[-1]
    found = said(
        event,
        "device_memory_leak",
        "suspected",
        f"The card's use rose in {len(used)} readings from {size(used[0])} to {size(used[-1])} and "
        "never fell.",
        check=["`torch.cuda.memory_allocated` against `nvidia-smi`: inside or outside PyTorch"],
        remedy=["upgrade; restart before the limit is reached; empty the cache between phases"],
        mind=["a level that the use does not pass"],
    )
    found.fatal = False
    return [found]


def _tables(view: LogView) -> list[Event]:
    """The first card of each `nvidia-smi` table: a table lists its cards within a few lines."""
    found: list[Event] = []
    last = -_TABLE_LINES
    for e in view.all("smi_memory"):
        if e.line - last > _TABLE_LINES:
            found.append(e)
        last = e.line
    return found


_MUCH: Final = 2**40
"""A demand of a TiB may as well come of a wrong shape."""


def host_memory(view: LogView) -> list[LogCandidate]:
    event = view.first("cpu_oom")
    asked = event.get("requested") if event is not None else None
    if event is None or (asked or 0) >= BOGUS_BYTES:
        return []  # a size that wrapped around is no demand
    return [
        said(
            event,
            "host_memory_exhausted",
            "likely" if not asked else "certain" if asked < _MUCH else "suspected",
            "The host's memory, not the GPU's, could not give "
            + (size(asked) if asked else "what was asked")
            + ".",
            check=["`free -h`, the container's memory limit, swap, and (Windows) the page file"],
            remedy=[
                "more host memory or swap, fewer loading workers, `low_cpu_mem_usage`, or loading "
                "straight to the GPU",
                "a smaller CPU offload or swap space of the engine",
            ],
            mind=["plenty of free host memory at that moment: then a limit (`ulimit -v`, cgroup) refused it"],
        )
    ]


def block_limits(view: LogView) -> list[LogCandidate]:
    event = view.first("xpu_block_limit")
    if event is None:
        return []
    limit = event.get("limit")
    return [
        said(
            event,
            "driver_limit_not_capacity",
            "certain" if limit else "likely" if event.get("unsized") == "Metal" else "suspected",
            "The driver refuses single "
            f"blocks{f' above {size(limit)}' if limit else ' of this size'}, whatever is free.",
            check=["the driver's limit of one allocation (Arc 4 GB, WSL2 1 GB, Metal max_buffer_length)"],
            remedy=[
                "split the tensor (smaller batch or context), or relax the limit "
                "(`-ze-opt-greater-than-4GB-buffer`)"
            ],
            mind=["the same refusal for a block well below the limit"],
        )
    ]


RULES: Final = (without_size, xla, growth, host_memory, block_limits)
