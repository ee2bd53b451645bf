"""The KV pool: under pressure, or idle. Told as observations; a cause needs more than a gauge.

Usage at or above 90 % alone is not pressure: a pool is there to be used. Pressure is high usage
together with preemptions, or with a queue. Usage below 30 % says that memory is not the limit only
if nothing waited.
"""

from __future__ import annotations

from kvprobe.diagnose.model import Observation, Quantity
from kvprobe.diagnose.rules.base import Outcome
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.units import percent, plural, whole

RED_LINE = 0.90
IDLE = 0.30
MIN_SAMPLES = 5
QUEUED_SAMPLES = 2


def kv_pool(view: View) -> Outcome:
    usage = view.load_series(activity.KV_USAGE)
    waiting = view.load_series("engine.requests_waiting")
    if len(usage) < MIN_SAMPLES:
        return Outcome()
    found = _pressure(view, usage, waiting) or _idle(usage, waiting)
    return Outcome(observations=[found] if found else [])


def _pressure(view: View, usage: list[activity.Point], waiting: list[activity.Point]) -> Observation | None:
    high = {t for t, v in usage if v >= RED_LINE}
    queued = sum(1 for t, v in waiting if v > 0 and t in high)
    preempted = view.increase("engine.preemptions_total")
    preemptions = preempted.value if preempted else 0.0
    if not high or (preemptions <= 0 and queued < QUEUED_SAMPLES):
        return None
    signs = [f"{whole(preemptions)} preemptions"] if preemptions > 0 else []
    signs += [f"requests waiting in {plural(queued, 'reading')}"] if queued else []
    most = max(v for _, v in usage)
    return Observation(
        id="kv_pool_pressure",
        text=f"The KV pool was under pressure: {percent(RED_LINE)} or more in use in {len(high)} of "
        f"{plural(len(usage), 'reading')} (max {percent(most)}), with {' and '.join(signs)}. "
        "A burst now queues or is computed twice.",
        facts={
            "kv_usage_max": Quantity(most, "ratio"),
            "readings_at_red_line": Quantity(len(high), "count"),
            "preemptions": Quantity(preempted.value if preempted else None, "count"),
            "readings_with_queue": Quantity(queued if waiting else None, "count"),
        },
    )


def _idle(usage: list[activity.Point], waiting: list[activity.Point]) -> Observation | None:
    most = max(v for _, v in usage)
    if most >= IDLE or not waiting or any(v > 0 for _, v in waiting):
        return None
    return Observation(
        id="kv_pool_idle",
        text=f"KV memory was not the limit: at most {percent(most)} of the pool was in use and nothing "
        "waited. This load says nothing about how the server behaves when the pool is full.",
        facts={"kv_usage_max": Quantity(most, "ratio"), "requests_waiting_max": Quantity(0, "count")},
    )
