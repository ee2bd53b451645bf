"""The reading in words, by the pool thresholds of the diagnosis.

Use at or above 90 % alone is not pressure: a pool is there to be used. Pressure is high use together with
preemptions, with a queue that stays, or with a hit rate or throughput that falls. Below 90 % a queue can
still be the pool's doing: a prompt that needs more than what is left waits as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvprobe.diagnose.rules.pool import IDLE, QUEUED_SAMPLES, RED_LINE
from kvprobe.report.content import clipped
from kvprobe.watch.model import LABEL_CHARS, EngineView, Number, Reading, Verdict
from kvprobe.watch.window import Window

RESTART_SHOWN_S = 10.0
STILL_LOOKS = 4
"""So many looks in a row that nothing runs are no gap between two requests."""
_HELD = 0.02
_HELD_MEANS_REQUESTS = ("vllm", "sglang", "reference")
"""Engines whose KV use leaves out what only the prefix cache keeps."""
_HIT_RATE_FALL = 0.10
_THROUGHPUT_LEFT = 0.70
_KV, _WAITING, _RUNNING = "engine.kv_usage_ratio", "engine.requests_waiting", "engine.requests_running"


def reading(window: Window, numbers: Mapping[str, Number], engines: Sequence[EngineView]) -> Reading:
    """What a target's numbers mean. The page must have been read."""
    since = window.restarted_s_ago()
    if since is not None and since <= RESTART_SHOWN_S:
        return _say("restarted", f"restarted: {since:.0f} s ago its counters began anew")
    usage, waiting = numbers["kv_usage"].value, numbers["waiting"].value
    if (nothing_runs := _nothing_runs(window, usage, waiting)) is not None:
        return nothing_runs
    if usage is None:
        return _without_usage(numbers, waiting, window)
    crowded = _one_engine(engines, usage)
    if crowded is not None:
        return crowded
    queued = _queued(window)
    if usage >= RED_LINE:
        return _full(window, numbers, usage, waiting, queued)
    if waiting is None:
        return _say("healthy", f"{_share(usage)} in use; this engine does not tell its queue")
    if waiting > 0:
        return _queueing_below(window, numbers, usage, waiting, queued)
    if usage < IDLE:
        if numbers["running"].value == 0:
            return _say("idle", "idle: nothing runs and nothing waits")
        return _say(
            "idle", f"idle pool: {_share(usage)} in use and nothing waiting, so memory is not the limit"
        )
    return _say("healthy", f"{_share(usage)} and nothing waiting: healthy")


def _full(
    window: Window, numbers: Mapping[str, Number], usage: float, waiting: float | None, queued: int
) -> Reading:
    preempted = numbers["preemptions_per_s"].n or 0.0
    signs = []
    if preempted > 0:
        over = numbers["preemptions_per_s"].window_s or 0.0
        signs.append(f"preempting ({preempted:.0f} in {over:.0f} s)")
    if queued >= QUEUED_SAMPLES:
        signs.append("queueing")
    if not signs and _hit_rate_falls(window):
        signs.append("losing its hit rate")
    if not signs and _throughput_falls(window):
        signs.append("slowing down")
    if signs:
        return _say("pressure", f"full and {' and '.join(signs)}: pressure")
    if waiting:
        text = f"{_share(usage)} and {waiting:.0f} waiting: full; pressure if the queue stays"
        return _say("full_and_queueing_once", text)
    if waiting is None:
        return _say("full_and_healthy", f"{_share(usage)} in use, no preemption; the queue is not told")
    return _say("full_and_healthy", f"{_share(usage)} and nothing waiting: healthy")


def _queueing_below(
    window: Window, numbers: Mapping[str, Number], usage: float, waiting: float, queued: int
) -> Reading:
    shown = f"{_share(usage)} and {waiting:.0f} waiting"
    running = numbers["running"].value
    if queued < QUEUED_SAMPLES:
        return _say("queueing_below_the_red_line", f"{shown}: a queue of a moment so far")
    # Requests that were sent back or ended leave room for a moment; the queue is still the full pool's.
    highest = max(window.values(_KV)[-queued:])
    if highest >= RED_LINE:
        return _say("pressure", f"{shown}, and {_share(highest)} during this queue: pressure")
    if usage < IDLE:
        return _say(
            "queueing_at_low_use",
            f"{shown}: not the pool by these numbers; look at the limits on sequences and batched tokens, at "
            "compute, or at a pool that is small against one prompt",
        )
    owner = "one request owns the pool; " if running == 1 else ""
    return _say(
        "queueing_below_the_red_line",
        f"{shown}: {owner}the pool is the limit if the next prompt needs more than the "
        f"{_share(1 - usage)} that are left, else a limit on sequences or compute",
    )


