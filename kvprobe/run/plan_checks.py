"""The planned requests against what the model, the caps and the clock allow, before any is sent."""

from __future__ import annotations

import math

from kvprobe.errors import Problem, UsageError
from kvprobe.load.job import Calibration
from kvprobe.load.prompts import PromptSource
from kvprobe.load.workload import Workload
from kvprobe.load.workload_arrival import Ramp
from kvprobe.run import guards
from kvprobe.run.steering import MAX_LOAD_S
from kvprobe.run.target import Target

_LOOKED_AT = 2000
"""Planned requests whose length is checked against the model's limit before the load."""


def check_lengths(workload: Workload, calibration: Calibration, target: Target) -> None:
    """A prompt that the server must refuse is a mistake of the configuration, not a measurement.
    Raises UsageError."""
    limit = target.max_model_len_tokens
    if limit is None:
        return
    source = PromptSource(workload, calibration, "")
    _check_trace(source, limit)
    planned = [source.request(index) for index in range(min(source.total or _LOOKED_AT, _LOOKED_AT))]
    longest = max(planned, key=lambda r: r.asked_prompt_tokens + r.asked_completion_tokens)
    needed = longest.asked_prompt_tokens + longest.asked_completion_tokens
    if needed > limit:
        raise UsageError(
            Problem(
                "too_long",
                f"a request of this workload needs {needed} tokens ({longest.asked_prompt_tokens} in, "
                f"{longest.asked_completion_tokens} out) and the model's limit is {limit}",
                "shorten the prompt or output in the workload, or raise the server's max model length",
            )
        )


def _check_trace(source: PromptSource, limit: int) -> None:
    """All rows of a trace, not only the first ones."""
    longest = source.longest_row()
    if longest is not None and sum(longest[:2]) > limit:
        message = (
            f"the request in line {longest[2]} of the trace needs {sum(longest[:2])} tokens "
            f"({longest[0]} in, {longest[1]} out) and the model's limit is {limit}"
        )
        fix = f"leave longer ones out with `prompt.max_request_tokens: {limit}`, or scale the trace"
        raise UsageError(Problem("too_long", message, fix))


def check_tokens(workload: Workload, calibration: Calibration) -> guards.Planned:
    """Sizes of the plan, once they are within the cap on tokens and the budget. Raises UsageError."""
    source = PromptSource(workload, calibration, "")
    looked = min(source.total or guards.MEAN_OF, guards.MEAN_OF)
    planned = guards.planned_sizes(workload, source.total, [source.request(i) for i in range(looked)])
    guards.check_tokens(workload, planned)
    return planned


def time_warning(workload: Workload, source: PromptSource) -> str | None:
    """What to say of a load that is bounded by its requests alone and cannot end before it is cut."""
    if workload.duration_s is not None:
        return None
    least_s = least_load_s(workload, source)
    if least_s is None or least_s <= MAX_LOAD_S:
        return None
    return (
        f"this plan takes at least {least_s:,.0f} s, and a load without --duration is cut after "
        f"{MAX_LOAD_S:,.0f} s: say how long it may take with --duration {math.ceil(least_s)}s"
    )


def least_load_s(workload: Workload, source: PromptSource) -> float | None:
    """Seconds that the arrivals alone take, answers not counted; null where nothing says it."""
    total, arrival = source.total, workload.arrival
    if arrival.closed is not None:
        rounds = max(math.ceil((total or 0) / arrival.closed.users) - 1, 0)
        return rounds * arrival.closed.think_time_s
    opened = arrival.open
    if opened is None or opened.stages is not None:
        return None
    if opened.trace is not None:
        wanted = list(source.instants())[:total]
        return wanted[-1] * opened.trace.scale_time if wanted else None
    if total is None:
        return None
    return _ramp_s(opened.ramp, total) if opened.ramp is not None else total / (opened.rate or math.inf)


def _ramp_s(ramp: Ramp, requests: int) -> float:
    """When a ramp from a to b over T has brought n: (a + slope t / 2) t = n, after T at b."""
    a, b, over_s = ramp.from_rate, ramp.to_rate, ramp.over_s
    brought = (a + b) / 2 * over_s
    if requests >= brought:
        return over_s + (requests - brought) / b
    slope = (b - a) / over_s
    # The form that loses no digits where the slope is small.
    return 2 * requests / (a + math.sqrt(max(a * a + 2 * slope * requests, 0.0)))
