"""What became of requests that the client gave up: do they go on computing, and are their blocks freed?"""

from __future__ import annotations

from statistics import median

from kvprobe.diagnose.model import Evidence, Finding
from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.evidence.records import CANCELLED, RequestRecord
from kvprobe.summary import activity
from kvprobe.summary.flight import in_flight
from kvprobe.summary.memory import whole as label_number
from kvprobe.summary.units import percent, plural, whole

GENERATED = "engine.generation_tokens_total"
FINISHED = "engine.requests_finished_total"
WAITING = "engine.requests_waiting"
USED_BLOCKS = "engine.kv_blocks_used"
GAVE_UP = frozenset({"cancelled_at_end", "timeout_first", "timeout_gap", "timeout_total"})
MIN_CANCELLED = 3
MIN_LEFT_TOKENS = 50
WENT_ON = 0.5
"""Of the tokens that cancelled requests had left: so many made all the same are no slow hang-up."""
MORE_READINGS = 2
MIN_LEAK_SHARE = 0.002
MIN_LEAK_BLOCKS = 4
WITHIN = 3.0
"""What is lost and what cancelled requests held may differ by this factor and still be the same."""
COUNTS_RUNNING_ONLY = frozenset({"reference", "vllm", "sglang"})
"""Engines whose usage gauge leaves out what is only cached, so that it falls to 0 at rest."""


def given_up(view: View) -> list[RequestRecord]:
    """Requests that the client hung up on, by plan or because it lost patience."""
    return [
        r
        for r in view.run.records
        if r.sent_ns is not None and (r.finish_reason == CANCELLED or r.failure in GAVE_UP)
    ]


def cancelled(view: View) -> Outcome:
    found = [c for c in (cancellation_ignored(view), blocks_lost(view)) if c is not None]
    return Outcome(candidates=found)


# -- they go on computing -----------------------------------------------------------------------


def cancellation_ignored(view: View) -> Candidate | None:
    """Needs: cancelled requests with tokens left, and a server that generated most of these all the same.
    Refuted by a token counter that stops with the client, or by other clients' work."""
    gone = [r for r in given_up(view) if r.asked_completion_tokens]
    made = view.increase(GENERATED)
    if len(gone) < MIN_CANCELLED or made is None or made.resets or not view.alone:
        return None
    per_chunk = _tokens_per_chunk(view)
    received = sum(_received(r, per_chunk) for r in view.run.records)
    left = sum(max((r.asked_completion_tokens or 0) - _received(r, per_chunk), 0.0) for r in gone)
    excess = made.value - received
    if left < MIN_LEFT_TOKENS or excess < WENT_ON * left or _more_than_ours(view):
        return None
    beyond, noted = _running_beyond(view), _aborts_noted(view)
    sure = beyond >= MORE_READINGS or noted == 0
    found = finding(
        "cancellation_ignored",
        "suspected" if not _known_alone(view) else "certain" if sure else "likely",
        f"{plural(len(gone), 'request')} were given up by the client with {whole(left)} tokens left, and the "
        f"server generated {whole(excess)} tokens that nobody received: cancelled requests run on and hold "
        "their blocks.",
        [
            evidence(
                GENERATED,
                f"{whole(made.value)} tokens generated, {whole(received)} received",
                generated=(made.value, "tokens"),
                received=(received, "tokens"),
                left_at_cancel=(left, "tokens"),
            ),
            evidence(
                activity.RUNNING,
                f"more requests running than the client had open in {plural(beyond, 'reading')}",
                readings_beyond=(beyond, "count"),
            ),
            *_abort_evidence(noted, len(gone)),
        ],
        check_first=["a cancel probe: close one stream and see how long the running requests take to fall"],
        remedy=[
            "a server (and every proxy before it) that stops at the client's disconnect",
            "a limit on max_tokens: it bounds what is lost",
        ],
        would_change_my_mind=["other clients' requests among those that ran"],
    )
    return Candidate(finding=found, timing_free=True)


def _known_alone(view: View) -> bool:
    """Something counts requests or prompts, so that another client's work would have shown."""
    told = view.summary.metrics.prefix_hit_rate.others_tokens is not None
    return told or any(f is not None for f in _finished(view).values())


def _tokens_per_chunk(view: View) -> float:
    rates = [
        r.completion_tokens / r.content_chunks for r in view.ok if r.completion_tokens and r.content_chunks
    ]
    return median(rates) if rates else 1.0


def _received(r: RequestRecord, per_chunk: float) -> float:
    return float(r.completion_tokens) if r.completion_tokens is not None else r.content_chunks * per_chunk


def _more_than_ours(view: View) -> bool:
    """Finished requests that we never sent: then the counters hold somebody else's work."""
    ends = [f for f in _finished(view).values() if f is not None]
    sent = sum(1 for r in view.run.records if r.sent_ns is not None)
    return bool(ends) and sum(ends) > 1.05 * sent + 2


