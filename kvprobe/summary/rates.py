"""Counts and rates: requests by fate, offered against achieved, tokens asked against got."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from kvprobe.evidence.facts import Fact
from kvprobe.evidence.records import CANCELLED, OpenedRequest, RequestRecord
from kvprobe.summary.latency import NS, chunk_instants_ns
from kvprobe.summary.quantiles import quantiles

CUT: Final = "cancelled_at_end"
"""In flight when the load was over, and given up by us: load that was left, no failure of the server's."""
FAILURE_SAMPLES = 3
FAILURE_SAMPLE_CHARS = 2_048


class Requests(msgspec.Struct, kw_only=True):
    """Fates of the measured requests: intended = sent + unsent, sent = ok + failed + unfinished."""

    intended: int
    sent: int
    unsent: int
    ok: int
    failed: int
    by_failure: dict[str, int]
    unfinished: int
    """Sent, and cut before a record was written (a killed run)."""
    warmup: int
    """Warm-up requests, in no other number here."""
    warmup_failed: int
    cut_at_end: int = 0
    """Of `failed`: still in flight when the load was over, and given up by us. No failure of the server's."""

    @property
    def failed_before_end(self) -> int:
        """What failed while it was waited for."""
        return self.failed - self.cut_at_end


class FailureGroup(msgspec.Struct, kw_only=True):
    """The failures of one kind, with the first distinct details (foreign text)."""

    kind: str
    count: int
    share: float
    """Of the requests that were sent."""
    statuses: dict[str, int]
    details: list[str]
    with_tokens: int
    """How many had delivered at least one chunk of text."""


class Window(msgspec.Struct, kw_only=True):
    """From the first measured request sent to the last token (or end) of the measured requests."""

    start_ns: int | None = None
    end_ns: int | None = None
    seconds: float | None = None
    issue_end_ns: int | None = None
    """When the load stopped issuing requests, where that was recorded."""
    finish_reason: str | None = None
    finish_detail: str | None = None


class Rates(msgspec.Struct, kw_only=True):
    """Requests a second while requests were being issued; null when the window has no length."""

    offered_per_s: float | None
    achieved_per_s: float | None
    unsent_per_s: float | None
    completed_per_s: float | None
    """Requests that ended well, over the whole window."""
    issue_seconds: float | None


class Asked(msgspec.Struct, kw_only=True):
    """Tokens asked for against tokens that the server counted, over requests that ended well."""

    n: int
    missing: int
    asked_median: float | None = None
    got_median: float | None = None
    got_min: int | None = None
    got_max: int | None = None
    deviation_median: float | None = None
    """(got - asked) / asked, signed."""
    deviation_abs_p95: float | None = None
    deviation_abs_max: float | None = None
    reason: str | None = None


def count(
    measured: Sequence[RequestRecord],
    warmup: Sequence[RequestRecord],
    unfinished: Sequence[OpenedRequest],
    facts: Iterable[Fact] = (),
) -> Requests:
    """Fates of the measured requests; warm-up counts apart.

    A tick of the schedule that no user could take leaves no row: the load says at its end how many
    requests the schedule wanted, warm-up included.
    """
    open_measured = sum(1 for o in unfinished if not o.warmup)
    wanted = _integer(_load_finished(facts).get("intended")) or 0
    without_row = max(0, wanted - len(measured) - len(warmup) - len(unfinished))
    unsent_rows = sum(1 for r in measured if is_unsent(r))
    failures = Counter(r.failure for r in measured if r.failure is not None and not is_unsent(r))
    return Requests(
        intended=len(measured) + open_measured + without_row,
        sent=len(measured) - unsent_rows + open_measured,
        unsent=unsent_rows + without_row,
        ok=sum(1 for r in measured if r.failure is None and r.sent_ns is not None),
        failed=sum(failures.values()),
        by_failure={str(kind): n for kind, n in failures.most_common()},
        unfinished=open_measured,
        warmup=len(warmup) + sum(1 for o in unfinished if o.warmup),
        warmup_failed=sum(1 for r in warmup if r.failure is not None),
        cut_at_end=failures[CUT],
    )


def is_unsent(record: RequestRecord) -> bool:
    """Wanted by the schedule and never tried. A connection that was refused was tried, and failed."""
    return record.sent_ns is None and record.failure in (None, CUT)


def failure_groups(measured: Sequence[RequestRecord]) -> list[FailureGroup]:
    """Failures by kind, most frequent first; details shortened, the first few distinct ones."""
    groups: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in measured:
        if record.failure is not None and not is_unsent(record):
            groups[record.failure].append(record)
    sent = sum(1 for r in measured if not is_unsent(r))
    found = [_group(kind, records, sent) for kind, records in groups.items()]
    return sorted(found, key=lambda g: (-g.count, g.kind))


def _group(kind: str, records: list[RequestRecord], sent: int) -> FailureGroup:
    details = dict.fromkeys(r.failure_detail[:FAILURE_SAMPLE_CHARS] for r in records if r.failure_detail)
    statuses = Counter(str(r.status_code) for r in records if r.status_code is not None)
    return FailureGroup(
        kind=kind,
        count=len(records),
        share=len(records) / max(sent, len(records)),
        statuses=dict(sorted(statuses.items())),
        details=list(details)[:FAILURE_SAMPLES],
        with_tokens=sum(1 for r in records if r.content_chunks > 0),
    )


