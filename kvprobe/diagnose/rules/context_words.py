"""Requests that the context window refused or cut: told by the server's errors, or by answers that end there.

Where a server tells its limit beforehand no such request is sent. llama.cpp gives each slot its own share of
the context and ends an answer that reaches its end with `length`, as if it had been asked for no more.
"""

from __future__ import annotations

from kvprobe.diagnose.model import Evidence
from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.evidence.events import Event
from kvprobe.evidence.records import RequestRecord
from kvprobe.summary import activity
from kvprobe.summary.units import plural, whole

SLOT_CONTEXT = "engine.slot_context_tokens"
WITHIN_TOKENS = 2
"""An answer ends this near to the window where it was cut by it: the last token is never computed."""
MIN_CUT = 2
_DETAILS = 20
_DETAIL_CHARS = 500


def context_limit(view: View) -> Outcome:
    """Needs: requests refused with words that name the context window, or answers that were asked for more
    and ended where the window ends. Refuted by a window that was larger."""
    refused, told = _refused(view)
    window = activity.largest(view.run.samples, SLOT_CONTEXT)
    cut = _cut(view, window)
    if not refused and len(cut) < MIN_CUT:
        return Outcome()
    said = [_refused_words(refused, told)] if refused else []
    if cut and window:
        said.append(
            f"{plural(len(cut), 'answer')} ended at the window of {whole(window)} tokens, before its length"
        )
    found = finding(
        "context_limit_truncation",
        "certain" if told or len(cut) >= MIN_CUT else "likely",
        f"The context window is the limit, not memory: {'; '.join(said)}.",
        [*_evidence_refused(refused), *_evidence_cut(cut, window)],
        check_first=["the context per request (llama.cpp: -c divided by -np unless unified)"],
        remedy=[
            "a larger context (it costs KV memory for every slot), or fewer slots that share it",
            "shorter prompts, or a summary of the history",
        ],
        would_change_my_mind=["the same refusals or short answers with a larger context"],
    )
    explains = frozenset(str(r.failure) for r in refused)
    ids = {r.request_id for r in refused}
    others = {str(r.failure) for r in view.measured if r.failure and r.request_id not in ids}
    return Outcome(candidates=[Candidate(finding=found, timing_free=True, explains=explains - others)])


def _refused(view: View) -> tuple[list[RequestRecord], list[Event]]:
    """Requests refused for the window, and what their errors say, as the log's readers read such lines."""
    failed = [r for r in view.measured if r.failure == "status" and r.failure_detail]
    if not failed:
        return [], []
    from kvprobe.observe.logs.intake import read_text

    events: dict[str, list[Event]] = {}
    for detail in list(dict.fromkeys(str(r.failure_detail)[:_DETAIL_CHARS] for r in failed))[:_DETAILS]:
        read = read_text(detail, "requests.failure").events
        events[detail] = [e for e in read if e.name == "refused" and e.get("reason") == "context"]
    refused = [r for r in failed if events.get(str(r.failure_detail)[:_DETAIL_CHARS])]
    return refused, [e for found in events.values() for e in found if e.get("limit")]


def _refused_words(refused: list[RequestRecord], told: list[Event]) -> str:
    words = f"{plural(len(refused), 'request')} refused"
    longest = max(told, key=lambda e: e.get("asked") or 0, default=None)
    if longest is None or not longest.get("asked"):
        return words
    asked, limit = whole(longest.get("asked")), whole(longest.get("limit") or 0)
    return f"{words}, the longest with {asked} tokens against {limit}"


def _cut(view: View, window: float | None) -> list[RequestRecord]:
    """Answers that were to be longer and ended with `length` where the window ends."""
    if not window:
        return []
    return [
        r
        for r in view.ok
        if r.finish_reason == "length"
        and r.prompt_tokens is not None
        and r.completion_tokens is not None
        and r.completion_tokens < (r.asked_completion_tokens or 0)
        and r.prompt_tokens + r.completion_tokens >= window - WITHIN_TOKENS
    ]


def _evidence_refused(refused: list[RequestRecord]) -> list[Evidence]:
    if not refused:
        return []
    first = refused[0]
    text = f"{first.failure} {first.status_code or ''}: {first.failure_detail}"
    return [evidence("requests.failure", text, count=(len(refused), "count"))]


def _evidence_cut(cut: list[RequestRecord], window: float | None) -> list[Evidence]:
    if not cut:
        return []
    worst = max(cut, key=lambda r: (r.asked_completion_tokens or 0) - (r.completion_tokens or 0))
    text = (
        f"{worst.prompt_tokens} tokens in and {worst.completion_tokens} out, where "
        f"{worst.asked_completion_tokens} were asked for"
    )
    return [
        evidence(
            f"requests.finish_reason, {SLOT_CONTEXT}",
            text,
            answers=(len(cut), "count"),
            window=(window, "tokens"),
        )
    ]