def _finished(view: View) -> dict[str, float | None]:
    reasons = {s.labels.get("reason", "") for s in view.run.samples if s.metric == FINISHED}
    found: dict[str, float | None] = {}
    for reason in reasons:
        rows = [s for s in view.run.samples if s.metric != FINISHED or s.labels.get("reason") == reason]
        grown = activity.increase(rows, FINISHED)
        found[reason] = grown.value if grown is not None else None
    return found


def _aborts_noted(view: View) -> float | None:
    """Aborts that the server counted; null where it does not count them."""
    return _finished(view).get("abort")


def _abort_evidence(noted: float | None, sent: int) -> list[Evidence]:
    if noted is None:
        return []
    return [
        evidence(
            FINISHED,
            f"{whole(noted)} of {whole(sent)} cancellations counted as aborted",
            aborted=(noted, "count"),
            cancelled=(sent, "count"),
        )
    ]


def _running_beyond(view: View) -> int:
    """Readings in which the server ran more requests than the client had open."""
    return sum(
        1 for t, v in view.load_series(activity.RUNNING) if v > len(in_flight(view.run.records, t)) + 0.5
    )


# -- their blocks are not freed -----------------------------------------------------------------


def blocks_lost(view: View) -> Candidate | None:
    """Needs: blocks in use at the end with nothing running or waiting, that were not in use at the start.
    Refuted by requests still open, or by an engine whose gauge counts cached blocks as used."""
    if _at_end(view, activity.RUNNING) != 0 or _at_end(view, WAITING) not in (0, None):
        return None
    lost = _lost_blocks(view)
    if lost is None or _broke_down(view):
        return None
    blocks, total, source = lost
    if blocks < MIN_LEAK_BLOCKS or blocks < MIN_LEAK_SHARE * total:
        return None
    block = label_number(view.config.get("block_size")) or view.summary.layout.block_size_tokens
    gone = given_up(view)
    held = sum((r.prompt_tokens or r.asked_prompt_tokens or 0) + r.content_chunks for r in gone)
    alike = bool(block and held and held / WITHIN <= blocks * block <= held * WITHIN)
    if not alike and blocks < 0.05 * total:
        return None
    return Candidate(finding=_leak(blocks, total, source, block, gone, held, alike=alike), timing_free=True)


def _broke_down(view: View) -> bool:
    """The last request to end was failed by the server: an engine that died frees nothing any more."""
    last = max(view.run.records, key=lambda r: r.end_ns or 0, default=None)
    return last is None or (last.failure is not None and last.failure not in GAVE_UP)


def _lost_blocks(view: View) -> tuple[float, float, str] | None:
    """(blocks in use at rest, of so many, the series that says so)."""
    used = view.at_rest(USED_BLOCKS)
    total = activity.largest(view.run.samples, "engine.kv_blocks_total")
    if used is not None and total:
        return used[1] - used[0], total, USED_BLOCKS
    ratio, blocks = view.at_rest(activity.KV_USAGE), view.summary.metrics.memory.kv_blocks
    if ratio is None or not blocks or view.summary.engine not in COUNTS_RUNNING_ONLY:
        return None
    return (ratio[1] - ratio[0]) * blocks, float(blocks), activity.KV_USAGE


def _at_end(view: View, metric: str) -> float | None:
    rest = view.at_rest(metric)
    return rest[1] if rest is not None else None


def _leak(
    blocks: float,
    total: float,
    source: str,
    block: int | None,
    gone: list[RequestRecord],
    held: int,
    *,
    alike: bool,
) -> Finding:
    tokens = f" ({whole(blocks * block)} tokens)" if block else ""
    whose = (
        f"; {plural(len(gone), 'request')} that the client gave up held {whole(held)} tokens" if gone else ""
    )
    return finding(
        "kv_pool_leak",
        "certain" if alike else "suspected",
        f"{whole(blocks)} KV blocks{tokens} stayed in use after the last request had ended, with nothing "
        f"running and nothing waiting: {percent(blocks / total)} of the pool is lost{whose}.",
        [
            evidence(
                source,
                f"{whole(blocks)} of {whole(total)} blocks in use at rest",
                lost=(blocks, "blocks"),
                pool=(total, "blocks"),
            ),
            evidence(
                "requests",
                f"{plural(len(gone), 'request')} given up by the client",
                given_up=(len(gone), "count"),
                held_by_these=(held, "tokens"),
            ),
        ],
        check_first=["whether use falls to 0 when all requests have ended, and after which kind it does not"],
        remedy=["a restart frees the pool", "upgrade, and report after which requests blocks stay in use"],
        would_change_my_mind=[
            "use that falls by itself some seconds later",
            "another client's open requests",
        ],
    )