def window(measured: Sequence[RequestRecord], facts: Iterable[Fact]) -> Window:
    """The measured part of the load."""
    starts = [r.sent_ns for r in measured if r.sent_ns is not None]
    ends = [t for r in measured if (t := r.last_token_ns or r.end_ns) is not None]
    out = Window(start_ns=min(starts, default=None), end_ns=max(ends, default=None))
    if out.start_ns is not None and out.end_ns is not None and out.end_ns > out.start_ns:
        out.seconds = (out.end_ns - out.start_ns) * NS
    finished = _load_finished(facts)
    out.issue_end_ns = _integer(finished.get("t_drain_ns"))
    out.finish_reason, out.finish_detail = _text(finished.get("reason")), _text(finished.get("detail"))
    return out


def _load_finished(facts: Iterable[Fact]) -> dict[str, Any]:
    """How the load ended; empty for a run that was killed."""
    found = [f.value for f in facts if f.name == "load_finished" and isinstance(f.value, dict)]
    return found[-1] if found else {}


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def rates(measured: Sequence[RequestRecord], counted: Requests, span: Window) -> Rates:
    """Offered (the schedule's wish), achieved (sent), unsent; while requests were being issued."""
    first = min((r.intended_ns for r in measured), default=None)
    last = max((max(r.intended_ns, r.sent_ns or 0) for r in measured), default=None)
    end = last if span.issue_end_ns is None or last is None else max(span.issue_end_ns, last)
    seconds = (end - first) * NS if first is not None and end is not None and end > first else None
    per = (lambda n: n / seconds) if seconds else (lambda n: None)
    wanted_s = _schedule_seconds(measured, counted) or seconds
    return Rates(
        offered_per_s=counted.intended / wanted_s if wanted_s else None,
        achieved_per_s=per(counted.sent),
        unsent_per_s=per(counted.unsent),
        completed_per_s=counted.ok / span.seconds if span.seconds else None,
        issue_seconds=seconds,
    )


def _schedule_seconds(measured: Sequence[RequestRecord], counted: Requests) -> float | None:
    """How long the schedule wished, where it was over before the last request could be sent.

    A plan of so many requests that falls behind goes on sending after its schedule has ended: over that
    longer time offered and achieved would be the same, however late everything was. Null where sending
    kept up, and where wishes are left that no row tells of, which last as long as issuing did.
    """
    instants = [r.intended_ns for r in measured]
    if counted.intended != len(instants) or len(instants) < 2:
        return None
    span_s = (max(instants) - min(instants)) * NS
    mean_gap_s = span_s / (len(instants) - 1)
    last_sent_s = (max((r.sent_ns or 0) for r in measured) - min(instants)) * NS
    return span_s + mean_gap_s if span_s and last_sent_s > span_s + mean_gap_s else None


def output_tokens_per_s(records: Sequence[RequestRecord], span: Window) -> tuple[float | None, str | None]:
    """Output tokens that came within the window, by the server's own usage, per second; and why it is null.

    A stream that lies partly outside (warm-up that is still streaming when the measurement starts)
    counts by the share of its chunks that came inside. Tokens of failed streams have no usage and
    are not counted.
    """
    ended = [r for r in records if r.failure is None and r.sent_ns is not None]
    ok = [r for r in ended if r.finish_reason != CANCELLED]
    if span.seconds is None or span.start_ns is None or span.end_ns is None or not ok:
        return None, "no request ended well"
    without = sum(1 for r in ok if r.completion_tokens is None)
    if without == len(ok):
        return None, "no usage from the server"
    if without:
        return None, f"the server sent no usage for {without} of {len(ok)} requests (warm-up included)"
    # Nobody says how many tokens a stream that we gave up held: its chunks are the lower bound taken.
    total = sum(
        (r.completion_tokens or r.content_chunks) * _share_inside(r, span.start_ns, span.end_ns)
        for r in ended
        if r.completion_tokens is not None or r.finish_reason == CANCELLED
    )
    return total / span.seconds, None


def _share_inside(record: RequestRecord, start_ns: int, end_ns: int) -> float:
    chunks = chunk_instants_ns(record)
    if not chunks:
        return 0.0
    if start_ns <= chunks[0] and chunks[-1] <= end_ns:
        return 1.0
    return sum(1 for t in chunks if start_ns <= t <= end_ns) / len(chunks)


def asked_and_got(pairs: Iterable[tuple[int | None, int | None]]) -> Asked:
    """Asked against got; `pairs` are (asked, got), null where not known."""
    listed = list(pairs)
    known = [(a, g) for a, g in listed if a is not None and g is not None]
    out = Asked(n=len(known), missing=len(listed) - len(known))
    if not known:
        out.reason = "no usage from the server" if listed else "no request ended well"
        return out
    asked = np.array([a for a, _ in known], dtype=np.float64)
    got = np.array([g for _, g in known], dtype=np.float64)
    out.asked_median, out.got_median = float(np.median(asked)), float(np.median(got))
    out.got_min, out.got_max = int(got.min()), int(got.max())
    sized = asked > 0
    if sized.any():
        deviation = (got[sized] - asked[sized]) / asked[sized]
        out.deviation_median = float(np.median(deviation))
        out.deviation_abs_p95 = quantiles(np.abs(deviation), [0.95])[0].value
        out.deviation_abs_max = float(np.abs(deviation).max())
    return out