def _without_usage(numbers: Mapping[str, Number], waiting: float | None, window: Window) -> Reading:
    slots, busy = numbers["slots"].value, numbers["slots_busy"].value
    fullest = numbers["slot_usage_max"].value
    if fullest is not None and fullest >= RED_LINE:
        return _say(
            "use_unknown",
            f"a slot has {_share(fullest)} of its context in use: its request ends there with `length`",
        )
    if waiting and _queued(window) >= QUEUED_SAMPLES:
        where = f"all {slots:.0f} slots busy, " if slots is not None and busy == slots else ""
        text = f"{where}{waiting:.0f} waiting; whether memory is the limit cannot be seen: KV use is not told"
        return _say("queueing_use_unknown", text)
    if waiting:
        return _say("queueing_use_unknown", f"{waiting:.0f} waiting now; KV use is not told")
    runs = numbers["running"].value
    if runs == 0 and waiting is not None:
        return _say("idle", "idle: nothing runs and nothing waits")
    told = numbers["kv_usage"].state == "not_exported"
    use = "this engine does not tell its KV use" if told else "its KV use cannot be read now"
    if waiting is not None:
        return _say("use_unknown", f"nothing waiting; {use}")
    return _say("use_unknown", f"{'nothing runs; ' if runs == 0 else ''}its queue is not known; {use}")


def _one_engine(engines: Sequence[EngineView], mean: float) -> Reading | None:
    """A mean hides the engine that is full."""
    full = [e for e in engines if e.kv_usage is not None and e.kv_usage >= RED_LINE and e.waiting]
    if mean >= RED_LINE or not full:
        return None
    worst = max(full, key=lambda e: (e.kv_usage or 0.0, e.waiting or 0.0))
    use, waiting = _share(worst.kv_usage or 0.0), f"{worst.waiting:.0f} waiting"
    shown = f"engine {clipped(worst.engine, LABEL_CHARS)} is full ({use}) with {waiting}"
    text = f"{shown} while the mean of {len(engines)} is {_share(mean)}: pressure on one engine"
    return _say("pressure", text)


def _nothing_runs(window: Window, usage: float | None, waiting: float | None) -> Reading | None:
    """Two situations in which the other numbers would mislead: requests wait and none runs, or none is there
    and blocks are held all the same."""
    looks = _last_looks(window.values(_RUNNING), lambda value: value == 0)
    if looks < STILL_LOOKS or waiting is None:
        return None
    if waiting > 0 and _queued(window) >= STILL_LOOKS:
        text = f"{waiting:.0f} waiting and nothing runs: the engine is stalled or asleep, or the first "
        return _say("stalled", f"{text}prompt does not fit")
    engine = window.last.engine if window.last is not None else None
    held = _last_looks(window.values(_KV), lambda value: value > _HELD)
    idle = _last_looks(window.values(_WAITING), lambda value: value == 0)
    if usage is None or engine not in _HELD_MEANS_REQUESTS or min(held, idle) < STILL_LOOKS:
        return None
    text = f"{_share(usage)} in use with no request there: blocks that nobody gives back, as a leak looks"
    return _say("held_by_nobody", f"{text} (or KV data kept for another instance)")


def _last_looks(values: Sequence[float], holds: Callable[[float], bool]) -> int:
    """In how many looks up to now something held without a break."""
    count = 0
    for value in reversed(values):
        if not holds(value):
            break
        count += 1
    return count


def _queued(window: Window) -> int:
    """Looks in a row, up to now, that found requests waiting."""
    return _last_looks(window.values(_WAITING), lambda value: value > 0)


def _hit_rate_falls(window: Window) -> bool:
    hits = window.halves("engine.prefix_hits_tokens_total")
    queries = window.halves("engine.prefix_queries_tokens_total")
    if hits is None or queries is None or min(queries) <= 0:
        return False
    return hits[0] / queries[0] - hits[1] / queries[1] >= _HIT_RATE_FALL


def _throughput_falls(window: Window) -> bool:
    """Fewer tokens with as many requests: with fewer requests it would mean nothing."""
    made, running = window.halves("engine.generation_tokens_total"), window.values(_RUNNING)
    if made is None or made[0] <= 0 or len(running) < 2:
        return False
    middle = len(running) // 2
    before, now = sum(running[:middle]) / middle, sum(running[middle:]) / (len(running) - middle)
    return made[1] < _THROUGHPUT_LEFT * made[0] and now >= before


def _share(value: float) -> str:
    """Rounded towards the side on which it lies: 89.6 % must not read as the red line."""
    percent = 100 * value
    for line in (100 * RED_LINE, 100 * IDLE):
        if percent < line <= round(percent):
            return f"{percent:.1f} %"
    return f"{percent:.0f} %"


def _say(verdict: Verdict, text: str) -> Reading:
    return Reading(id=verdict, text=text)
