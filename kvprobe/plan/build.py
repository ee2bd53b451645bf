"""From a solution to the document: every number that is shown is put in its place here, once."""

from __future__ import annotations

from kvprobe.model.spec import Attention, ModelSpec
from kvprobe.plan import document as d
from kvprobe.plan.assumptions import assumptions_of
from kvprobe.plan.concurrency import Capacity, Spread
from kvprobe.plan.flags import write
from kvprobe.plan.flags.recommend import Advice, advise
from kvprobe.plan.kv_cost import KVCost
from kvprobe.plan.ladder import ladder
from kvprobe.plan.lengths import Lengths
from kvprobe.plan.pool import ByteRange
from kvprobe.plan.price import cost_of
from kvprobe.plan.reasons import complete
from kvprobe.plan.replayed import ReplayPart
from kvprobe.plan.request import PlanRequest
from kvprobe.plan.solve import Solution, solve
from kvprobe.plan.terms import Budget, Term
from kvprobe.plan.verdict import binding, shortfall_of, verdict_of
from kvprobe.plan.warnings import warnings_of
from kvprobe.plan.waste import waste_of
from kvprobe.plan.what_if import what_ifs


def plan_document(request: PlanRequest, *, claim: ByteRange | None = None) -> d.PlanDocument:
    """The whole plan for one model. Raises UsageError for settings that no engine could run."""
    solution = solve(request)
    reasons: dict[str, str] = {}
    document = d.PlanDocument(
        fits=_fits(solution, reasons),
        verdict=verdict_of(solution),
        model=_model(request.spec),
        engine=request.engine,
        engine_version=request.engine_version,
        gpu=request.gpu,
        tp=request.options.tp,
        pp=request.options.pp,
        kv=_kv(solution.cost, request.options.tokens, reasons),
        budget=_budget(solution.budget, reasons),
        pool=_pool(solution, reasons),
        waste=_waste(solution, reasons),
        concurrency=_concurrency(solution, reasons),
        lengths=_lengths(request.lengths),
        what_if=[_row(row) for row in what_ifs(solution)],
        ladder=[_rung(rung) for rung in ladder(solution)],
        flags=_flags(advise(solution)),
        cost=cost_of(solution),
        warnings=[d.WarningRow(code=w.code, text=w.text, fix=w.fix) for w in warnings_of(solution, claim)],
        assumptions=assumptions_of(solution),
        reasons=reasons,
        replay=_replay(solution, reasons),
    )
    complete(document, solution)
    return document


def _fits(solution: Solution, reasons: dict[str, str]) -> bool | None:
    found = solution.fits()
    if found is None:
        reasons["fits"] = (
            solution.budget.kv.reason or "it fits at one end of the budget's range and not at the other"
        )
    return found


def _model(spec: ModelSpec) -> d.ModelPart:
    return d.ModelPart(
        name=spec.name,
        architecture=spec.architecture,
        family=spec.family,
        dtype=spec.dtype,
        layers=len(spec.layers),
        max_position_tokens=spec.max_position_tokens,
        verified=spec.verified,
        quantization=spec.quantization,
        source=spec.source,
        kv_heads=_one_of({a.kv_heads for a in _attention(spec)}),
        head_dim=_one_of({a.k_dim for a in _attention(spec)}),
    )


def _attention(spec: ModelSpec) -> list[Attention]:
    """Every layer's own keys and values; none where a latent or a state stands for some of them."""
    kept = [mixer for layer in spec.layers if layer.owns_cache for mixer in layer.mixers]
    found = [mixer for mixer in kept if isinstance(mixer, Attention)]
    return found if len(found) == len(kept) else []


def _one_of(values: set[int]) -> int | None:
    return values.pop() if len(values) == 1 else None


def _number(value: object) -> int | float:
    from fractions import Fraction

    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    return value if isinstance(value, int | float) else float(str(value))


