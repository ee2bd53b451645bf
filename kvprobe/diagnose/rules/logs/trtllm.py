"""TensorRT-LLM: an intended large pool, engine buffers of fixed size, a pool below one request."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, percent, size, told, whole
from kvprobe.evidence.events import Event

_LITTLE: Final = 0.1


def pool(view: LogView) -> list[LogCandidate]:
    """A pool of about 90 % of what is free: by design."""
    sizes = [e for e in view.all("pool_size") if e.engine == "trtllm"]
    failed = view.all(
        "cuda_alloc_failed", "trt_alloc_failed", "executor_failed", "torch_oom", "pool_below_one_request"
    )
    if not sizes or failed:
        return []
    nbytes, tokens = told(view, "bytes", "pool_size"), told(view, "tokens", "pool_size")
    if nbytes is None:
        return []
    each = f", {whole(nbytes / tokens)} bytes a token" if tokens else ""
    free, total = told(view, "free", "pool_free"), told(view, "total", "pool_free")
    if free is not None and total and free < _LITTLE * total:
        return [_card_full(view, sizes, free, total, nbytes)]
    share = f", {percent(nbytes / free)} of the {size(free)} that were free" if free else ""
    return [
        candidate(
            "reservation_by_design",
            "suspected",  # every healthy start prints this; whether anyone took it for a leak is not told
            f"The KV pool takes "
            f"{size(nbytes)}{share}{f' for {whole(tokens)} tokens' if tokens else ''}{each}: TensorRT-LLM "
            f"reserves 0.9 of the memory that is free after loading, on purpose; it is no leak.",
            cites(sizes, 2),
            fatal=False,
            at=sizes[0],
            check_first=["kv_cache_free_gpu_mem_fraction and max_tokens_in_paged_kv_cache"],
            remedy=[
                "set kv_cache_free_gpu_mem_fraction (of free memory) or max_tokens lower, to leave room for "
                "others"
            ],
            would_change_my_mind=["use that grows after the start"],
            excludes={"device_memory_leak": "the whole pool is allocated at start"},
        )
    ]


def _card_full(view: LogView, sizes: list[Event], free: float, total: float, nbytes: float) -> LogCandidate:
    return candidate(
        "weights_plus_fixed_too_large",
        "suspected",
        f"Only {size(free)} of {size(total)} were free when the pool was sized, so it got {size(nbytes)}: "
        f"the "
        "engine, its buffers, or another process hold the rest.",
        cites([*view.all("pool_free"), *sizes], 3),
        fatal=False,
        at=sizes[0],
        check_first=["`nvidia-smi` before the start: who else holds the card", "`Loaded engine size`"],
        remedy=["free the card of other processes", "a smaller or quantised engine, or more GPUs"],
        would_change_my_mind=["another process that holds the card"],
    )


def one_request(view: LogView) -> list[LogCandidate]:
    """The pool cannot hold one request of the engine's maximum."""
    events = [e for e in view.all("pool_below_one_request") if e.engine == "trtllm"]
    return [
        candidate(
            "max_model_len_exceeds_pool",
            "certain",
            "The paged KV cache is smaller than one sequence of the engine's maximum length"
            + (f" (it holds {whole(e.get('pool'))} tokens)." if e.get("pool") else "."),
            [cite(e), *cites(view.all("pool_size"), 1)],
            fatal=True,
            at=e,
            phase="profile",
            check_first=["max_seq_len (and beam width) of the engine against the tokens of the pool"],
            remedy=[
                "a smaller max_seq_len or beam width",
                "a higher kv_cache_free_gpu_mem_fraction",
                "KV in int8 or fp8",
            ],
            would_change_my_mind=["a pool larger than max_seq_len x beam width"],
        )
        for e in events[:1]
    ]


def no_memory(view: LogView) -> list[LogCandidate]:
    """CUDA refuses a buffer; the stack or the stage tells which."""
    events = view.all("cuda_alloc_failed", "trt_alloc_failed")
    if not events:
        return []
    event = events[0]
    near = [e for e in view.all("trt_stage") if e.source == event.source and -6 <= e.line - event.line <= 24]
    stages = [str(e.get("stage")) for e in near]
    asked, engine = event.get("asked"), told(view, "weights", "engine_size")
    pool = any(e.engine == "trtllm" and e.line < event.line for e in view.all("pool_size"))
    if "weights" in stages or (asked and engine and 0.8 * engine <= asked <= 1.3 * engine):
        return [_weights(event, near, asked)]
    if pool or "kv" in stages:
        return [_after_pool(view, event, near)]
    if "step" in stages and "context" not in stages:
        return [_in_a_step(event, near, asked)]
    return [_workspace(event, near, asked, sure="context" in stages or "buffers" in stages)]


