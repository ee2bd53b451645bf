"""Null with a reason: every field of a finished plan that is null has a sentence that says why.

The parts that know their own reasons name them while they are made; this adds those that follow from the
request alone. A `_range` beside a count that is exact is null because there is nothing open.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from kvprobe.plan.document import PlanDocument
from kvprobe.plan.solve import Solution

_TOP = {
    "engine": "no --engine was given: the plain formula",
    "engine_version": "no --engine-version was given: the newest is assumed",
    "gpu": "no --gpu was given",
    "lengths": "no --lengths were given",
    "cost": "no --price-per-hour was given",
}
_MODEL = {
    "max_position_tokens": "the model's files name no context length",
    "quantization": "the weights are not quantised, or their files do not say so",
}
_AT_LENGTH = ("max_model_len", "max_concurrency", "blocks_per_request", "needed_bytes")


def complete(document: PlanDocument, solution: Solution) -> None:
    """Add what is missing to `document.reasons`."""
    words = dict(_TOP)
    if document.engine is None:
        words["engine_version"] = "no --engine was given"
    _fill(document, "", words, "", document.reasons)
    _fill(document.model, "model.", _MODEL, "the model's files do not say", document.reasons)
    _pool(document, solution)
    _waste(document, solution)
    _concurrency(document)
    if document.lengths is not None:
        formula = {"requests": "a formula counts no requests"}
        _fill(document.lengths, "lengths.", formula, "not known", document.reasons)
    if document.cost is not None:
        _fill(document.cost, "cost.", {}, document.cost.note, document.reasons)


def _fill(
    part: msgspec.Struct, prefix: str, words: Mapping[str, str], default: str, reasons: dict[str, str]
) -> None:
    """A reason for each null of one part; without a default only for the fields that `words` names."""
    for name in part.__struct_fields__:
        why = words.get(name, default)
        if getattr(part, name) is None and why and not name.endswith("_range"):
            reasons.setdefault(f"{prefix}{name}", why)


def _pool(document: PlanDocument, solution: Solution) -> None:
    pool = solution.pool
    if pool is None:
        _fill(document.pool, "pool.", {}, document.reasons["pool"], document.reasons)
        return
    allocator = "the plain formula" if pool.engine == "formula" else f"the allocator of {pool.engine}"
    words: dict[str, str] = {}
    if pool.max_model_len is None:
        words |= dict.fromkeys(_AT_LENGTH, "no context limit is known: give --max-model-len")
    for name in document.pool.__struct_fields__:
        ends = getattr(document.pool, f"{name}_range", None)
        if ends is not None and ends[0] != ends[1]:
            words[name] = f"a term of the budget is only known as a range: see {name}_range"
    default = f"{allocator} has no such thing for this model"
    _fill(document.pool, "pool.", words, default, document.reasons)


def _waste(document: PlanDocument, solution: Solution) -> None:
    unknown = "how many requests run at once is not known: give --lengths or --max-model-len"
    pool = solution.pool
    if pool is None:
        unknown = document.reasons["pool"]
    blocks = pool is not None and pool.num_blocks is not None
    rest = unknown if blocks or pool is None else "this allocator has no blocks: nothing is left over"
    _fill(document.waste, "waste.", {"sequences": unknown, "remainder": rest}, unknown, document.reasons)


def _concurrency(document: PlanDocument) -> None:
    words = {
        "binds": document.reasons.get("pool") or "no length is known to count with: give --lengths",
        "cap": "no setting limits the number of requests",
        "cap_name": "no setting limits the number of requests",
        "shortfall": "nothing is missing"
        if document.fits
        else document.reasons.get("fits", "how much is missing cannot be said"),
    }
    _fill(document.concurrency, "concurrency.", words, "", document.reasons)
