"""The planner's numbers and the server's own contradict each other.

An observation, not a cause: it may as well be the planner that does not know how this engine lays out its
cache (layers of several kinds, padding), and a server that serves well has no illness for that.
"""

from __future__ import annotations

from kvprobe.diagnose.log_answer import facts_of
from kvprobe.diagnose.model import Observation, Quantity
from kvprobe.diagnose.rules.base import Outcome
from kvprobe.diagnose.view import View
from kvprobe.summary.prediction import predict


def prediction_off(view: View) -> Outcome:
    """Needs a model configuration and what the server reports; speaks up beyond the tolerance."""
    found = predict(view.run, facts_of(view.log) if view.log is not None else None)
    if not found.warnings:
        return Outcome()
    pairs = {"bytes_per_token": found.bytes_per_token, "pool_tokens": found.pool_tokens}
    facts = {name: Quantity(pair.error, "ratio") for name, pair in pairs.items() if pair.error is not None}
    text = f"Prediction and report disagree: {'; '.join(found.warnings)}."
    return Outcome(observations=[Observation(id="prediction_disagrees", text=text, facts=facts)])
