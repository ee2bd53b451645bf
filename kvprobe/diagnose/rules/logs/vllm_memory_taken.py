"""`Free memory on device … is less than desired`: somebody holds the card, or the share is too high."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence, Evidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, candidate, cite
from kvprobe.evidence.events import Event
from kvprobe.summary.units import size

_GIB: Final = 2**30
_SOMEBODY_BYTES: Final = 2.0 * _GIB
_CONTEXT_BYTES: Final = 2.5 * _GIB
_UNIFIED_GIB: Final = ((118.0, 126.0), (60.0, 62.5))
"""DGX Spark and Thor report 119 to 125 GiB, a 64 GB Orin some 61."""
_ENDS: Final = frozenset({"engine_start", "engine_dead", "shutdown", "exception", "torch_oom", "killed"})
_SMALL_SHORTFALL_BYTES: Final = 0.3 * _GIB


def memory_taken(view: LogView) -> list[LogCandidate]:
    """`Free memory on device … is less than desired`: somebody holds the card, or the share is too high."""
    event = view.first("free_below_desired")
    if event is None:
        return []
    free, total, desired = event.get("free"), event.get("total"), event.get("desired")
    held, short = total - free, desired - free
    own_context = held <= _SOMEBODY_BYTES or (held <= _CONTEXT_BYTES and short < _SMALL_SHORTFALL_BYTES)
    most = int(100 * free / total) / 100
    processes = view.all("smi_process")
    seen = [cite(event), *[cite(p) for p in processes[:4]]]
    told = f"{size(held)} of {size(total)} are already held at the start; the budget of "
    told += (
        f"{event.get('utilisation')} wants {size(desired)} and {size(free)} are free: {size(short)} short. "
    )
    told += f"Largest usable utilisation now: {most:.2f}"
    remedy = [
        f"`--gpu-memory-utilization {most:.2f}` or less: it is a share of the whole card, not of "
        "what is free",
    ]
    if is_unified(view, total):
        return [_page_cache(event, seen, told, remedy, held)]
    if own_context:
        return [_share_too_high(event, seen, told, remedy, held)]
    return [_somebody(view, event, seen, told, remedy, held)]


def is_unified(view: LogView, total: int) -> bool:
    """GB10, Thor: the total is the machine's memory (no discrete card has it), or the name says so."""
    named = any("GB10" in str(e.get("name")) for e in view.all("gpu_name"))
    return named or any(low * _GIB <= total <= high * _GIB for low, high in _UNIFIED_GIB)


def _page_cache(event: Event, seen: list[Evidence], told: str, remedy: list[str], held: int) -> LogCandidate:
    return candidate(
        "engine_accounting_bug",
        "suspected",
        f"{told}; on unified memory the check counts the page cache ({size(held)} in use with it) as "
        "taken, which "
        "the kernel would give back.",
        seen,
        fatal=True,
        at=event,
        phase="load",
        check_first=["MemAvailable against MemFree in `/proc/meminfo`, and other processes in `nvidia-smi`"],
        remedy=[
            "`sync && echo 3 > /proc/sys/vm/drop_caches` before the start",
            *remedy,
            "upgrade the engine",
        ],
        would_change_my_mind=["MemAvailable as low as the free figure: then another process holds it"],
    )


def _share_too_high(
    event: Event, seen: list[Evidence], told: str, remedy: list[str], held: int
) -> LogCandidate:
    return candidate(
        "gpu_memory_utilization_too_high",
        "likely",
        f"{told}; {size(held)} is what a context and a display take, not another program.",
        seen,
        fatal=True,
        at=event,
        phase="load",
        check_first=["`nvidia-smi` with nothing started"],
        remedy=remedy,
        would_change_my_mind=["a process in `nvidia-smi` that holds more than 2 GiB"],
    )


def _somebody(
    view: LogView, event: Event, seen: list[Evidence], told: str, remedy: list[str], held: int
) -> LogCandidate:
    again = _earlier_run(view, event) or _left_behind(view)
    cause = "leftover_process" if again is not None else "other_process_on_gpu"
    who = (
        "an engine that was started before and whose memory was not given back"
        if again is not None
        else "another process, or one left from an earlier run"
    )
    # Without a list of processes it may as well be a run of one's own that was left behind.
    processes = view.all("smi_process") and held >= 0.1 * event.get("total")
    confidence: Confidence = "certain" if again is None and processes else "likely"
    return candidate(
        cause,
        confidence,
        f"{told}; held by {who}.",
        [*seen, *([cite(again)] if again is not None else [])],
        fatal=True,
        at=event,
        phase="load",
        check_first=["`nvidia-smi`: the processes on this card, and whether they are still wanted"],
        remedy=[f"end the process that holds the memory: frees {size(held)}", *remedy],
        would_change_my_mind=[
            "an empty process list and the same figure: then the driver holds it (reset the GPU)"
        ],
    )


def _earlier_run(view: LogView, event: Event) -> Event | None:
    """An engine of this log that had weights on the card before."""
    here = [e for e in view.events if e.source == event.source and e.line < event.line]
    loaded = next((e for e in here if e.name in ("weights_loaded", "pool_size")), None)
    if loaded is None:
        return None
    ended = any(e.line > loaded.line and e.name in _ENDS for e in here)
    return loaded if ended else None


def _left_behind(view: LogView) -> Event | None:
    """A process that `nvidia-smi` lists without a name, or an engine's worker that should be gone."""
    names = [(str(e.get("process") or ""), e) for e in view.all("smi_process")]
    return next(
        (e for name, e in names if "Not Found" in name or "VLLM::" in name or "defunct" in name), None
    )


RULES: Final = (memory_taken,)
