"""The head of a trace in a plan's pool, in words: lines of the terminal page, a table of the HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvprobe.plan.replayed import ReplayPart, ReplayRun
from kvprobe.report.content import Block, Inline, Num, Para, Said, Table
from kvprobe.report.words import Words
from kvprobe.summary.units import percent, plural, seconds, whole


def replay_lines(found: ReplayPart | None) -> Iterator[str]:
    """Nothing where nothing was simulated: `reasons` says why."""
    if found is None:
        return
    yield (
        f"{_which(found)} through this pool, simulated; step time: {found.step_time_source}, "
        f"{seconds(found.step_fixed_s)} a step"
    )
    for run in found.runs:
        yield f"max-num-seqs {whole(run.max_num_seqs)} ({run.why}): {_run(run)}"
    if found.step_time_source == "assumed":
        yield "how many run at once follows from the step time, which is assumed: give --gpu NAME"


def _which(found: ReplayPart) -> str:
    if found.trace_requests is None:
        return f"{plural(found.requests, 'request')} of these lengths, all waiting from the start,"
    which = "all:" if found.requests == found.trace_requests else "the first"
    requests = f"{plural(found.requests, 'request')} of {whole(found.trace_requests)}"
    return f"{which} {requests} in the trace ({seconds(found.span_s)})"


def _run(run: ReplayRun) -> str:
    said = (
        f"at once {whole(run.running_peak)} at most, {run.running_mean:.1f} on average; "
        f"{plural(run.preemptions, 'preemption')}; "
        f"{whole(run.refused)} refused; queue {whole(run.waiting_peak)} at most"
    )
    if run.failed:
        said += f"; {whole(run.failed)} failed for lack of room"
    if run.queue_p95_s is not None:
        said += f", p95 {seconds(run.queue_p95_s)}"
    if run.hit_rate is not None:
        said += f"; {percent(run.hit_rate)} prefix hits"
    return said


def replayed(w: Words, part: Any) -> list[Block]:
    """`part` is `replay` of `plan --json`; empty where there is none."""
    if not isinstance(part, Mapping) or not isinstance(part.get("runs"), list):
        return []
    columns = [
        "max-num-seqs",
        w("at once, peak"),
        w("at once, mean"),
        w("preemptions"),
        w("refused"),
        w("queue, peak"),
        w("queue p95"),
    ]
    table = Table(
        name="replay",
        caption=_caption(w, part),
        columns=columns,
        rows=[_cells(run) for run in part["runs"] if isinstance(run, Mapping)],
        numeric=frozenset(range(len(columns))),
        note=w("Step time: {source}. How many run at once follows from it.", source=part["step_time_source"]),
    )
    notes = [Para(Said(str(note), "dim", foreign=True)) for note in part.get("notes") or []]
    return [table, *notes]


def _caption(w: Words, part: Mapping[str, Any]) -> str:
    requests = whole(part.get("requests") or 0)
    if part.get("trace_requests") is None:
        return w("{n} requests of these lengths, all waiting from the start, simulated", n=requests)
    return w(
        "The first {n} of {all} requests of the trace through this pool, simulated",
        n=requests,
        all=whole(part["trace_requests"]),
    )


def _cells(run: Mapping[str, Any]) -> list[Inline]:
    queue = run.get("queue_p95_s")
    mean = run.get("running_mean") or 0.0
    return [
        *(Num(whole(run[name]), run[name]) for name in ("max_num_seqs", "running_peak")),
        Num(f"{mean:.1f}", mean),
        *(Num(whole(run[name]), run[name]) for name in ("preemptions", "refused", "waiting_peak")),
        Num("-" if queue is None else seconds(queue), queue),
    ]
