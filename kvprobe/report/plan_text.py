"""A plan's numbers as a person reads them; the terminal page and the HTML page share these words."""

from __future__ import annotations

from collections.abc import Iterator

from kvprobe.plan.document import BudgetPart, BudgetTerm, DistributionPart, PlanDocument, WhatIfRow
from kvprobe.summary.units import percent, size, whole

GIB = 2**30
MIB = 2**20
_LABELS = {
    "total": "total",
    "utilisation": "x utilisation",
    "weights": "- weights",
    "non_torch": "- non-torch",
    "activation_peak": "- activation peak",
    "graphs": "- graphs",
    "fixed": "- fixed runtime",
    "margin": "- margin",
    "kv": "= KV cache",
}
IntRange = tuple[int, int]


def memory(value: int, unit: int) -> str:
    """Bytes in one unit for a whole table, so that rows can be added by eye."""
    return f"{value / unit:,.2f} {'GiB' if unit == GIB else 'MiB'}"


def unit_of(budget: BudgetPart) -> int:
    biggest = max((t.bytes or (t.range[1] if t.range else 0) for t in (budget.total, budget.kv)), default=0)
    return GIB if biggest >= GIB else MIB


def amount(term: BudgetTerm, unit: int) -> str:
    """`14.96 GiB`, or `0.74 to 9.37 GiB` for a term that is only known as a range."""
    if term.bytes is not None:
        return memory(term.bytes, unit)
    if term.range is None:
        return "not known"
    return f"{term.range[0] / unit:,.2f} to {memory(term.range[1], unit)}"


def budget_rows(budget: BudgetPart, reasons: dict[str, str]) -> Iterator[tuple[str, str, float, str]]:
    """Label, amount, share of the total (for the bar), source or reason; terms with no part are left out."""
    unit = unit_of(budget)
    whole_bytes = budget.total.bytes or 0
    if not whole_bytes and budget.kv.bytes is None and budget.kv.range is None:
        yield "KV cache", "not known", 0.0, reasons.get("budget.kv", "")
        return
    for name, label in _LABELS.items():
        term: BudgetTerm = getattr(budget, name)
        if term.bytes is None and term.range is None:
            if name in ("total", "kv", "weights") and budget.rule != "given by --available-kv":
                yield label, "not known", 0.0, reasons.get(f"budget.{name}", "")
            elif name == "utilisation" and term.ratio is not None:
                yield f"x {term.ratio:g}", "", 0.0, term.note or ""
            continue
        if name == "margin" and term.bytes == 0:
            continue
        source = f"{term.source}{_doubt(term)}" if name == "total" else term.source
        shown = f"x {term.ratio:g}" if name == "utilisation" and term.ratio is not None else label
        size_bytes = term.bytes if term.bytes is not None else (term.range or (0, 0))[1]
        yield (
            shown,
            amount(term, unit),
            max(0.0, size_bytes / whole_bytes) if whole_bytes else 0.0,
            source,
        )


def _doubt(term: BudgetTerm) -> str:
    """What is not sure of a card's total: only some were seen in an engine's log."""
    note = term.note or ""
    for words, doubt in (
        ("not checked", "not checked"),
        ("nvidia-smi", "of nvidia-smi, engines see less"),
        ("is not known", "as marketed"),
    ):
        if term.source == "table" and words in note:
            return f", {doubt}"
    return ""


def sentence(text: str) -> str:
    """With a capital, for a line that stands by itself."""
    return text[:1].upper() + text[1:]


def warning_line(text: str, fix: str | None) -> tuple[str, str]:
    """A warning and what to do, as two sentences."""
    return f"{sentence(text).rstrip('.')}.", f" {sentence(fix).rstrip('.')}." if fix else ""


def count(
    value: int | float | None, ends: tuple[float, float] | IntRange | None = None, *, digits: int = 0
) -> str:
    """`458,752`, or `375,568 to 467,392` where only that is known; `not known` when neither is there."""
    if value is not None:
        return f"{value:,.{digits}f}"
    if ends is not None:
        low, high = (f"{end:,.{digits}f}" for end in ends)
        return low if low == high else f"{low} to {high}"
    return "not known"


def spread_note(value: int | None, ends: IntRange | None) -> str:
    """What rounding of the inputs leaves open, when there is anything."""
    if value is None or ends is None or ends[0] == ends[1]:
        return ""
    return f" ({ends[0]:,} to {ends[1]:,} by the rounding of the inputs)"


def token_line(plan: PlanDocument) -> str:
    """What one token costs, and of which parts."""
    kv = plan.kv
    per_token = kv.bytes_per_token_per_gpu
    text = f"{size(per_token)} of KV per GPU ({per_token:,} B; {kv.layout}"
    formats = kv.dtype_k if kv.dtype_k == kv.dtype_v else f"K {kv.dtype_k}, V {kv.dtype_v}"
    text += f", {formats})"
    if kv.state_bytes_per_request:
        text += f", and {size(kv.state_bytes_per_request)} a request whatever its length"
    return text


def part_lines(plan: PlanDocument) -> Iterator[str]:
    """The parts of the cache, when there is more than one."""
    if len(plan.kv.parts) < 2:
        return
    for part in plan.kv.parts:
        window = f", at most {whole(part.window_tokens)} tokens" if part.window_tokens else ""
        cost = (
            f"{part.bytes_per_token:,} B a token"
            if part.bytes_per_token is not None
            else f"{size(part.bytes or 0)} a request"
        )
        yield f"{part.name}: {part.layers} layers, {cost}{window}"


