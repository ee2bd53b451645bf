"""llama.cpp's own words in its errors: the cache had no cell left for the running sequences.

The server ends every stream of the batch with such an error, inside a 200 or as status 500. A slot that
is full while the others have room is something else: it ends its answer with `length`, without an error.
"""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.model import Evidence
from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.evidence.records import RequestRecord
from kvprobe.summary import activity
from kvprobe.summary.units import percent, plural, whole

WORDS: Final = ("Context size has been exceeded",)
SLOTS, SLOT_CONTEXT, SLOT_TOKENS = "engine.slots", "engine.slot_context_tokens", "engine.slot_tokens"


def pool_refusals(view: View) -> list[RequestRecord]:
    """Measured requests of llama.cpp that failed with these words."""
    if view.summary.engine != "llama.cpp":
        return []
    return [r for r in view.measured if r.failure and any(w in (r.failure_detail or "") for w in WORDS)]


def pool_words(view: View) -> Outcome:
    """Needs: requests that the server ended with these words. Refuted by free cells at that time."""
    refused = pool_refusals(view)
    if not refused:
        return Outcome()
    sent = max(view.summary.requests.sent, len(refused))
    slots = activity.largest(view.run.samples, SLOTS)
    found = finding(
        "logical_kv_too_large" if slots == 1 else "kv_pool_pressure",
        "likely",
        f"The KV cache was too small for what ran at once: llama.cpp ended {len(refused)} of "
        f"{plural(sent, 'request')} ({percent(len(refused) / sent)}) with `{WORDS[0]}`, which it says where "
        f"no cell of the cache is free for the next token{_held(view, slots)}.",
        [
            evidence(
                "requests.failure",
                f"{refused[0].failure}: {refused[0].failure_detail}",
                count=(len(refused), "count"),
                with_tokens=(sum(1 for r in refused if r.content_chunks > 0), "count"),
            ),
            *_slot_evidence(view),
        ],
        check_first=["the sum of the tokens of all running requests, against -c"],
        remedy=[
            "a larger -c, to hold the sum of live conversations",
            "fewer slots (-np), so that their contexts fit together",
            "-ctk/-ctv q8_0: the same bytes hold about twice the tokens",
        ],
        would_change_my_mind=["free cells at the time: then the fault is in the cache's search"],
    )
    kinds = frozenset(str(r.failure) for r in refused)
    return Outcome(
        candidates=[Candidate(finding=found, timing_free=True, explains=_whole(view, refused, kinds))]
    )


def _whole(view: View, refused: list[RequestRecord], kinds: frozenset[str]) -> frozenset[str]:
    """The kinds of failure of which all had these words: others of the same kind are still unexplained."""
    ids = {r.request_id for r in refused}
    others = {str(r.failure) for r in view.measured if r.failure and r.request_id not in ids}
    return kinds - others


def _held(view: View, slots: float | None) -> str:
    most, context = activity.largest(view.run.samples, SLOT_TOKENS), _context(view)
    if most is None or context is None or not slots or slots < 2:
        return ""
    return (
        f"; its {whole(slots)} slots may each hold {whole(context)} tokens, and together they were seen to "
        f"hold {whole(most)}"
    )


def _slot_evidence(view: View) -> list[Evidence]:
    most, context = activity.largest(view.run.samples, SLOT_TOKENS), _context(view)
    if most is None or context is None:
        return []
    text = f"up to {whole(most)} tokens in all slots, {whole(context)} for each slot"
    return [evidence(SLOT_TOKENS, text, slot_tokens_max=(most, "tokens"), slot_context=(context, "tokens"))]


def _context(view: View) -> float | None:
    return activity.largest(view.run.samples, SLOT_CONTEXT)
