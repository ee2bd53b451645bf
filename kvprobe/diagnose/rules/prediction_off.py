"""The planner's numbers and the server's own contradict each other.

A finding without a cause (`unknown`, suspected): it may as well be the planner that does not know how this
engine lays out its cache (layers of several kinds, padding) as an engine that counts wrong. It stands
behind every named cause. Where the prediction rests on an assumption of ours, or replicas are added up,
it is an observation.
"""

from __future__ import annotations

from kvprobe.diagnose.causes import UNKNOWN
from kvprobe.diagnose.log_answer import facts_of
from kvprobe.diagnose.model import Evidence, Observation, Quantity
from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.summary.prediction import TOLERANCE, Compared, Prediction, predict
from kvprobe.summary.units import percent, whole


def prediction_off(view: View) -> Outcome:
    """Needs a model configuration and what the server reports; speaks up beyond the tolerance."""
    found = predict(view.run, facts_of(view.log) if view.log is not None else None)
    off = _off(found)
    if not found.warnings:
        return Outcome()
    text = f"Prediction and report disagree: {'; '.join(found.warnings)}."
    if not off or found.assumed or view.engines > 1:  # pages of several add up
        facts = {name: Quantity(pair.error, "ratio") for name, pair in off.items()}
        return Outcome(observations=[Observation(id="prediction_disagrees", text=text, facts=facts)])
    told = finding(
        UNKNOWN,
        "suspected",
        text,
        [_evidence(name, pair) for name, pair in off.items()],
        check_first=[
            "the KV format, the layers with a cache and the padding that the engine's start-up log states"
        ],
        remedy=[
            "plan with what the server reports (`kvprobe plan --available-kv`), until the reason is known",
            "report the model's config.json and both numbers: one of the two counts wrong",
        ],
        would_change_my_mind=[
            "a cache format, draft model or layer kind that config.json does not show",
            "an engine version that lays the cache out in another way",
        ],
    )
    return Outcome(candidates=[Candidate(finding=told, timing_free=True)])


def _off(found: Prediction) -> dict[str, Compared]:
    """What is off by itself: concurrency follows from the other two."""
    pairs = {"bytes_per_token": found.bytes_per_token, "pool_tokens": found.pool_tokens}
    return {n: p for n, p in pairs.items() if p.error is not None and abs(p.error) > TOLERANCE}


def _evidence(name: str, pair: Compared) -> Evidence:
    unit = "B" if name == "bytes_per_token" else "tokens"
    text = (
        f"{name.replace('_', ' ')}: predicted {whole(pair.predicted or 0)}, reported "
        f"{whole(pair.reported or 0)} ({percent(pair.error or 0.0)} off)"
    )
    return evidence(
        pair.source or "the server",
        text,
        predicted=(pair.predicted, unit),
        reported=(pair.reported, unit),
        error=(pair.error, "ratio"),
    )
