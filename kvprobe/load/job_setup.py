"""From a `LoadJob` to what the worker runs with: prompts, arrival plan, request form."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from kvprobe.errors import Problem, UsageError
from kvprobe.load.arrivals import (
    ListedSchedule,
    OpenSchedule,
    Schedule,
    count_until,
    ramp_course,
    stages_course,
)
from kvprobe.load.job import LoadJob
from kvprobe.load.load_plan import LoadPlan
from kvprobe.load.prompts import PromptSource
from kvprobe.load.request_form import StreamSpec, Timeouts, request_head
from kvprobe.load.workload import Workload
from kvprobe.load.workload_arrival import Closed, Open


def plan_of(job: LoadJob, workload: Workload, prompts: PromptSource) -> LoadPlan:
    """This worker's share of the arrivals. Raises UsageError for more workers than users."""
    common: dict[str, Any] = {
        "drain_s": workload.drain_s,
        "total": prompts.total,
        "duration_s": workload.duration_s,
        "warmup_s": workload.warmup.duration_s or 0.0,
        "worker_index": job.worker_index,
        "workers": job.workers,
    }
    arrival = workload.arrival
    if arrival.closed is not None:
        return _closed_plan(arrival.closed, job, prompts, common)
    assert arrival.open is not None
    return _open_plan(arrival.open, job, workload, prompts, common)


def _closed_plan(closed: Closed, job: LoadJob, prompts: PromptSource, common: dict[str, Any]) -> LoadPlan:
    sessions = prompts.session_turns(0) is not None
    return LoadPlan(
        users=_share(closed.users, job, "arrival.closed.users"),
        all_users=closed.users,
        think_time_s=closed.think_time_s,
        ramp_s=closed.ramp_s,
        session_turns=(lambda number: prompts.session_turns(number) or ()) if sessions else None,
        **common,
    )


def _open_plan(
    opened: Open, job: LoadJob, workload: Workload, prompts: PromptSource, common: dict[str, Any]
) -> LoadPlan:
    schedule = schedule_of(opened, workload.seed, prompts.instants)
    warmup_s = common["warmup_s"]
    # The rows of a trace keep their instants: its warm-up is what comes early, not other texts.
    warm_ticks = 0 if opened.trace is not None else count_until(schedule.ticks(), warmup_s, inclusive=False)
    first_measured = max(warm_ticks, workload.warmup_requests)
    if opened.trace is not None:
        first_measured = max(first_measured, count_until(schedule.ticks(), warmup_s, inclusive=False))

    def ticks() -> Iterator[tuple[int, float]]:
        for tick_number, tick_s in enumerate(schedule.ticks()):
            session = prompts.session_number(tick_number - warm_ticks) if tick_number >= warm_ticks else None
            if (tick_number if session is None else session) % job.workers == job.worker_index:
                yield tick_number, tick_s

    return LoadPlan(
        users=_share(opened.max_in_flight, job, "arrival.open.max_in_flight"),
        all_users=opened.max_in_flight,
        ticks=ticks,
        warm_ticks=warm_ticks,
        measured_from_s=next(islice(schedule.ticks(), first_measured, None), None),
        session_number=prompts.session_number,
        **common,
    )


def schedule_of(opened: Open, seed: int, instants: Callable[[], Iterator[float]]) -> Schedule:
    """The schedule that an open loop describes; `instants` are those of a trace."""
    if opened.trace is not None:
        return ListedSchedule(instants, opened.trace.scale_time)
    if opened.ramp is not None:
        course = ramp_course(opened.ramp.from_rate, opened.ramp.to_rate, opened.ramp.over_s)
        return OpenSchedule(opened.process, course, seed, opened.burstiness)
    if opened.stages is not None:
        stages = stages_course((stage.rate, stage.for_s) for stage in opened.stages)
        return OpenSchedule(opened.process, stages, seed, opened.burstiness)
    assert opened.rate is not None
    return OpenSchedule(opened.process, opened.rate, seed, opened.burstiness)


def spec_of(job: LoadJob, workload: Workload) -> StreamSpec:
    """The form of every request. Raises UsageError when the key's variable is not usable."""
    target, timeouts = job.target, workload.timeouts
    chat = workload.endpoint == "chat"
    url = urlsplit(target.base_url)
    path = url.path.rstrip("/") + ("/v1/chat/completions" if chat else "/v1/completions")
    fields: dict[str, Any] = {"temperature": workload.request.temperature}
    cancel = workload.request.cancel
    if workload.output.ignore_eos:
        fields["ignore_eos"] = True
    return StreamSpec(
        chat=chat,
        model=target.model,
        timeouts=Timeouts(timeouts.connect_s, timeouts.first_token_s, timeouts.gap_s, timeouts.total_s),
        head=_head(url.netloc.rpartition("@")[2], path, target.api_key_env),
        fields=fields | dict(workload.request.extra_body),
        worker=job.worker,
        cancel_share=cancel.share if cancel is not None else 0.0,
        cancel_after=cancel.after_tokens if cancel is not None else 0,
        seed=workload.seed,
        obey_retry_after=bool(workload.request.obey_retry_after),
    )


def prompts_of(job: LoadJob, workload: Workload) -> PromptSource:
    """The plan's prompts, the same in every worker."""
    return PromptSource(workload, job.calibration, job.salt)


def _share(users: int, job: LoadJob, key: str) -> int:
    share = users // job.workers + (1 if job.worker_index < users % job.workers else 0)
    if not share:
        message = f"{job.workers} workers share {users} users, so that some would have none"
        fix = f"start fewer workers, or raise `{key}`"
        raise UsageError(Problem("too_many_workers", message, fix))
    return share


def _head(host: str, path: str, api_key_env: str | None) -> str:
    key = None
    if api_key_env is not None:
        key = os.environ.get(api_key_env)
        if not key:
            fix = f"export {api_key_env}=…"
            raise UsageError(Problem("api_key", f"the variable {api_key_env} is not set", fix))
    try:
        return request_head(host, path, key)
    except ValueError as error:
        fix = "check it for line breaks and blanks"
        raise UsageError(Problem("api_key", f"the variable {api_key_env}: {error}", fix)) from error
