"""The shape of `replay` in `plan --json`: the head of a trace, or draws of lengths, in the planned pool."""

from __future__ import annotations

from typing import Literal

import msgspec


class ReplayRun(msgspec.Struct, kw_only=True):
    """One simulation. Means are over time; `waiting` have arrived and were not let in yet. `refused` are
    longer than the pool or the context limit. `hit_rate` is of prompt tokens, null where the trace does not
    say what prompts share; latencies are null when nothing was served."""

    max_num_seqs: int
    why: str
    running_mean: float
    running_peak: int
    waiting_mean: float
    waiting_peak: int
    pool_peak_ratio: float
    preemptions: int
    preempted_share: float
    refused: int
    failed: int
    hit_rate: float | None
    queue_p95_s: float | None
    ttft_p95_s: float | None


class ReplayPart(msgspec.Struct, kw_only=True):
    """The first `requests` of the trace's `trace_requests` in this pool, simulated; or as many draws of the
    lengths, all at once, where these have no arrivals (`trace_requests` is null then). Times, and with them
    how many run at once, are worth what `step_time_source` says."""

    arrivals: Literal["trace", "all at once"]
    requests: int
    trace_requests: int | None
    span_s: float
    admission: str
    prefix_caching: bool
    usable_blocks: int
    block_size: int
    step_time_source: str
    step_fixed_s: float
    step_token_s: float
    runs: list[ReplayRun]
    notes: list[str]
