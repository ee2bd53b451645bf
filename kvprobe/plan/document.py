"""The shape of `plan --json` (`kvprobe.plan/1`): what the terminal page and the HTML page read as well.

Sizes are bytes, lengths tokens. Null means that a thing does not exist or is not known; `reasons` says which
and why, by its dotted path. A `range` that is null stands beside an exact number: nothing is open.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvprobe.plan.replayed import ReplayPart

SCHEMA = "kvprobe.plan/1"
Source = Literal["measured", "config", "user", "default", "table"]
Layout = Literal[
    "full",
    "mla",
    "mla_indexer",
    "sliding",
    "full_sliding",
    "chunked",
    "linear_full",
    "mamba_full",
    "shared",
    "varying",
    "cross",
    "affine",
]
IntRange = tuple[int, int]


class ModelPart(msgspec.Struct, kw_only=True):
    name: str
    architecture: str
    family: str
    dtype: str
    layers: int
    max_position_tokens: int | None
    verified: bool
    quantization: str | None
    source: str
    kv_heads: int | None = None
    """Of the whole model, before any split; null where layers differ or keep no K and V."""
    head_dim: int | None = None
    """Elements of K per head; null likewise."""


class KVShare(msgspec.Struct, kw_only=True):
    """A part of the cache: bytes per token, or constant bytes per request; one of them is null."""

    name: str
    layers: int
    bytes_per_token: int | float | None
    bytes: int | None
    window_tokens: int | None


class KVPart(msgspec.Struct, kw_only=True):
    """`bytes_per_token_per_gpu` is the token that stays (past every window); `early_` the one before.
    `bytes_at_tokens` is null without --tokens."""

    bytes_per_token_per_gpu: int | float
    early_bytes_per_token_per_gpu: int | float
    layout: Layout
    dtype_k: str
    dtype_v: str
    parts: list[KVShare]
    state_bytes_per_request: int
    tokens: int | None
    bytes_at_tokens: int | None


class BudgetTerm(msgspec.Struct, kw_only=True):
    """`bytes` is null for a term that is only known as a range, or that does not exist. `ratio` is the
    utilisation's share."""

    bytes: int | None
    range: IntRange | None
    source: Source
    ratio: float | None = None
    note: str | None = None


class BudgetPart(msgspec.Struct, kw_only=True):
    total: BudgetTerm
    utilisation: BudgetTerm
    weights: BudgetTerm
    non_torch: BudgetTerm
    activation_peak: BudgetTerm
    graphs: BudgetTerm
    fixed: BudgetTerm
    margin: BudgetTerm
    kv: BudgetTerm
    rule: str


class PoolPart(msgspec.Struct, kw_only=True):
    """Ranges are what rounded or unknown inputs leave open; a count is null where only its range is known."""

    num_blocks: int | None = None
    num_blocks_range: IntRange | None = None
    block_size: int | None = None
    block_bytes: int | None = None
    page_bytes: int | None = None
    groups: list[int] | None = None
    group_size: int | None = None
    padding_layers: int | None = None
    tokens: int | None = None
    tokens_range: IntRange | None = None
    log_line_tokens: int | None = None
    log_line_tokens_range: IntRange | None = None
    max_concurrency: float | None = None
    max_concurrency_range: tuple[float, float] | None = None
    blocks_per_request: int | None = None
    num_cpu_blocks: int | None = None
    full_tokens: int | None = None
    full_tokens_range: IntRange | None = None
    swa_tokens: int | None = None
    swa_tokens_range: IntRange | None = None
    state_slots: int | None = None
    state_slots_range: IntRange | None = None
    parts_bytes: dict[str, int] | None = None
    estimated_max_model_len: int | None = None
    estimated_max_model_len_range: IntRange | None = None
    max_model_len: int | None = None
    needed_bytes: int | None = None


class WastePart(msgspec.Struct, kw_only=True):
    """For `sequences` requests at once; padding, null_block, reserved, block_table_bytes and remainder in
    bytes. `reserved` is all that they hold beyond their logical bytes, tails and padding included."""

    sequences: int | None
    tail_bound_tokens: int | None
    tail_expected_tokens: float | None
    padding: int | None
    null_block: int | None
    reserved: int | None
    block_table_bytes: int | None
    remainder: int | None


class FitPoint(msgspec.Struct, kw_only=True):
    requests: int
    probability: float


