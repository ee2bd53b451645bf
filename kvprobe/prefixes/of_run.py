"""The prompts of a run: the tree, the ceilings and the steps down to what came from the cache.

Made when the load is over, from prompts that are made again, and kept as one fact of bounded size. Replicas
are not known from a client's side, so there is no step for routing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from kvprobe.evidence.facts import Fact
from kvprobe.evidence.records import RequestRecord
from kvprobe.load.job import Calibration, PlannedRequest
from kvprobe.prefixes.analyse import analysed
from kvprobe.prefixes.ceilings import Conditions
from kvprobe.prefixes.openai_form import bypass_of
from kvprobe.prefixes.rows import Sent, rows_of
from kvprobe.summary.jsonable import jsonable

FACT: Final = "prefix_analysis"
MAX_PROMPTS: Final = 2_000
MAX_STAND_INS: Final = 1_500_000
"""Some seconds of one core; what is left out is said."""


def prefix_facts(
    planned: Sequence[PlannedRequest],
    records: Sequence[RequestRecord],
    tokens_of: Callable[[str], int],
    calibration: Calibration,
    template_tokens: int,
    known: Conditions,
    extra_body: Mapping[str, Any],
) -> list[Fact]:
    """`planned` and `records` belong together, in the order in which they were sent; [] for none."""
    if not planned:
        return []
    bypass = bypass_of(dict(extra_body))
    sent = [
        Sent(
            text=request.text(),
            tokens=record.prompt_tokens,
            cached=record.cached_tokens,
            bypass=bypass,
            warmup=record.warmup,
        )
        for request, record in zip(planned, records, strict=True)
    ]
    assumed = calibration.source == "assumed"
    rows = rows_of(
        sent,
        tokens_of,
        template_tokens,
        estimated=assumed,
        max_prompts=MAX_PROMPTS,
        max_stand_ins=MAX_STAND_INS,
    )
    if not rows.rows:
        return []
    told = "assumed, scaled to the usage of the answers" if assumed else "the target's tokenizer"
    return [Fact(name=FACT, value=jsonable(analysed(rows, known, told)), source="prompts sent")]