def _kv(cost: KVCost, tokens: int | None, reasons: dict[str, str]) -> d.KVPart:
    if tokens is None:
        reasons["kv.bytes_at_tokens"] = "no --tokens was given"
    return d.KVPart(
        bytes_per_token_per_gpu=cost.bytes_per_token,
        early_bytes_per_token_per_gpu=_number(cost.early),
        layout=cost.layout,  # type: ignore[arg-type]
        dtype_k=cost.k.name,
        dtype_v=cost.v.name,
        parts=[
            d.KVShare(
                name=part.name,
                layers=part.layers,
                bytes_per_token=None if part.bytes_per_token is None else _number(part.bytes_per_token),
                bytes=part.bytes,
                window_tokens=part.window_tokens,
            )
            for part in cost.parts
        ],
        state_bytes_per_request=cost.constant,
        tokens=tokens,
        bytes_at_tokens=None if tokens is None else cost.bytes_at(tokens),
    )


def _budget(budget: Budget, reasons: dict[str, str]) -> d.BudgetPart:
    made = {name: _term(name, term, reasons) for name, term in budget.terms()}
    return d.BudgetPart(**made, rule=budget.rule)


def _term(name: str, term: Term, reasons: dict[str, str]) -> d.BudgetTerm:
    if term.value is None:
        reasons[f"budget.{name}"] = term.reason or term.note or "no part of this rule"
    elif term.banded:
        reasons[f"budget.{name}.bytes"] = term.note or "a term of the budget is only known as a range"
    value = term.value
    exact = value is None or (value.lo == value.hi and not term.banded)
    return d.BudgetTerm(
        bytes=term.nominal,
        range=None if value is None or exact else (value.lo, value.hi),
        source=term.source,
        ratio=term.ratio,
        note=term.note if term.value is not None else None,
    )


_COUNTS = (
    "num_blocks",
    "tokens",
    "log_line_tokens",
    "full_tokens",
    "swa_tokens",
    "state_slots",
    "estimated_max_model_len",
)
_PLAIN = (
    "block_size",
    "block_bytes",
    "page_bytes",
    "group_size",
    "padding_layers",
    "blocks_per_request",
    "num_cpu_blocks",
    "parts_bytes",
    "max_model_len",
    "needed_bytes",
)


def _pool(solution: Solution, reasons: dict[str, str]) -> d.PoolPart:
    """A count is null where the budget is a band; its range then is that of the band."""
    pool, low, high = solution.pool, solution.low, solution.high
    if pool is None or low is None or high is None:
        reasons["pool"] = solution.budget.kv.reason or "the memory for the cache is not known"
        return d.PoolPart()
    found = d.PoolPart(groups=None if pool.groups is None else list(pool.groups))
    for name in _PLAIN:
        setattr(found, name, getattr(pool, name))
    for name in _COUNTS:
        ends = _ends(getattr(low, name), getattr(high, name)) or getattr(pool, f"{name}_range", None)
        setattr(found, f"{name}_range", ends)
        setattr(found, name, None if solution.banded and ends and ends[0] != ends[1] else getattr(pool, name))
    if pool.max_concurrency is not None:
        found.max_concurrency = None if solution.banded else round(pool.max_concurrency, 4)
        if low.max_concurrency is not None and high.max_concurrency is not None:
            found.max_concurrency_range = (round(low.max_concurrency, 4), round(high.max_concurrency, 4))
    if solution.banded:
        reasons["pool"] = "counts are ranges: a term of the budget is only known as a range"
    return found


def _ends(low: int | None, high: int | None) -> tuple[int, int] | None:
    return None if low is None or high is None else (low, high)


def _waste(solution: Solution, reasons: dict[str, str]) -> d.WastePart:
    waste = waste_of(solution)
    for name, why in waste.reasons:
        reasons[f"waste.{name}"] = why
    return d.WastePart(
        sequences=waste.sequences,
        tail_bound_tokens=waste.tail_bound_tokens,
        tail_expected_tokens=waste.tail_expected_tokens,
        padding=waste.padding,
        null_block=waste.null_block,
        reserved=waste.reserved,
        block_table_bytes=waste.block_table_bytes,
        remainder=waste.remainder,
    )


