"""Numbers that look like the classic mistakes, and settings that work against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvprobe.model.spec import Attention
from kvprobe.plan.claims import PlanWarning, claimed
from kvprobe.plan.ladder import MOST_SHARE, smallest_utilisation
from kvprobe.plan.pool import ByteRange
from kvprobe.plan.solve import Solution
from kvprobe.plan.unused import unused
from kvprobe.summary.units import percent, size, whole

FOUR_BIT = ("gptq", "awq", "nvfp4", "mxfp4", "bitsandbytes", "4bit", "int4", "q4", "w4a16", "fp4")
LOW_BIT_CACHE = ("nvfp4", "q4_0", "q4_1", "iq4_nl")


Check = Callable[[Solution], Iterator[PlanWarning]]


def warnings_of(solution: Solution, claim: ByteRange | None = None) -> tuple[PlanWarning, ...]:
    """All warnings of one plan, the ones about claimed numbers first."""
    found = list(claimed(solution, claim)) if claim is not None else []
    for check in (
        _oversubscribed,
        _weights,
        _cache_format,
        _utilisation,
        _context,
        _shorter_than_the_prefix,
        _splits,
        _shared_k_v,
        _fitting,
        unused,
    ):
        found += check(solution)
    return tuple(found)


def _weights(solution: Solution) -> Iterator[PlanWarning]:
    """`--weights` that differ from the files by a telling factor."""
    request, given = solution.request, solution.request.weights
    known = request.spec.weight_bytes
    if given is None or known is None:
        return
    ratio = given.nominal * request.ranks / known
    for factor, text in ((10**9 / 2**30, "GB taken for GiB"), (2**30 / 10**9, "GiB taken for GB")):
        if abs(ratio / factor - 1) < 0.01:
            yield PlanWarning(
                code="gb_for_gib",
                text=(
                    f"--weights is {size(given.nominal)}, the files hold "
                    f"{size(known / request.ranks)}: off by {abs(1 - ratio) * 100:.1f} %, as with "
                    f"{text}"
                ),
                fix="give the size with its true unit; 1 GiB is 1.074 GB",
            )


def _cache_format(solution: Solution) -> Iterator[PlanWarning]:
    request = solution.request
    quantization = (request.spec.quantization or "").lower()
    four_bit = any(word in quantization for word in FOUR_BIT)
    low = {request.options.kv_dtype_k, request.options.kv_dtype_v} & set(LOW_BIT_CACHE)
    if four_bit and low:
        yield PlanWarning(
            code="weight_bits",
            text=(
                f"the weights are quantised ({request.spec.quantization}) and the cache is asked "
                f"for at {', '.join(sorted(low))}: are these two decisions?"
            ),
            fix=(
                "4-bit weights leave the cache at 16 bit; use --kv-dtype auto unless the server "
                "is started with that cache format"
            ),
        )
    elif four_bit and request.options.kv_dtype_k == "auto":
        yield PlanWarning(
            code="cache_keeps_its_format",
            text=(
                f"the weights are quantised ({request.spec.quantization}); the cache still takes "
                f"{solution.cost.k.name}: {solution.cost.bytes_per_token:,} bytes a token"
            ),
            fix="a smaller cache has to be switched on: --kv-dtype fp8",
        )


def _utilisation(solution: Solution) -> Iterator[PlanWarning]:
    """A share of the TOTAL memory that is more than what is free; a share that no setting can mend."""
    request, budget = solution.request, solution.budget
    total, allowed = budget.total.value, budget.utilisation.value
    if request.engine != "vllm" or total is None or allowed is None:
        return
    free = request.free_memory
    if free is not None and allowed.nominal > free.nominal:
        held = total.nominal - free.nominal
        most = int(free.nominal / total.nominal * 100) / 100
        yield PlanWarning(
            code="utilisation_above_free",
            text=(
                f"{size(held)} of {size(total.nominal)} are already held by others; utilisation is "
                f"a share of the total, {size(allowed.nominal)} are asked for"
            ),
            fix=f"use --gpu-memory-utilization {most:g} at most, or stop what holds the memory",
        )
    kv = budget.kv.value
    if kv is not None and kv.hi <= 0:
        yield from _cannot_start(solution, total.nominal, allowed.nominal - kv.nominal)


def _cannot_start(solution: Solution, total: int, taken: int) -> Iterator[PlanWarning]:
    tokens = solution.wanted_tokens()
    least = smallest_utilisation(solution, tokens)
    if taken >= MOST_SHARE * total or (least is not None and least > MOST_SHARE):
        yield PlanWarning(
            code="weights_too_large",
            text=(
                f"raising the utilisation cannot help: weights and work space take {size(taken)} "
                f"of {size(total)}"
            ),
            fix=(
                "smaller weights (quantise), --tensor-parallel-size 2, or a smaller "
                "--max-num-batched-tokens, in this order"
            ),
        )
    elif least is not None:
        yield PlanWarning(
            code="utilisation_too_low",
            text=f"weights and work space take {size(taken)}, more than the share allowed",
            fix=f"one request of {whole(tokens)} tokens fits from --gpu-memory-utilization {least:.2f} on",
        )


def _context(solution: Solution) -> Iterator[PlanWarning]:
    request = solution.request
    asked, model, lengths = request.options.max_model_len, request.spec.max_position_tokens, request.lengths
    if asked is not None and model is not None and asked > model:
        yield PlanWarning(
            code="context_above_model",
            text=f"--max-model-len {whole(asked)} is more than the model's {whole(model)} positions",
            fix="engines refuse it unless rope scaling is configured",
        )
    limit = asked or model
    if lengths is not None and limit is not None and lengths.max_tokens > limit:
        over = sum(w for t, w in zip(lengths.tokens, lengths.weights, strict=True) if t > limit)
        yield PlanWarning(
            code="lengths_above_context",
            text=(
                f"{percent(over)} of requests are longer than the context limit of {whole(limit)} "
                "tokens and will be refused or cut"
            ),
            fix="raise --max-model-len where the model allows it, or shorten prompts",
        )


def _shorter_than_the_prefix(solution: Solution) -> Iterator[PlanWarning]:
    prefix, lengths = solution.request.shared_prefix_tokens, solution.request.lengths
    if lengths is None or not prefix or lengths.tokens[0] > prefix:
        return
    under = sum(w for t, w in zip(lengths.tokens, lengths.weights, strict=True) if t <= prefix)
    yield PlanWarning(
        code="shorter_than_prefix",
        text=(
            f"{percent(under)} of requests are no longer than the shared prefix of {whole(prefix)} tokens; "
            "they are counted as holding next to nothing of their own"
        ),
        fix="give --lengths with the prefix counted in: prompt + answer",
    )


def _splits(solution: Solution) -> Iterator[PlanWarning]:
    request, tp = solution.request, solution.request.options.tp
    heads = [m.kv_heads for layer in request.spec.owning() for m in layer.mixers if isinstance(m, Attention)]
    if heads and tp > min(heads):
        yield PlanWarning(
            code="heads_repeated",
            text=(
                f"the model has {min(heads)} KV heads: over {tp} GPUs they are repeated, the cache "
                f"per GPU is that of TP {min(heads)}"
            ),
            fix=f"use --tp {min(heads)} and more instances",
        )


def _shared_k_v(solution: Solution) -> Iterator[PlanWarning]:
    raw = solution.request.spec.raw
    text = raw.get("text_config")
    nested = text.get("attention_k_eq_v") if isinstance(text, dict) else None
    if raw.get("attention_k_eq_v") or nested:
        yield PlanWarning(
            code="k_and_v_both_stored",
            text=(
                "attention_k_eq_v is set: engines store K and V all the same; halving the cache is a mistake"
            ),
            fix=None,
        )


def _fitting(solution: Solution) -> Iterator[PlanWarning]:
    spread = solution.safe_capacity.spread
    if spread is None or solution.request.lengths is None:
        return
    if spread.over_pool > 0:
        yield PlanWarning(
            code="longer_than_pool",
            text=f"{percent(spread.over_pool)} of requests are longer than the whole pool",
            fix="a larger pool, or a --max-model-len below it",
        )
    if spread.max_num_seqs and spread.mean_bound > 1.15 * spread.max_num_seqs:
        yield PlanWarning(
            code="mean_misleads",
            text=(
                f"by the mean length {whole(spread.mean_bound)} requests fit; with these lengths "
                f"only {whole(spread.max_num_seqs)} do so "
                f"{percent(1 - spread.preemption_probability)} of the time"
            ),
            fix="set the limit by the distribution",
        )


def _oversubscribed(solution: Solution) -> Iterator[PlanWarning]:
    """llama.cpp's slots over one shared cache: each advertises all of it."""
    pool = solution.pool
    if pool is None or pool.engine != "llama.cpp" or (pool.max_requests or 1) < 2 or not pool.tokens:
        return
    if pool.max_model_len == pool.tokens:
        yield PlanWarning(
            code="oversubscribed",
            text=f"{pool.max_requests} slots each advertise {whole(pool.tokens)} tokens over one cache of "
            f"{whole(pool.tokens)}: {pool.max_requests:.1f} times oversubscribed",
            fix="when it is full, requests end with an error: raise --ctx, or --no-kv-unified",
        )