def pool_lines(plan: PlanDocument) -> Iterator[str]:
    """Blocks, tokens, what the log will say."""
    pool = plan.pool
    if pool.num_blocks_range is not None and pool.block_bytes is not None and pool.block_size is not None:
        blocks = count(pool.num_blocks, pool.num_blocks_range)
        yield f"{blocks} blocks of {pool.block_size} tokens, {size(pool.block_bytes)} each"
    if pool.groups is not None and sum(pool.groups) > 1:
        pad = f", {pool.padding_layers} padding layers" if pool.padding_layers else ""
        yield (
            f"{sum(pool.groups)} groups of {pool.group_size} layers{pad}: a block belongs to one "
            "group at a time"
        )
    both = pool.full_tokens_range is not None and pool.full_tokens_range == pool.tokens_range
    if (pool.tokens is not None or pool.tokens_range is not None) and not both:
        note = spread_note(pool.tokens, pool.tokens_range)
        yield f"{count(pool.tokens, pool.tokens_range)} tokens{note}"
    if pool.full_tokens_range is not None and pool.swa_tokens_range is not None:
        full, sliding = (
            count(pool.full_tokens, pool.full_tokens_range),
            count(pool.swa_tokens, pool.swa_tokens_range),
        )
        yield f"{full} full-attention tokens and {sliding} sliding-window tokens"
    if pool.state_slots is not None or pool.state_slots_range is not None:
        yield f"{count(pool.state_slots, pool.state_slots_range)} state slots"
    for name, size_bytes in (pool.parts_bytes or {}).items():
        yield f"{name}: {memory(size_bytes, MIB)}"
    yield from _log_line(plan)


def _log_line(plan: PlanDocument) -> Iterator[str]:
    pool = plan.pool
    if plan.engine is None or pool.log_line_tokens_range is None:
        return
    said = count(pool.log_line_tokens, pool.log_line_tokens_range)
    if said != count(pool.tokens, pool.tokens_range):
        yield f"this version's log will say {said} tokens"
    if pool.max_model_len and (pool.max_concurrency is not None or pool.max_concurrency_range is not None):
        often = count(pool.max_concurrency, pool.max_concurrency_range, digits=2)
        yield f"{often} requests of {whole(pool.max_model_len)} tokens (max-model-len)"


def length_rows(plan: PlanDocument) -> list[tuple[str, str, str]]:
    """Name of the length, its tokens, how many at once."""
    held, lengths = plan.concurrency, plan.lengths
    if lengths is None:
        context = plan.pool.max_model_len or plan.model.max_position_tokens
        if context is None or (held.max is None and held.max_range is None):
            return []
        return [("context limit", whole(context), count(held.max, held.max_range))]
    tokens = {
        "mean": lengths.mean_tokens,
        "p50": lengths.p50_tokens,
        "p95": lengths.p95_tokens,
        "max": lengths.max_tokens,
    }
    return [
        (name, whole(value), count(getattr(held, name), getattr(held, f"{name}_range")))
        for name, value in tokens.items()
    ]


def safe_line(spread: DistributionPart) -> str:
    """How many at once with the lengths as they are, and what the mean would have promised."""
    chance = percent(spread.preemption_probability)
    low, high = spread.max_num_seqs_range
    known = (
        whole(spread.max_num_seqs or 0)
        if low == high or spread.max_num_seqs is None
        else f"{low:,} to {high:,}"
    )
    at_mean = next((p.probability for p in spread.fits if p.requests == spread.mean_bound), None)
    told = f"; by the mean it would be {whole(spread.mean_bound)}" if at_mean is not None else ""
    told += (
        f", which fit only {percent(at_mean)} of the time" if at_mean is not None and at_mean < 0.99 else ""
    )
    return f"{known} requests with a chance of preemption of at most {chance}{told}"


def what_if_cells(row: WhatIfRow) -> tuple[str, ...]:
    """Change, pool tokens, p50, p95, max, safe number; a row without numbers has its reason in the second."""
    numbers = (row.pool_tokens, row.p50, row.p95, row.max, row.max_num_seqs)
    return (row.change, *("-" if n is None else whole(n) for n in numbers))


def money(value: float) -> str:
    return f"{value:,.2f}" if value >= 0.1 else f"{value:.4f}"


def cost_line(plan: PlanDocument) -> str | None:
    cost = plan.cost
    if cost is None:
        return None
    parts = [f"{money(cost.per_hour)} an hour for {cost.gpus} GPU{'s' if cost.gpus > 1 else ''}"]
    if cost.per_request_hour is not None:
        parts.append(f"{money(cost.per_request_hour)} a concurrent request and hour")
    if cost.per_gib_hour_of_kv is not None:
        parts.append(f"{money(cost.per_gib_hour_of_kv)} a GiB of cache and hour")
    if cost.per_million_output_tokens is not None:
        parts.append(f"{money(cost.per_million_output_tokens)} a million output tokens at full load")
    return "; ".join(parts) + f" ({cost.note})"


def headline(plan: PlanDocument) -> str:
    """`llama8b on H100 80GB, TP 2, vllm 0.32.0`"""
    where = f" on {plan.gpu}" if plan.gpu else ""
    ranks = "".join(f", {name} {n}" for name, n in (("TP", plan.tp), ("PP", plan.pp)) if n > 1)
    engine = (
        f", {plan.engine} {plan.engine_version or '(newest)'}"
        if plan.engine
        else ", no engine: the plain formula"
    )
    return f"{plan.model.name}{where}{ranks}{engine}"