def _concurrency(solution: Solution, reasons: dict[str, str]) -> d.ConcurrencyPart:
    held, low, high = solution.capacity, solution.capacity_low, solution.capacity_high
    names = ("mean", "p50", "p95", "max")
    ranges = {f"{name}_range": _ends(getattr(low, name), getattr(high, name)) for name in names}
    shown = {name: _shown(solution, getattr(held, name), ranges[f"{name}_range"]) for name in names}
    for name in names:
        if shown[name] is None:
            reasons[f"concurrency.{name}"] = _why_no_count(solution, getattr(held, name), name)
    spread = solution.safe_capacity.spread
    if spread is None:
        reasons["concurrency.distribution"] = _why_no_count(solution, None, "distribution")
    return d.ConcurrencyPart(
        mean=shown["mean"],
        p50=shown["p50"],
        p95=shown["p95"],
        max=shown["max"],
        mean_range=ranges["mean_range"],
        p50_range=ranges["p50_range"],
        p95_range=ranges["p95_range"],
        max_range=ranges["max_range"],
        distribution=None if spread is None else _distribution(solution, spread, low, high),
        binds=binding(solution),
        cap=held.cap,
        cap_name=held.cap_name,
        shortfall=shortfall_of(solution),
    )


def _shown(solution: Solution, value: int | None, ends: tuple[int, int] | None) -> int | None:
    return None if solution.banded and ends is not None and ends[0] != ends[1] else value


def _why_no_count(solution: Solution, value: int | None, name: str) -> str:
    if solution.pool is None:
        return solution.budget.kv.reason or "the pool is not known"
    if value is not None:
        return f"the budget is a range: see {name}_range"
    if solution.request.lengths is None:
        return (
            "no --lengths were given" if name != "max" else "no context limit is known: give --max-model-len"
        )
    return "this pool cannot be counted in requests"


def _distribution(solution: Solution, spread: Spread, low: Capacity, high: Capacity) -> d.DistributionPart:
    ends = [side.spread.max_num_seqs for side in (low, high) if side.spread is not None]
    return d.DistributionPart(
        max_num_seqs=spread.max_num_seqs,
        max_num_seqs_range=(min(ends, default=spread.max_num_seqs), max(ends, default=spread.max_num_seqs)),
        preemption_probability=spread.preemption_probability,
        mean_bound=spread.mean_bound,
        fits=[d.FitPoint(requests=n, probability=round(p, 6)) for n, p in spread.fits],
        share_longer_than_pool=round(spread.over_pool, 6),
        method=spread.method,
    )


def _replay(solution: Solution, reasons: dict[str, str]) -> ReplayPart | None:
    from kvprobe.plan.simulate.in_plan import replay_part

    found = replay_part(solution)
    if isinstance(found, ReplayPart):
        return found
    reasons["replay"] = found
    return None


def _lengths(lengths: Lengths | None) -> d.LengthsPart | None:
    if lengths is None:
        return None
    return d.LengthsPart(
        spec=lengths.spec,
        source=lengths.source,
        requests=lengths.requests,
        mean_tokens=round(lengths.mean_tokens, 3),
        p50_tokens=lengths.p50_tokens,
        p95_tokens=lengths.p95_tokens,
        max_tokens=lengths.max_tokens,
    )


def _row(row: object) -> d.WhatIfRow:
    return d.WhatIfRow(**{name: getattr(row, name) for name in d.WhatIfRow.__struct_fields__})


def _rung(rung: object) -> d.LadderRung:
    return d.LadderRung(**{name: getattr(rung, name) for name in d.LadderRung.__struct_fields__})


def _flags(advice: Advice) -> d.FlagsPart:
    return d.FlagsPart(
        recommended=[d.FlagRow(name=f.name, value=f.value, why=f.why) for f in advice.flags],
        left_out=[d.LeftOutRow(name=f.name, why=f.why) for f in advice.left_out],
        shell=write.shell(advice),
        yaml=write.yaml(advice),
        diff=[
            d.DiffRow(name=x.name, change=x.change, running=x.running, recommended=x.recommended)
            for x in write.diff(advice)
        ],
        note=advice.note,
    )
