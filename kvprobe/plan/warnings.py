"""Numbers that look like the classic mistakes, and settings that work against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from kvprobe.model.spec import Attention, Latent
from kvprobe.plan.pool import ByteRange
from kvprobe.plan.request import PlanRequest
from kvprobe.plan.solve import Solution
from kvprobe.summary.units import percent, size, whole

CLOSE = 0.03
"""How near a claimed number must come to a mistaken one to be explained by it."""
FOUR_BIT = ("gptq", "awq", "nvfp4", "mxfp4", "bitsandbytes", "4bit", "int4", "q4", "w4a16", "fp4")
LOW_BIT_CACHE = ("nvfp4", "q4_0", "q4_1", "iq4_nl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Warning_:
    """`code` is stable; `text` says what was seen with its numbers; `fix` what to do."""

    code: str
    text: str
    fix: str | None = None


Check = Callable[[Solution], Iterator[Warning_]]


def warnings_of(solution: Solution, claim: ByteRange | None = None) -> tuple[Warning_, ...]:
    """All warnings of one plan, the ones about claimed numbers first."""
    found = list(_claimed(solution, claim)) if claim is not None else []
    for check in (_weights, _cache_format, _utilisation, _context, _splits, _shared_k_v, _fitting, _unused):
        found += check(solution)
    return tuple(found)


# ---- a number that the user was told ----


def _claimed(solution: Solution, claim: ByteRange) -> Iterator[Warning_]:
    """Which mistake, if any, turns the true number into the one claimed."""
    tokens = solution.request.options.tokens
    cost = solution.cost
    true = Fraction(cost.bytes_at(tokens)) if tokens else (cost.growing or cost.early)
    about = f"{whole(tokens)} tokens" if tokens else "one token"
    claimed = claim.nominal
    if not true or not claimed:
        return
    ratio = float(claimed / true)
    said = f"{whole(claimed)} bytes for {about}, against {float(true):,.0f} here ({ratio:.3g} times)"
    if abs(ratio - 1) <= 0.005:
        return
    for factor, code, text, fix in _mistakes(solution):
        if abs(ratio / factor - 1) <= CLOSE / 3:
            yield Warning_(code=code, text=f"{said}: {text}", fix=fix)
            return
    yield Warning_(
        code="claim_differs",
        text=f"{said}: no classic mistake explains it",
        fix="ask where the number comes from",
    )


def _mistakes(solution: Solution) -> Iterator[tuple[float, str, str, str]]:
    """Factor by which each mistake is off, its id, what it is, what to do."""
    spec, cost = solution.request.spec, solution.cost
    heads = {m.kv_heads for layer in spec.owning() for m in layer.mixers if isinstance(m, Attention)}
    if len(heads) == 1 and (kv_heads := next(iter(heads))) and spec.query_heads > kv_heads:
        fix = f"use num_key_value_heads ({kv_heads}), not num_attention_heads ({spec.query_heads})"
        yield spec.query_heads / kv_heads, "query_heads", "query heads were counted for KV heads", fix
    attention = [m for layer in spec.owning() for m in layer.mixers if isinstance(m, Attention)]
    derived = spec.hidden_size / spec.query_heads if spec.query_heads else 0
    dims = {m.k_dim for m in attention}
    if len(dims) == 1 and derived and abs(derived / (dim := next(iter(dims))) - 1) > 0.01:
        yield (
            derived / dim,
            "head_dim",
            "head_dim was derived from the hidden size",
            f"the configuration says head_dim {dim}",
        )
    yield 10**9 / 2**30, "gb_for_gib", "GB was written for GiB, or GiB counted as GB", "1 GiB is 1.074 GB"
    yield 2**30 / 10**9, "gb_for_gib", "GiB was written for GB", "1 GiB is 1.074 GB"
    yield (
        0.25,
        "weight_bits",
        "4-bit weights were taken for a 4-bit cache",
        "the cache keeps its own format: 16 bit unless --kv-dtype says otherwise",
    )
    yield (
        0.5,
        "k_or_v_left_out",
        "only K (or only V) was counted, or an 8-bit cache was assumed",
        "K and V are both stored, also where attention_k_eq_v is set; an 8-bit cache has to be switched on",
    )
    yield (
        2.0,
        "doubled",
        "K and V were counted twice, or a 32-bit cache was assumed",
        "the cache has the model's dtype",
    )
    if any(isinstance(m, Latent) for layer in spec.owning() for m in layer.mixers):
        yield (
            1 / solution.request.options.tp,
            "latent_split",
            "the MLA latent was divided by the tensor-parallel size",
            "every rank holds the whole latent",
        )
        yield from _decompressed(solution)
    if cost.windowed or cost.constant:
        layers = len(spec.layers)
        owning = sum(1 for p in cost.parts if p.window_tokens is None and p.bytes_per_token)
        grown = sum(p.layers for p in cost.parts if p.window_tokens is None and p.bytes_per_token)
        if owning and grown:
            yield (
                layers / grown,
                "all_layers_full",
                "every layer was counted as full attention",
                f"{grown} of {layers} layers keep all tokens",
            )


def _decompressed(solution: Solution) -> Iterator[tuple[float, str, str, str]]:
    spec, cost = solution.request.spec, solution.cost
    plain = sum(
        m.plain.kv_heads * (m.plain.k_dim + m.plain.v_dim)
        for layer in spec.owning()
        for m in layer.mixers
        if isinstance(m, Latent)
    )
    true = float(cost.growing)
    if plain and true:
        factor = plain * float(cost.k.bytes_per_element) / true
        yield (
            factor,
            "mla_as_heads",
            "MLA was counted as ordinary heads",
            "engines keep the compressed latent",
        )


# ---- numbers of the request ----


def _weights(solution: Solution) -> Iterator[Warning_]:
    """`--weights` that differ from the files by a telling factor."""
    request, given = solution.request, solution.request.weights
    known = request.spec.weight_bytes
    if given is None or known is None:
        return
    ratio = given.nominal * request.ranks / known
    for factor, text in ((10**9 / 2**30, "GB taken for GiB"), (2**30 / 10**9, "GiB taken for GB")):
        if abs(ratio / factor - 1) < 0.01:
            yield Warning_(
                code="gb_for_gib",
                text=f"--weights is {size(given.nominal)}, the files hold {size(known / request.ranks)}: off by {abs(1 - ratio) * 100:.1f} %, as with {text}",
                fix="give the size with its true unit; 1 GiB is 1.074 GB",
            )


def _cache_format(solution: Solution) -> Iterator[Warning_]:
    request = solution.request
    quantization = (request.spec.quantization or "").lower()
    four_bit = any(word in quantization for word in FOUR_BIT)
    low = {request.options.kv_dtype_k, request.options.kv_dtype_v} & set(LOW_BIT_CACHE)
    if four_bit and low:
        yield Warning_(
            code="weight_bits",
            text=f"the weights are quantised ({request.spec.quantization}) and the cache is asked for at {', '.join(sorted(low))}: are these two decisions?",
            fix="4-bit weights leave the cache at 16 bit; use --kv-dtype auto unless the server is started with that cache format",
        )
    elif four_bit and request.options.kv_dtype_k == "auto":
        yield Warning_(
            code="cache_keeps_its_format",
            text=f"the weights are quantised ({request.spec.quantization}); the cache still takes {solution.cost.k.name}: {solution.cost.bytes_per_token:,} bytes a token",
            fix="a smaller cache has to be switched on: --kv-dtype fp8",
        )


def _utilisation(solution: Solution) -> Iterator[Warning_]:
    """A share of the TOTAL memory that is more than what is free; a share that no setting can mend."""
    request, budget = solution.request, solution.budget
    total, allowed = budget.total.value, budget.utilisation.value
    if request.engine != "vllm" or total is None or allowed is None:
        return
    free = request.free_memory
    if free is not None and allowed.nominal > free.nominal:
        held = total.nominal - free.nominal
        most = int(free.nominal / total.nominal * 100) / 100
        yield Warning_(
            code="utilisation_above_free",
            text=f"{size(held)} of {size(total.nominal)} are already held by others; utilisation is a share of the total, {size(allowed.nominal)} are asked for",
            fix=f"use --gpu-memory-utilization {most:g} at most, or stop what holds the memory",
        )
    kv = budget.kv.value
    if kv is not None and kv.hi <= 0:
        yield from _cannot_start(solution, total.nominal, allowed.nominal - kv.nominal)


def _cannot_start(solution: Solution, total: int, taken: int) -> Iterator[Warning_]:
    from kvprobe.plan.ladder import smallest_utilisation

    tokens = solution.wanted_tokens()
    least = smallest_utilisation(solution, tokens)
    if taken >= 0.97 * total or (least is not None and least > 0.97):
        yield Warning_(
            code="weights_too_large",
            text=f"raising the utilisation cannot help: weights and work space take {size(taken)} of {size(total)}",
            fix="smaller weights (quantise), --tensor-parallel-size 2, or a smaller --max-num-batched-tokens, in this order",
        )
    elif least is not None:
        yield Warning_(
            code="utilisation_too_low",
            text=f"weights and work space take {size(taken)}, more than the share allowed",
            fix=f"one request of {whole(tokens)} tokens fits from --gpu-memory-utilization {least:.2f} on",
        )


def _context(solution: Solution) -> Iterator[Warning_]:
    request = solution.request
    asked, model, lengths = request.options.max_model_len, request.spec.max_position_tokens, request.lengths
    if asked is not None and model is not None and asked > model:
        yield Warning_(
            code="context_above_model",
            text=f"--max-model-len {whole(asked)} is more than the model's {whole(model)} positions",
            fix="engines refuse it unless rope scaling is configured",
        )
    limit = asked or model
    if lengths is not None and limit is not None and lengths.max_tokens > limit:
        over = sum(w for t, w in zip(lengths.tokens, lengths.weights, strict=True) if t > limit)
        yield Warning_(
            code="lengths_above_context",
            text=f"{percent(over)} of requests are longer than the context limit of {whole(limit)} tokens and will be refused or cut",
            fix="raise --max-model-len where the model allows it, or shorten prompts",
        )


def _splits(solution: Solution) -> Iterator[Warning_]:
    request, tp = solution.request, solution.request.options.tp
    heads = [m.kv_heads for layer in request.spec.owning() for m in layer.mixers if isinstance(m, Attention)]
    if heads and tp > min(heads):
        yield Warning_(
            code="heads_repeated",
            text=f"the model has {min(heads)} KV heads: over {tp} GPUs they are repeated, the cache per GPU is that of TP {min(heads)}",
            fix=f"use --tp {min(heads)} and more instances",
        )


def _shared_k_v(solution: Solution) -> Iterator[Warning_]:
    raw = solution.request.spec.raw
    text = raw.get("text_config")
    nested = text.get("attention_k_eq_v") if isinstance(text, dict) else None
    if raw.get("attention_k_eq_v") or nested:
        yield Warning_(
            code="k_and_v_both_stored",
            text="attention_k_eq_v is set: engines store K and V all the same; halving the cache is a mistake",
            fix=None,
        )


def _fitting(solution: Solution) -> Iterator[Warning_]:
    spread = solution.safe_capacity.spread
    if spread is None or solution.request.lengths is None:
        return
    if spread.over_pool > 0:
        yield Warning_(
            code="longer_than_pool",
            text=f"{percent(spread.over_pool)} of requests are longer than the whole pool",
            fix="a larger pool, or a --max-model-len below it",
        )
    if spread.max_num_seqs and spread.mean_bound > 1.15 * spread.max_num_seqs:
        yield Warning_(
            code="mean_misleads",
            text=f"by the mean length {whole(spread.mean_bound)} requests fit; with these lengths only {whole(spread.max_num_seqs)} do so {percent(1 - spread.preemption_probability)} of the time",
            fix="set the limit by the distribution",
        )


_UNUSED: tuple[tuple[str, str, Callable[[PlanRequest], bool], str], ...] = (
    (
        "margin",
        "--margin",
        lambda r: r.engine in ("vllm", "sglang", "trtllm", "lmdeploy"),
        "lower the engine's own share instead",
    ),
    (
        "utilisation",
        "--gpu-memory-utilization",
        lambda r: r.engine not in ("vllm", "reference"),
        "it is a setting of vLLM: name the engine with --engine vllm",
    ),
    (
        "mem_fraction_static",
        "--mem-fraction-static",
        lambda r: r.engine != "sglang",
        "it is a setting of SGLang",
    ),
    (
        "kv_fraction",
        "--kv-fraction",
        lambda r: r.engine not in ("trtllm", "lmdeploy"),
        "it is a setting of TensorRT-LLM and LMDeploy",
    ),
)


def _unused(solution: Solution) -> Iterator[Warning_]:
    request = solution.request
    for field, option, unused, fix in _UNUSED:
        if getattr(request, field) is not None and (request.available_kv is not None or unused(request)):
            why = "--available-kv overrides it" if request.available_kv is not None else fix
            yield Warning_(code="not_used", text=f"{option} has no part in this budget", fix=why)
