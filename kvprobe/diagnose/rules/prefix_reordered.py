"""The same lines in another order (tools, examples, documents): the shared prefix ends where they begin."""

from __future__ import annotations

from kvprobe.diagnose.rules.base import Candidate, evidence
from kvprobe.diagnose.rules.prefix_facts import (
    FAR_BELOW,
    MOVING_GAINS,
    candidate,
    ceiling_of,
    got_of,
    hit_evidence,
)
from kvprobe.diagnose.view import View
from kvprobe.summary.units import percent, whole


def reordered(view: View) -> Candidate | None:
    """Needs: known lines in another order, and reuse that one order would add. Refuted by hits on them."""
    layout, got, ceiling = view.summary.layout, got_of(view), ceiling_of(view)
    ordered = layout.ceiling_if_ordered
    from_token, lines = layout.reordered_from_token or 0, layout.reordered_lines or 0
    if ordered is None or not layout.reordered_prompts or ordered - ceiling < MOVING_GAINS:
        return None
    if got is not None and got > FAR_BELOW * ordered:
        return None
    if (layout.ceiling_if_moved or 0.0) > ordered:
        return None  # what changes is better put behind: that is said by the rule for it
    seen = "not exported by the server" if got is None else percent(got)
    why = (
        f"{whole(layout.reordered_prompts)} prompts hold lines of earlier prompts in another order, from "
        f"about token {whole(from_token)} on: {percent(ceiling)} of the prompt tokens can "
        f"be reused (got: {seen}); with these lines always in one order it would be {percent(ordered)}."
    )
    return candidate(
        "prefix_layout_unstable",
        "likely" if got is None else "certain",
        why,
        [
            evidence(
                layout.source,
                f"{whole(lines)} lines of such a prompt are not where they first were",
                reordered_prompts=(layout.reordered_prompts, None),
                reordered_from_token=(layout.reordered_from_token, "tokens"),
                ceiling_as_sent=(ceiling, "ratio"),
                ceiling_if_ordered=(ordered, "ratio"),
            ),
            hit_evidence(view),
        ],
        check_first=["what puts the list together (a set, a map without an order, a search result?)"],
        remedy=["sort tools, examples or documents, and write JSON with sorted keys"],
        would_change_my_mind=["prompts whose token ids are equal up to the end of the list"],
    )
