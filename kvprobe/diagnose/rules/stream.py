"""The stream itself misleads: an error inside a 200, no end, no token, no event that can be read.

A server that died cuts its streams too, and then these are the consequence: so a server that stopped
answering is no evidence of a defective stream.
"""

from __future__ import annotations

from statistics import median

from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.summary.latency import between, ttft_s
from kvprobe.summary.units import percent, plural, seconds

MEANING = {
    "in_band_error": "an error object inside a stream that began with status 200",
    "truncated": "a stream that ended without a finish reason or [DONE]",
    "empty_stream": "a stream that ended well without a single token",
    "protocol_error": "an answer that is no event stream",
    "event_too_large": "an event without an end",
    "decode": "bytes that do not decode",
}
EARLY_S = 0.005
EARLY_SHARE = 0.5
EARLY_MIN_ROWS = 20


def stream_defect(view: View) -> Outcome:
    outcome = Outcome(candidates=_early_first_chunk(view))
    groups = [g for g in view.summary.failures if g.kind in MEANING]
    count = sum(g.count for g in groups)
    if not groups or _server_went_away(view):
        return outcome
    sent = view.summary.requests.sent
    what = "; ".join(f"{g.count} x {g.kind} ({MEANING[g.kind]})" for g in groups)
    found = finding(
        "stream_protocol_defect",
        "likely",
        f"{count} of {plural(sent, 'request')} ({percent(count / max(sent, count))}) "
        f"got a defective stream: {what}.",
        [
            evidence(
                "requests.failure",
                f"{g.kind}: {g.details[0] if g.details else MEANING[g.kind]}",
                count=(g.count, "count"),
                with_tokens=(g.with_tokens, "count"),
            )
            for g in groups
        ],
        check_first=[
            "the server's log at the time of the first such request",
            "a proxy between client and server",
        ],
        remedy=[
            "look for the error that the server met in mid-stream; no client may take status 200 for success"
        ],
        would_change_my_mind=["a server that had crashed or was restarted at that time"],
    )
    explained = frozenset(MEANING)
    outcome.candidates.append(Candidate(finding=found, timing_free=True, explains=explained))
    return outcome


def _server_went_away(view: View) -> bool:
    """Connections refused or reset, a page that stopped answering, or a bundled server that ended."""
    failed = view.summary.requests.by_failure
    if any(kind in failed for kind in ("connect", "reset_before_headers", "reset_mid_stream")):
        return True
    scrapes = sorted((s.t_ns, s.value) for s in view.run.samples if s.metric == "scrape.ok")
    return bool(scrapes and scrapes[-1][1] != 1.0)


def _early_first_chunk(view: View) -> list[Candidate]:
    """A first chunk without text, sent before any work: it fools clients that time chunks. Needs most
    streams to have it, well ahead of the token. Refuted by a chunk that comes together with the token."""
    leads = []
    for record in view.ok:
        ttft, lead = ttft_s(record), between(record.first_token_ns, record.first_chunk_ns)
        early = between(record.first_chunk_ns, record.sent_ns)
        if ttft and lead is not None and early is not None:
            leads.append((lead, lead / ttft))
    if len(leads) < EARLY_MIN_ROWS:
        return []
    lead, share = median(x for x, _ in leads), median(s for _, s in leads)
    if lead < EARLY_S or share < EARLY_SHARE:
        return []
    found = finding(
        "stream_protocol_defect",
        "likely",
        f"The first chunk carries no text and comes {seconds(lead)} (median) before the first token, "
        f"{percent(share)} of TTFT ahead of it: clients that time the first chunk report too small a TTFT "
        "(the TTFT here is the token's).",
        [
            evidence(
                "requests.first_chunk_ns, requests.first_token_ns",
                f"{plural(len(leads), 'stream')}: the first chunk leads by {seconds(lead)}",
                lead_p50=(lead, "s"),
                share_of_ttft=(share, "ratio"),
            )
        ],
        check_first=["who sends that chunk: the engine, or a proxy that answers before it"],
        remedy=[
            "time the first chunk with text, never the first chunk",
            "send the role with the first token",
        ],
        would_change_my_mind=["tokens of a kind that this client does not know in that chunk"],
    )
    return [Candidate(finding=found, timing_free=False)]
