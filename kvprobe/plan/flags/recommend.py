"""The flags to start a server with, each with the number that it comes from.

Only what the plan computed or the user said is recommended: a flag whose right value needs a measurement (a
prefill speed, a latency target) is named among those left out, with what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kvprobe.model.dtypes import kv_dtype
from kvprobe.plan.engines.versions import parse_version
from kvprobe.plan.flags.table import ALIASES, FLAGS
from kvprobe.plan.ladder import MOST_SHARE, smallest_utilisation
from kvprobe.plan.solve import Solution
from kvprobe.summary.units import size, whole

CONTEXT_STEP = 16
Wish = tuple[str, str | None, str]
"""Flag, value (null for a switch), the number that it comes from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    name: str
    value: str | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """`flags` in the order to write them; `left_out` what was wanted and cannot be given."""

    engine: str | None
    flags: tuple[Recommended, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    note: str | None = None
    running: dict[str, str] = field(default_factory=dict)


def advise(solution: Solution) -> Advice:
    """Flags for the engine and version of the plan."""
    request = solution.request
    engine = request.engine
    if engine is None:
        return Advice(engine=None, note="flags belong to an engine: name one with --engine")
    if engine not in FLAGS:
        return Advice(engine=engine, note=f"{engine} is a library and has no command line of its own")
    if solution.fits() is False and not _mendable(solution):
        return Advice(engine=engine, note="nothing fits: no flag mends that, see `what if`")
    version = parse_version(engine, request.engine_version)
    wanted = _WISHES[engine](solution)
    kept, dropped = [], []
    for name, value, why in wanted:
        problem = FLAGS[engine][name].missing_in(version, value)
        if problem:
            dropped.append(LeftOut(name=name, why=problem))
        else:
            kept.append(Recommended(name=name, value=value, why=why))
    if (lacking := _no_such_format(solution, kept)) is not None:
        note = f"no flags: {lacking}, and without that format less fits than this plan says"
        return Advice(engine=engine, left_out=tuple(dropped), note=note)
    dropped += [LeftOut(name=name, why=why) for name, why in _unknown(engine, solution)]
    spelled = ALIASES.get(engine, {})
    running = {spelled.get(name, name): value for name, value in request.running.items()}
    return Advice(engine=engine, flags=tuple(kept), left_out=tuple(dropped), running=running)


_FORMAT_FLAGS = {"vllm": "kv-cache-dtype", "sglang": "kv-cache-dtype", "lmdeploy": "quant-policy"}


def _no_such_format(solution: Solution, kept: Sequence[Recommended]) -> str | None:
    """Why this version cannot keep its cache as the plan counts it; null when it can.

    A command line without the format would promise what only the smaller cache holds.
    """
    engine, options, cost = solution.request.engine or "", solution.request.options, solution.cost
    flag = _FORMAT_FLAGS.get(engine)
    own = kv_dtype("auto", model_dtype=solution.request.spec.dtype).name
    asked = {options.kv_dtype_k, options.kv_dtype_v} - {"auto", own}
    if flag is None or not asked:
        return None
    if cost.k.name != cost.v.name:
        return f"{engine} has one format for K and V"
    if all(one.name != flag for one in kept):
        return f"this version of {engine} has no cache format {' or '.join(sorted(asked))}"
    return None


def _mendable(solution: Solution) -> bool:
    """Would a flag make it fit: a larger share of the memory, or a shorter context?"""
    least = smallest_utilisation(solution, solution.wanted_tokens())
    return (least is not None and least <= MOST_SHARE) or bool(_longest(solution))


def context_wanted(solution: Solution) -> tuple[int | None, str]:
    """The context limit to set: as said, else what the lengths need, else the model's; never more than the
    pool surely holds, at the lower end of what the inputs leave open."""
    wanted, why = _context_asked(solution)
    longest = _longest(solution)
    if wanted and longest and longest < wanted and not _share_raised(solution):
        return (
            longest,
            f"the pool holds one request of at most {whole(longest)} tokens ({why}: {whole(wanted)})",
        )
    return wanted, why


def _context_asked(solution: Solution) -> tuple[int | None, str]:
    request = solution.request
    limit = request.spec.max_position_tokens
    if request.options.max_model_len:
        return request.options.max_model_len, "as asked for"
    if request.lengths is None:
        return limit, "the model's own limit"
    longest = request.lengths.max_tokens
    needed = -(-longest // CONTEXT_STEP) * CONTEXT_STEP
    if limit is not None and needed > limit:
        return limit, f"the model's own limit; {whole(longest)} tokens are the longest request expected"
    return needed, f"the longest request expected has {whole(longest)} tokens"


def _share_raised(solution: Solution) -> bool:
    """Is the share recommended larger than the plan's, so that the request wanted fits?"""
    ratio = solution.budget.utilisation.ratio
    least = smallest_utilisation(solution, solution.wanted_tokens())
    return ratio is not None and least is not None and ratio < least <= MOST_SHARE


def _longest(solution: Solution) -> int | None:
    return None if solution.low is None else solution.low.estimated_max_model_len


def batch_wanted(solution: Solution) -> tuple[int | None, str]:
    """Requests at once: from the distribution, else at the longest length."""
    held = solution.capacity_low
    if held.spread is not None and held.spread.max_num_seqs > 0:
        chance = 100 * held.spread.preemption_probability
        at_mean = held.spread.mean_bound
        return (
            held.spread.max_num_seqs,
            (
                f"so many fit with a chance of preemption of at most {chance:g} % (by the mean it "
                f"would be {whole(at_mean)})"
            ),
        )
    if held.max:
        return held.max, "so many of the longest requests fit at once"
    return None, ""


def _shared(solution: Solution, names: dict[str, str]) -> Iterator[Wish]:
    context, why = context_wanted(solution)
    if context:
        yield names["context"], str(context), why
    batch, why = batch_wanted(solution)
    if batch:
        yield names["batch"], str(batch), why
    options = solution.request.options
    if options.max_num_batched_tokens and "chunk" in names:
        yield (
            names["chunk"],
            str(options.max_num_batched_tokens),
            "as asked for; it bounds the activation peak",
        )
    if options.tp > 1:
        yield names["tp"], str(options.tp), f"weights and KV heads over {options.tp} GPUs"
    if options.pp > 1 and "pp" in names:
        yield names["pp"], str(options.pp), f"layers in {options.pp} stages"


def _vllm(solution: Solution) -> Iterator[Wish]:
    request, budget = solution.request, solution.budget
    names = {
        "context": "max-model-len",
        "batch": "max-num-seqs",
        "chunk": "max-num-batched-tokens",
        "tp": "tensor-parallel-size",
        "pp": "pipeline-parallel-size",
    }
    yield from _shared(solution, names)
    if budget.utilisation.ratio is not None and request.available_kv is None:
        yield _utilisation(solution, budget.utilisation.ratio)
    if (name := request.options.kv_dtype_k) != "auto":
        yield "kv-cache-dtype", _VLLM_NAMES.get(name, name), _dtype_why(solution)
    yield from _prefix(solution, "enable-prefix-caching", "no-enable-prefix-caching")
    options = request.options
    if options.block_size:
        yield "block-size", str(options.block_size), "as asked for"
    if options.mamba_cache_mode:
        yield "mamba-cache-mode", options.mamba_cache_mode, "as asked for"
    if options.swap_space_bytes:
        yield "swap-space", f"{options.swap_space_bytes / 2**30:g}", "as asked for, in GiB"


def _utilisation(solution: Solution, ratio: float) -> Wish:
    """The share of the plan, or the smallest at which one request fits where that one is too small."""
    tokens, kv = solution.wanted_tokens(), solution.budget.kv
    least = smallest_utilisation(solution, tokens)
    if least is not None and ratio < least <= MOST_SHARE:
        why = f"the smallest at which one request of {whole(tokens)} tokens fits"
        return "gpu-memory-utilization", f"{least:.2f}", why
    left = ""
    if kv.value is not None:
        left = f" and leaves {size(kv.value.lo if kv.banded else kv.value.nominal)} for the cache"
    return "gpu-memory-utilization", f"{ratio:g}", f"the share that this plan counts with{left}"


_VLLM_NAMES = {"bf16": "bfloat16", "fp16": "float16"}


def _sglang(solution: Solution) -> Iterator[Wish]:
    request, options = solution.request, solution.request.options
    names = {
        "context": "context-length",
        "batch": "max-running-requests",
        "chunk": "chunked-prefill-size",
        "tp": "tensor-parallel-size",
        "pp": "pipeline-parallel-size",
    }
    yield from _shared(solution, names)
    if solution.budget.utilisation.ratio is not None and request.available_kv is None:
        share = solution.budget.utilisation.ratio
        yield "mem-fraction-static", f"{share:g}", "weights and cache get this share of the card"
    if options.kv_dtype_k != "auto":
        name = "fp8_e4m3" if options.kv_dtype_k == "fp8" else options.kv_dtype_k
        yield "kv-cache-dtype", name, _dtype_why(solution)
    if options.prefix_caching is False:
        yield "disable-radix-cache", None, "as asked for"
    if options.block_size:
        yield "page-size", str(options.block_size), "as asked for"
    if options.swa_full_tokens_ratio is not None:
        yield "swa-full-tokens-ratio", f"{options.swa_full_tokens_ratio:g}", "as asked for"
    if options.mamba_full_memory_ratio is not None:
        yield "mamba-full-memory-ratio", f"{options.mamba_full_memory_ratio:g}", "as asked for"


def _llama(solution: Solution) -> Iterator[Wish]:
    options, pool = solution.request.options, solution.pool
    context = options.ctx or (pool.tokens if pool is not None else None)
    if context:
        yield "ctx-size", str(context), "cells of the cache, over all slots; taken as a whole at the start"
    if options.parallel:
        yield "parallel", str(options.parallel), "slots: as asked for"
    if options.ubatch:
        yield "ubatch-size", str(options.ubatch), "as asked for; sliding layers keep so many cells more"
    if options.kv_dtype_k not in ("auto", "fp16"):
        yield "cache-type-k", options.kv_dtype_k, _dtype_why(solution)
    if options.kv_dtype_v not in ("auto", "fp16"):
        yield "cache-type-v", options.kv_dtype_v, _dtype_why(solution)
    if options.kv_unified is not None:
        yield ("kv-unified" if options.kv_unified else "no-kv-unified"), None, "as asked for"
    if options.swa_full:
        yield "swa-full", None, "as asked for: sliding layers keep the whole context"


def _trtllm(solution: Solution) -> Iterator[Wish]:
    names = {
        "context": "max_seq_len",
        "batch": "max_batch_size",
        "chunk": "max_num_tokens",
        "tp": "tp_size",
        "pp": "pp_size",
    }
    yield from _shared(solution, names)
    if (share := solution.budget.utilisation.ratio) is not None and solution.request.available_kv is None:
        yield "kv_cache_free_gpu_memory_fraction", f"{share:g}", "of the memory that is free after load"


def _lmdeploy(solution: Solution) -> Iterator[Wish]:
    options = solution.request.options
    yield from _shared(solution, {"context": "session-len", "batch": "max-batch-size", "tp": "tp"})
    if (share := solution.budget.utilisation.ratio) is not None and solution.request.available_kv is None:
        yield "cache-max-entry-count", f"{share:g}", "of the memory that is free after load"
    if options.block_size:
        yield "cache-block-seq-len", str(options.block_size), "as asked for"
    if options.kv_dtype_k in ("int8", "int4"):
        yield "quant-policy", options.kv_dtype_k.removeprefix("int"), _dtype_why(solution)
    if options.prefix_caching:
        yield "enable-prefix-caching", None, _match_unit(solution)


def _reference(solution: Solution) -> Iterator[Wish]:
    options = solution.request.options
    names = {
        "context": "max-model-len",
        "batch": "max-num-seqs",
        "chunk": "max-num-batched-tokens",
        "tp": "tp",
    }
    yield from (wish for wish in _shared(solution, names) if wish[0] in FLAGS["reference"])
    kv = solution.budget.kv.value
    if kv is not None and kv.lo > 0:
        yield (
            "kv-memory",
            f"{kv.lo if solution.banded else kv.nominal}B",
            "what the budget leaves for the cache",
        )
    if options.kv_dtype_k != "auto":
        yield "kv-dtype", options.kv_dtype_k, _dtype_why(solution)
    if options.block_size:
        yield "block-size", str(options.block_size), "as asked for"
    if options.prefix_caching is False:
        yield "no-prefix-caching", None, "as asked for"


def _prefix(solution: Solution, on: str, off: str) -> Iterator[Wish]:
    wanted = solution.request.options.prefix_caching
    if wanted is False:
        yield off, None, "as asked for"
    elif wanted or solution.request.shared_prefix_tokens:
        yield on, None, _match_unit(solution)


def _match_unit(solution: Solution) -> str:
    block = solution.pool.block_size if solution.pool is not None else None
    return f"a prefix is matched in units of {block} tokens" if block else "as asked for"


def _dtype_why(solution: Solution) -> str:
    token = solution.cost.bytes_per_token
    return f"the cache then costs {token:,} bytes a token; check answers on long contexts first"


def _unknown(engine: str, solution: Solution) -> Iterator[tuple[str, str]]:
    if engine == "trtllm" and solution.request.options.kv_dtype_k != "auto":
        yield "cache format", "trtllm-serve has no flag for it: set it in the engine's own configuration"
    if engine != "vllm" or not solution.request.at_least(0, 29):
        return
    yield (
        "max-num-queued-reqs",
        "needs how many may wait: it counts running requests too, and refuses with 503 what is above it",
    )
    yield "max-num-queued-tokens", "needs a target for TTFT and the measured prefill speed: their product"


_WISHES: dict[str, Callable[[Solution], Iterator[Wish]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llama,
    "trtllm": _trtllm,
    "lmdeploy": _lmdeploy,
    "reference": _reference,
}
