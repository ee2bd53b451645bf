"""The same plan with one thing changed: each row of the table is solved anew, by the engine's own rule.

Rows are what a person would try next. Where a change cannot be worked out (the size of the weights is not
known, the engine has no such format), the row says so and has no numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvprobe.errors import UsageError
from kvprobe.model.spec import Attention, Layer, Mixer, ModelSpec
from kvprobe.plan.lengths import Lengths
from kvprobe.plan.pool import ByteRange
from kvprobe.plan.request import PlanRequest
from kvprobe.plan.solve import Solution, solve_quickly
from kvprobe.plan.weights_split import resplit
from kvprobe.summary.units import size, whole

DEFAULT_PREFIX_TOKENS = 2_048
DEFAULT_WINDOW_TOKENS = 4_096
TENSOR_SPLITS = (2, 4, 8)
_GGML = ("q8_0", "q4_0")
_KV_CHOICES: dict[str | None, tuple[str, ...]] = {
    None: ("fp8", "int8"),
    "vllm": ("fp8", "int8_per_token_head"),
    "sglang": ("fp8",),
    "llama.cpp": _GGML,
    "trtllm": ("fp8", "int8"),
    "lmdeploy": ("int8",),
    "transformers": ("int8",),
    "reference": ("fp8", "int8"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """One row. Counts are those that can be relied on: the lower end where the budget is a band. `reason`
    says why there are none; `note` what goes with the change."""

    id: str
    change: str
    pool_tokens: int | None = None
    kv_bytes: int | None = None
    mean: int | None = None
    p50: int | None = None
    p95: int | None = None
    max: int | None = None
    max_num_seqs: int | None = None
    note: str | None = None
    reason: str | None = None


Maker = Callable[[PlanRequest, Solution], Iterator[WhatIf]]


def what_ifs(solution: Solution) -> tuple[WhatIf, ...]:
    """The table; its first row is the plan as it stands."""
    request = solution.request
    rows = [_row("as_planned", "as planned", request)]
    for maker in (_weights, _formats, _blocks, _context, _splits, _next_gpu, _prefix, _window, _dedicated):
        rows += maker(request, solution)
    return tuple(rows)


def _row(id_: str, change: str, request: PlanRequest, note: str | None = None) -> WhatIf:
    """Solve the changed request; settings that do not go together make a row without numbers."""
    try:
        solved = solve_quickly(request)
    except UsageError as error:
        return WhatIf(id=id_, change=change, reason=error.problems[0].message)
    pool, held = solved.safe_pool, solved.safe_capacity
    if pool is None:
        return WhatIf(id=id_, change=change, reason=solved.budget.kv.reason or "the budget is not known")
    kv = solved.budget.kv.value
    return WhatIf(
        id=id_,
        change=change,
        pool_tokens=pool.tokens if pool.tokens is not None else pool.full_tokens,
        kv_bytes=None if kv is None else (kv.lo if solved.banded else kv.nominal),
        mean=held.mean,
        p50=held.p50,
        p95=held.p95,
        max=held.max,
        max_num_seqs=held.spread.max_num_seqs if held.spread is not None else None,
        note=note,
    )


def _weights(request: PlanRequest, solution: Solution) -> Iterator[WhatIf]:
    weights = solution.budget.weights.value
    if request.available_kv is not None:
        if weights is None:
            return
        more = _plus(request.available_kv, weights.nominal // 2)
        changed = dataclasses.replace(request, available_kv=more)
    elif weights is None:
        yield WhatIf(id="weights_half", change="weights at half", reason=solution.budget.weights.reason)
        return
    elif request.free_memory is not None and request.engine != "vllm":
        changed = dataclasses.replace(request, free_memory=_plus(request.free_memory, weights.nominal // 2))
    else:
        changed = dataclasses.replace(request, weights=weights.scaled(0.5))
    freed = size(weights.nominal / 2)
    yield _row(
        "weights_half", "weights at half the bytes", changed, f"all of the {freed} freed go to the cache"
    )


def _plus(amount: ByteRange, more: int) -> ByteRange:
    exact = None if amount.exact is None else amount.exact + more
    return ByteRange(amount.lo + more, amount.hi + more, exact)


def _formats(request: PlanRequest, solution: Solution) -> Iterator[WhatIf]:
    for name in _KV_CHOICES.get(request.engine, ()):
        if name == request.options.kv_dtype_k == request.options.kv_dtype_v:
            continue
        options = dataclasses.replace(request.options, kv_dtype_k=name, kv_dtype_v=name)
        yield _row(
            f"kv_{name}",
            f"KV at {name}",
            dataclasses.replace(request, options=options),
            "capacity, not speed; check answers on long contexts first",
        )


def _blocks(request: PlanRequest, solution: Solution) -> Iterator[WhatIf]:
    if request.engine not in (None, "vllm", "reference", "trtllm", "lmdeploy"):
        return
    now = request.options.block_size or (solution.pool.block_size if solution.pool is not None else None)
    if now is None or (request.engine == "vllm" and solution.cost.constant):
        return  # the block of a hybrid follows from its state
    choices = {None: (8, 16, 32), "vllm": (16, 32, 64), "trtllm": (32, 64), "lmdeploy": (64, 128)}
    for block in choices.get(request.engine, (8, 16, 32)):
        if block != now:
            options = dataclasses.replace(request.options, block_size=block)
            tails = (
                "smaller tails, more table entries" if block < now else "larger tails, fewer table entries"
            )
            yield _row(
                f"block_{block}", f"blocks of {block}", dataclasses.replace(request, options=options), tails
            )


def _context(request: PlanRequest, solution: Solution) -> Iterator[WhatIf]:
    context = request.context_tokens()
    if context is None or context < 2:
        return
    half = context // 2
    if request.engine == "llama.cpp" and request.options.ctx:
        options = dataclasses.replace(request.options, ctx=half)
    else:
        options = dataclasses.replace(request.options, max_model_len=half)
    changed = dataclasses.replace(request, options=options)
    note = None
    if request.lengths is not None:
        over = sum(
            w for t, w in zip(request.lengths.tokens, request.lengths.weights, strict=True) if t > half
        )
        note = (
            f"{100 * over:.1f} % of requests are longer and would be cut or refused"
            if over
            else "no request is longer"
        )
    yield _row("context_half", f"context limit {whole(half)}", changed, note)


def _splits(request: PlanRequest, solution: Solution) -> Iterator[WhatIf]:
    for tp in TENSOR_SPLITS:
        if tp == request.options.tp:
            continue
        if request.available_kv is not None or (request.free_memory is not None and request.engine != "vllm"):
            yield WhatIf(
                id=f"tp_{tp}",
                change=f"TP {tp}",
                reason="the memory given is that of the present split: give --gpu and --weights",
            )
            continue
        options = dataclasses.replace(request.options, tp=tp)
        changed = resplit(dataclasses.replace(request, options=options), request.options.tp, tp)
        heads = _fewest_heads(request.spec)
        note = (
            f"{heads} KV heads: beyond TP {heads} they are repeated, the cache per GPU shrinks no more"
            if heads is not None and tp > heads
            else None
        )
        yield _row(f"tp_{tp}", f"TP {tp}", changed, note)


def _fewest_heads(spec: ModelSpec) -> int | None:
    heads = [m.kv_heads for layer in spec.owning() for m in layer.mixers if isinstance(m, Attention)]
    return min(heads, default=None)


def _next_gpu(request: PlanRequest, solution: Solution) -> Iterator[WhatIf]:
    if request.total is None or request.available_kv is not None or request.free_memory is not None:
        return
    from kvprobe.model.devices import next_larger

    larger = next_larger(request.total.nominal)
    if larger is None:
        yield WhatIf(id="next_gpu", change="next GPU up", reason="no larger one is in the table")
        return
    changed = dataclasses.replace(
        request, total=ByteRange.of(larger.memory_bytes), total_source="table", gpu=larger.name
    )
    yield _row("next_gpu", f"next GPU up: {larger.name} ({size(larger.memory_bytes)})", changed)


def _prefix(request: PlanRequest, solution: Solution) -> Iterator[WhatIf]:
    tokens = request.shared_prefix_tokens
    if tokens:
        without = dataclasses.replace(request, shared_prefix_tokens=0)
        yield _row("no_shared_prefix", "no shared prefix", without)
        return
    shortest = request.lengths.p50_tokens if request.lengths is not None else request.context_tokens()
    if shortest is None or shortest <= DEFAULT_PREFIX_TOKENS:
        tokens = (shortest or 0) // 2
    else:
        tokens = DEFAULT_PREFIX_TOKENS
    if tokens:
        yield _row(
            "shared_prefix",
            f"a prefix of {whole(tokens)} tokens shared by all",
            dataclasses.replace(request, shared_prefix_tokens=tokens),
            "held once, in whole blocks; only if the tokens are the same from the first on",
        )


def _window(request: PlanRequest, solution: Solution) -> Iterator[WhatIf]:
    context = request.context_tokens()
    window = DEFAULT_WINDOW_TOKENS
    if not any(_full(m) for layer in request.spec.owning() for m in layer.mixers) or (context or 0) <= window:
        return
    spec = dataclasses.replace(request.spec, layers=tuple(_windowed(x, window) for x in request.spec.layers))
    yield _row(
        "window",
        f"a sliding window of {whole(window)} in every layer",
        dataclasses.replace(request, spec=spec),
        "another model: this one was not trained so; tokens past the window are forgotten",
    )


def _full(mixer: Mixer) -> bool:
    return isinstance(mixer, Attention) and mixer.kind == "full"


def _windowed(layer: Layer, window: int) -> Layer:
    mixers = tuple(
        dataclasses.replace(m, kind="sliding", window_tokens=window)
        if isinstance(m, Attention) and _full(m)
        else m
        for m in layer.mixers
    )
    return dataclasses.replace(layer, mixers=mixers)


def _dedicated(request: PlanRequest, solution: Solution) -> Iterator[WhatIf]:
    """Two instances of the same kind: one for requests up to P95, one for the longer ones."""
    lengths = request.lengths
    if lengths is None or len(lengths.tokens) < 2:
        return
    at = lengths.p95_tokens
    short, long = lengths.split(at)
    if short is None or long is None:
        return
    for id_, which, part in (
        ("dedicated_short", f"up to {whole(at)}", short),
        ("dedicated_long", f"above {whole(at)}", long),
    ):
        yield _dedicated_row(id_, which, request, part, lengths)


def _dedicated_row(
    id_: str, which: str, request: PlanRequest, part: Lengths, whole_lengths: Lengths
) -> WhatIf:
    share = sum(
        w
        for t, w in zip(whole_lengths.tokens, whole_lengths.weights, strict=True)
        if part.tokens[0] <= t <= part.tokens[-1]
    )
    return _row(
        id_,
        f"an instance of its own for requests {which} tokens",
        dataclasses.replace(request, lengths=part),
        f"{100 * share:.1f} % of requests",
    )
