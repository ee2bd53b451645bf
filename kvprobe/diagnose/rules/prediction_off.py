"""The planner's numbers and the server's own contradict each other.

An observation, not a cause: it may be the planner that does not know this engine's layout. Only the
engine's own numbers against each other are a finding: pool tokens x bytes a token must be the pool's bytes.
"""

from __future__ import annotations

from kvprobe.diagnose.log_answer import facts_of
from kvprobe.diagnose.model import Observation, Quantity
from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.summary.memory import whole as label_number
from kvprobe.summary.prediction import TOLERANCE, predict
from kvprobe.summary.units import percent, size, whole


def prediction_off(view: View) -> Outcome:
    found = predict(view.run, facts_of(view.log) if view.log is not None else None)
    observed = []
    if found.warnings:
        pairs = {"bytes_per_token": found.bytes_per_token, "pool_tokens": found.pool_tokens}
        facts = {
            name: Quantity(pair.error, "ratio") for name, pair in pairs.items() if pair.error is not None
        }
        text = f"Prediction and report disagree: {'; '.join(found.warnings)}."
        observed.append(Observation(id="prediction_disagrees", text=text, facts=facts))
    contradiction = _own_books(view)
    return Outcome(candidates=[contradiction] if contradiction else [], observations=observed)


def _own_books(view: View) -> Candidate | None:
    """Needs: all three numbers from the engine itself, one block of slack. Refuted by a sum that holds."""
    per_token = label_number(view.config.get("kv_bytes_per_token"))
    held = view.summary.metrics.memory
    tokens = label_number(view.config.get("kv_cache_size_tokens"))
    if not per_token or not tokens or not held.kv_pool_bytes:
        return None
    block = (held.kv_block_size_tokens or 1) * per_token
    product = tokens * per_token
    off = abs(product - held.kv_pool_bytes)
    if off <= max(TOLERANCE * held.kv_pool_bytes, 2 * block):
        return None
    found = finding(
        "engine_accounting_bug",
        "suspected",
        f"The engine's own numbers contradict each other: {whole(tokens)} tokens x {whole(per_token)} B = "
        f"{size(product)}, and it says that the pool has {size(held.kv_pool_bytes)} "
        f"({percent(product / held.kv_pool_bytes - 1)} off).",
        [
            evidence(
                "cache_config_info",
                "pool tokens x bytes a token against the pool's bytes",
                tokens=(tokens, "tokens"),
                bytes_per_token=(per_token, "B"),
                kv_pool=(held.kv_pool_bytes, "B"),
            )
        ],
        check_first=["which of the three the engine counts otherwise (layers of several kinds, padding)"],
        remedy=["report the three numbers to the engine's makers; plan with the smaller capacity"],
        would_change_my_mind=["a layout in which a token costs different amounts in different layers"],
    )
    return Candidate(finding=found, timing_free=True)