def _weights(event: Event, near: list[Event], asked: float | None) -> LogCandidate:
    return candidate(
        "weights_plus_fixed_too_large",
        "likely",
        f"The weights of the engine do not fit the card: {size(asked)} were refused while it was loaded.",
        [cite(event), *cites(near, 2)],
        fatal=True,
        at=event,
        phase="load",
        check_first=["`Loaded engine size` against free memory, and who else holds the card"],
        remedy=["quantise or split (tp_size, pp_size) when building", "free the card first"],
        would_change_my_mind=["an empty card larger than the engine"],
    )


def _after_pool(view: LogView, event: Event, near: list[Event]) -> LogCandidate:
    fraction = told(view, "fraction", "kv_fraction")
    at = f" (kv_cache_free_gpu_mem_fraction {fraction})" if fraction else " (0.9 of free memory by default)"
    return candidate(
        "gpu_memory_utilization_too_high",
        "likely",
        f"The KV pool was taken first{at} and what came after it found no memory: the fraction leaves too "
        f"little.",
        [cite(event), *cites(near, 1), *cites(view.all("pool_size"), 1)],
        fatal=True,
        at=event,
        check_first=["what is allocated after the pool: a second instance, decoder buffers, another model"],
        remedy=[
            "a lower kv_cache_free_gpu_mem_fraction: each 0.1 leaves a tenth of the free memory",
            "one instance on a card",
        ],
        would_change_my_mind=["the failure comes before the pool is made"],
    )


def _in_a_step(event: Event, near: list[Event], asked: float | None) -> LogCandidate:
    """Buffers that grow with the requests of a step: the engine was built and served already."""
    return candidate(
        "runtime_activation_spike",
        "suspected",
        f"Buffers of a step ({size(asked)}) were enlarged for the requests at hand and found no memory: the "
        "engine ran already, and its pool left too little beside it.",
        [cite(event), *cites(near, 2)],
        fatal=True,
        at=event,
        phase="serve",
        check_first=[
            "what the requests ask for: logits or log-probabilities of every token, beam width, batch size",
            "kv_cache_free_gpu_mem_fraction, and what is free on the card while it serves",
        ],
        remedy=[
            "leave generation and context logits out, or a smaller max_batch_size",
            "a lower kv_cache_free_gpu_mem_fraction: each 0.1 leaves a tenth of the free memory",
        ],
        would_change_my_mind=["the same failure at the first request: then buffers of fixed size"],
    )


def _workspace(event: Event, near: list[Event], asked: float | None, *, sure: bool) -> LogCandidate:
    return candidate(
        "fixed_workspace_missized",
        "likely" if sure else "suspected",
        f"A buffer of fixed size that was laid down when the engine was built ({size(asked)}) does not fit: "
        f"it follows max_batch_size x max_input_len, not the load.",
        [cite(event), *cites(near, 2)],
        fatal=True,
        at=event,
        phase="profile",
        check_first=["max_batch_size, max_num_tokens, max_input_len and beam width of the build"],
        remedy=[
            "rebuild with a smaller max_num_tokens and max_batch_size",
            "context FMHA and packed input on",
        ],
        would_change_my_mind=["the same refusal with a small build: then the weights"],
    )


def executor(view: LogView) -> list[LogCandidate]:
    """`Executor creation failed due to insufficient GPU memory`: which component, and what was free."""
    event = view.first("executor_failed")
    if event is None:
        return []
    part = str(event.get("component") or "component")
    free, total = event.get("free"), event.get("total")
    share = free / total if free and total else None
    numbers = f"{size(free)} of {size(total)} were free before it"
    if share is not None and share > 0.5 and "kv" in part.lower():
        return [
            candidate(
                "fixed_workspace_missized",
                "suspected",
                f"The {part} could not be created although {numbers}: its size, or a temporary buffer beside "
                "it, is computed too large.",
                [cite(event)],
                fatal=True,
                at=event,
                check_first=[
                    "the inner error on each rank, and tokens x bytes of the pool that was asked for"
                ],
                remedy=["set max_tokens of the KV cache by hand", "a lower free_gpu_memory_fraction"],
                would_change_my_mind=["another rank with little free memory"],
            )
        ]
    return [_component(event, part, share, numbers)]


def _component(event: Event, part: str, share: float | None, numbers: str) -> LogCandidate:
    cause, lower = "weights_plus_fixed_too_large", part.lower()
    if "graph" in lower:
        cause = "cudagraph_memory"
    elif "kv" in lower and share is not None and share > _LITTLE:
        cause = "gpu_memory_utilization_too_high"
    elif any(w in lower for w in ("warm", "extra", "resource")):
        cause = "startup_activation_peak"
    return candidate(
        cause,
        "suspected" if cause == "weights_plus_fixed_too_large" and "model" not in lower else "likely",
        f"The executor's `{part}` could not be created: {numbers}.",
        [cite(event)],
        fatal=True,
        at=event,
        check_first=["the table of components with free memory before and after each"],
        remedy=[
            "fewer bytes for the component that took most",
            "a lower free_gpu_memory_fraction, or more GPUs",
        ],
        would_change_my_mind=["another process on the card"],
    )


RULES: tuple[LogRule, ...] = (pool, one_request, no_memory, executor)
