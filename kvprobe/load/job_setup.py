"""From a `LoadJob` to what the worker runs with: prompts, arrival plan, request form."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

from kvprobe.errors import Problem, UsageError
from kvprobe.load.arrivals import OpenSchedule
from kvprobe.load.conductor import LoadPlan
from kvprobe.load.job import LoadJob
from kvprobe.load.prompts import PromptSource
from kvprobe.load.request_form import StreamSpec, Timeouts, request_head
from kvprobe.load.workload import Workload


def plan_of(job: LoadJob, workload: Workload, total: int | None) -> LoadPlan:
    """This worker's share of the arrivals."""
    closed, open_loop = workload.arrival.closed, workload.arrival.open
    common: dict[str, Any] = {
        "drain_s": workload.drain_s,
        "total": total,
        "duration_s": workload.duration_s,
        "warmup_s": workload.warmup.duration_s or 0.0,
        "worker_index": job.worker_index,
        "workers": job.workers,
    }
    if closed is not None:
        return LoadPlan(users=_share(closed.users, job), think_time_s=closed.think_time_s, **common)
    assert open_loop is not None
    schedule = OpenSchedule(open_loop.process, open_loop.rate, workload.seed)
    return LoadPlan(
        users=_share(open_loop.max_in_flight, job),
        ticks=lambda: schedule.share(job.worker_index, job.workers),
        **common,
    )


def spec_of(job: LoadJob, workload: Workload) -> StreamSpec:
    """The form of every request. Raises UsageError when the key's variable is not usable."""
    target, timeouts = job.target, workload.timeouts
    chat = workload.endpoint == "chat"
    url = urlsplit(target.base_url)
    path = url.path.rstrip("/") + ("/v1/chat/completions" if chat else "/v1/completions")
    fields: dict[str, Any] = {"temperature": workload.request.temperature}
    if workload.output.ignore_eos:
        fields["ignore_eos"] = True
    return StreamSpec(
        chat=chat,
        model=target.model,
        timeouts=Timeouts(timeouts.connect_s, timeouts.first_token_s, timeouts.gap_s, timeouts.total_s),
        head=_head(url.netloc.rpartition("@")[2], path, target.api_key_env),
        fields=fields | dict(workload.request.extra_body),
        worker=job.worker,
    )


def prompts_of(job: LoadJob, workload: Workload) -> PromptSource:
    """The plan's prompts, the same in every worker."""
    return PromptSource(workload, job.calibration, job.salt)


def _share(users: int, job: LoadJob) -> int:
    return users // job.workers + (1 if job.worker_index < users % job.workers else 0)


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