class DistributionPart(msgspec.Struct, kw_only=True):
    """`max_num_seqs` requests fit together with a chance of at least 1 - `preemption_probability`."""

    max_num_seqs: int | None
    max_num_seqs_range: IntRange
    preemption_probability: float
    mean_bound: int
    fits: list[FitPoint]
    share_longer_than_pool: float
    method: str


class LengthsPart(msgspec.Struct, kw_only=True):
    spec: str
    source: str
    requests: int | None
    mean_tokens: float
    p50_tokens: int
    p95_tokens: int
    max_tokens: int


class Shortfall(msgspec.Struct, kw_only=True):
    """What is missing for one request of `tokens` tokens. Blocks are null where there are none."""

    tokens: int
    bytes: int
    blocks: int | None


class ConcurrencyPart(msgspec.Struct, kw_only=True):
    """Requests at once when all have that length. Without --lengths `max` is at the context limit."""

    mean: int | None
    p50: int | None
    p95: int | None
    max: int | None
    mean_range: IntRange | None
    p50_range: IntRange | None
    p95_range: IntRange | None
    max_range: IntRange | None
    distribution: DistributionPart | None
    binds: str | None
    cap: int | None
    cap_name: str | None
    shortfall: Shortfall | None


class WhatIfRow(msgspec.Struct, kw_only=True):
    id: str
    change: str
    pool_tokens: int | None
    kv_bytes: int | None
    mean: int | None
    p50: int | None
    p95: int | None
    max: int | None
    max_num_seqs: int | None
    note: str | None
    reason: str | None


class LadderRung(msgspec.Struct, kw_only=True):
    setting: str
    value: float
    kv_bytes: int
    pool_tokens: int | None
    max_num_seqs: int | None
    left_bytes: int
    check: str


class FlagRow(msgspec.Struct, kw_only=True):
    name: str
    value: str | None
    why: str


class LeftOutRow(msgspec.Struct, kw_only=True):
    name: str
    why: str


class DiffRow(msgspec.Struct, kw_only=True):
    name: str
    change: Literal["add", "change", "same"]
    running: str | None
    recommended: str | None


class FlagsPart(msgspec.Struct, kw_only=True):
    recommended: list[FlagRow]
    left_out: list[LeftOutRow]
    shell: str
    yaml: str
    diff: list[DiffRow]
    note: str | None


class WarningRow(msgspec.Struct, kw_only=True):
    code: str
    text: str
    fix: str | None


class CostPart(msgspec.Struct, kw_only=True):
    """In the currency of --price-per-hour, which is per GPU. `per_million_output_tokens` needs a measured
    output speed."""

    gpus: int
    per_hour: float
    per_request_hour: float | None
    per_gib_hour_of_kv: float | None
    per_million_output_tokens: float | None
    note: str


class PlanDocument(msgspec.Struct, kw_only=True):
    """One model's plan. `models` is empty for one model; for several it holds every plan, the first too."""

    fits: bool | None
    verdict: str
    model: ModelPart
    engine: str | None
    engine_version: str | None
    gpu: str | None
    tp: int
    pp: int
    kv: KVPart
    budget: BudgetPart
    pool: PoolPart
    waste: WastePart
    concurrency: ConcurrencyPart
    lengths: LengthsPart | None
    what_if: list[WhatIfRow]
    ladder: list[LadderRung]
    flags: FlagsPart
    cost: CostPart | None
    warnings: list[WarningRow]
    assumptions: list[str]
    reasons: dict[str, str]
    replay: ReplayPart | None = None
    models: list[PlanDocument] = []


def to_json(document: PlanDocument) -> dict[str, Any]:
    """The document as JSON types, its `schema` first."""
    from kvprobe.summary.jsonable import jsonable

    found = jsonable(document)
    return {"schema": SCHEMA, **found}


def plan_schema() -> dict[str, Any]:
    """JSON Schema of `kvprobe.plan/1`. The plans inside `models` carry no `schema` of their own."""
    schema = msgspec.json.schema(PlanDocument)
    definitions = schema["$defs"]
    inner = definitions["PlanDocument"]
    top = {
        **inner,
        "properties": {"schema": {"const": SCHEMA}, **inner["properties"]},
        "required": ["schema", *inner.get("required", [])],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **top,
        "title": SCHEMA,
        "$defs": definitions,
    }
