"""Host memory that was refused or only ever grows, without a kill."""

from __future__ import annotations

from itertools import pairwise

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, percent, size, told
from kvprobe.evidence.events import Event


def host_exhausted(view: LogView) -> list[LogCandidate]:
    """Host memory was refused, without a kill."""
    shm = [] if view.all("nccl_no_memory") else view.all("shm_full")
    shm += [e for e in view.all("bus_error") if e.get("shared_memory")]
    return [
        *(c for e in view.all("host_too_small")[:1] for c in _too_small(view, e)),
        *(_shared_memory(e) for e in shm[:1]),
    ]


def _too_small(view: LogView, event: Event) -> list[LogCandidate]:
    """The engine's own estimate against free memory; only where the log tells the machine's total, and the
    model needs more than that, the model is the root."""
    asked, free = event.get("asked") or 0, event.get("free") or 0
    total = told(view, "total", "host_too_small") or told(view, "total", "host_memory")
    never = total is not None and asked > total
    machine = f" of {size(total)}" if total is not None else ""
    found = candidate(
        "host_memory_exhausted",
        "likely",
        f"The model needs {size(asked)} of system memory by the engine's own estimate and "
        f"{size(free)}{machine} "
        "are available: host RAM is too small for the part that stays off the GPU.",
        [cite(event), *cites(view.all("host_memory"), 1)],
        fatal=True,
        at=event,
        root=not never,
        check_first=["free RAM and swap before the start, and how many layers are on the GPU"],
        remedy=[
            f"a smaller quantisation or context ({size(asked - free)} are missing)",
            "free RAM or add swap",
        ],
        would_change_my_mind=[
            "as much free RAM as is asked for, and the same refusal: the estimate is wrong"
        ],
        excludes={"capacity_exhausted": "system memory was refused, not device memory"},
    )
    return [_far_too_large(event, asked, total), found] if never and total is not None else [found]


def _far_too_large(event: Event, asked: float, machine: float) -> LogCandidate:
    return candidate(
        "weights_plus_fixed_too_large",
        "suspected",  # the estimate has the KV cache in it: a long context alone may exceed the machine
        f"The model ({size(asked)}) is {asked / machine:.1f} times what this machine has "
        f"({size(machine)}): no "
        "setting makes it fit.",
        [cite(event)],
        fatal=True,
        at=event,
        phase="load",
        check_first=["the size of the model's files against RAM and GPU memory together"],
        remedy=["a smaller model, or a smaller quantisation of it", "a machine with that much memory"],
        would_change_my_mind=["files of the model that are clearly smaller than the machine's memory"],
    )


def _shared_memory(event: Event) -> LogCandidate:
    return candidate(
        "host_memory_exhausted",
        "likely",
        "/dev/shm is full: shared memory of the host, not GPU memory and not a disk.",
        [cite(event)],
        fatal=True,
        at=event,
        check_first=["`df -h /dev/shm` inside the container"],
        remedy=["`--shm-size` of several GiB, or `--ipc=host`"],
        would_change_my_mind=["room in /dev/shm at the time"],
        excludes={"not_memory": "/dev/shm is memory of the host"},
    )


_GROWTH = 1.5
_SAMPLES = 5
_SOME_GROWTH = 1.05
_SOME_BYTES = 2**30
_FEW_SAMPLES = 4


def host_leak(view: LogView) -> list[LogCandidate]:
    """Resident memory that only ever grows: by half in five readings, or a little in every process."""
    series: dict[str, list[Event]] = {}
    for e in view.all("host_rss"):
        if e.get("rss"):
            series.setdefault(str(e.get("subject")), []).append(e)
    for samples in series.values():
        if found := _grows(view, samples):
            return found
    return _all_rise(list(series.values()))


def _all_rise(series: list[list[Event]]) -> list[LogCandidate]:
    """A few readings: of several processes that all rose, or four of one without a step down."""
    rising = [s for s in series if len(s) > 1 and _rises(s)]
    if any(len(s) > 1 and s[-1].get("rss") < s[0].get("rss") for s in series):
        return []
    if len(rising) < 2 and not any(len(s) >= _FEW_SAMPLES for s in rising):
        return []
    most = max(rising, key=lambda s: s[-1].get("rss") - s[0].get("rss"))
    first, last = most[0].get("rss"), most[-1].get("rss")
    return [
        candidate(
            "host_memory_leak",
            "suspected",
            f"Host memory rose in every reading, in {len(rising)} series; the most from {size(first)} to "
            f"{size(last)} (+{percent(last / first - 1)}). A few readings do not tell a leak from a "
            f"cache that "
            "fills.",
            [cite(e) for s in rising[:3] for e in (s[0], s[-1])],
            fatal=False,
            at=most[0],
            check_first=["more readings under steady load: does it reach a plateau"],
            remedy=["upgrade (match it against open leak reports)", "restart on a schedule until then"],
            would_change_my_mind=["a plateau under steady load"],
        )
    ]


def _rises(samples: list[Event]) -> bool:
    values = [float(e.get("rss")) for e in samples]
    grown = values[-1] >= _SOME_GROWTH * values[0] and values[-1] - values[0] >= _SOME_BYTES
    return grown and all(b >= a for a, b in pairwise(values))


def _grows(view: LogView, samples: list[Event]) -> list[LogCandidate]:
    values = [float(e.get("rss")) for e in samples if e.get("rss")]
    if len(values) < _SAMPLES or values[-1] < _GROWTH * values[0]:
        return []
    rises = sum(1 for a, b in pairwise(values) if b >= a)
    if rises < 0.9 * (len(values) - 1):
        return []
    first, last = samples[0], samples[-1]
    slope = ""
    if first.time_s is not None and last.time_s is not None and last.time_s > first.time_s:
        per_hour = (values[-1] - values[0]) / (last.time_s - first.time_s) * 3600
        slope = f", {size(per_hour)} an hour"
    killed = bool(view.all("killed"))
    return [
        candidate(
            "host_memory_leak",
            "certain" if killed else "likely",
            f"Host memory of the process rose from {size(values[0])} to {size(values[-1])} in {len(values)} "
            f"readings, {percent(rises / (len(values) - 1))} of the steps upward{slope}; the GPU is not the "
            f"cause.",
            [cite(first), cite(last), *cites(view.all("killed"), 1)],
            fatal=killed,
            at=first,
            check_first=["whether the growth stops without load, and which request kind drives it"],
            remedy=["upgrade (match it against open leak reports)", "restart on a schedule until then"],
            would_change_my_mind=["a plateau under steady load"],
        )
    ]


RULES: tuple[LogRule, ...] = (host_exhausted, host_leak)
