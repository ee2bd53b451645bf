"""Out of memory while requests (or a training step) ran."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs.base import LogCandidate
from kvprobe.diagnose.rules.logs.oom_case import OomCase
from kvprobe.summary.units import percent, size

_SPIKE_SHARE: Final = 0.02
_SPIKE_BYTES: Final = 2**30
_TENSORS_OF_A_CACHE: Final = 64
"""Keys and values of 32 layers: what is enlarged is one of them."""
_NOTABLE_CACHE: Final = 0.15
_BEYOND_BUDGET: Final = 0.1
"""Graphs, communication and transients of a healthy engine lie within this share beyond its budget."""


def serving(c: OomCase) -> list[LogCandidate]:
    """A transient outside the profile, a cache that grew, or a budget that left nothing for the rest."""
    if "training" in c.site and not c.pool_engine:
        return [_training(c)]
    if "wake" in c.site:
        return [_woken(c)]
    if "workspace" in c.site:
        return [workspace(c)]
    named = _named_spike(c)
    if named:
        return [named]
    if "kv_growth" in c.site:
        return [_cache_grew(c)]
    if "collective" in c.site:
        return [_collective(c)]
    if not c.pool_engine:
        return [_plain_generation(c)]
    if c.numbers.requested >= max(_SPIKE_BYTES, _SPIKE_SHARE * (c.numbers.total or 0)):
        return [
            _spike(c, "one transient of this size is outside what the engine profiled", "suspected"),
            budget(c, root=False),
        ]
    return [budget(c)]


def _named_spike(c: OomCase) -> LogCandidate | None:
    if "prompt_logprobs" in c.site:
        return _spike(c, "logits of every prompt token were kept for `prompt_logprobs`")
    if "multimodal" in c.site:
        return _spike(c, "the vision or audio encoder ran on a larger input than was profiled")
    large = c.numbers.requested >= _SPIKE_BYTES / 2
    if "logits" in c.site and (large or not c.pool_engine):
        sure: Confidence = "suspected" if c.pool_engine else "likely"
        return _spike(c, "logits (tokens x vocabulary) were computed at once", sure)
    if "attention" in c.site and large:
        return _spike(
            c, "attention without a fused kernel builds scores that grow with the square of the length"
        )
    return None


def _spike(c: OomCase, what: str, confidence: Confidence = "likely") -> LogCandidate:
    return c.found(
        "runtime_activation_spike",
        confidence,
        f"{what[0].upper()}{what[1:]}: {c.lacks()}.",
        evidence=c.evidence(c.site.frame("prompt_logprobs", "multimodal", "logits", "attention", "serve")),
        check_first=["the request that was running: length, `prompt_logprobs`, number and size of images"],
        remedy=[
            "leave that feature out, or cap the input: the whole transient "
            f"({size(c.numbers.requested)} in this tensor) goes",
            f"{c.batch_flag} lower (long prompts are cut into smaller steps)",
            f"a lower {c.fraction_flag}: each 0.01 leaves {size((c.numbers.total or 0) / 100)} more",
        ],
        would_change_my_mind=["the same failure with short, plain requests: then the budget is too greedy"],
    )


def one_tensor(c: OomCase) -> LogCandidate:
    """A single allocation that is a large part of the card, whatever asked for it."""
    share = percent(c.share(c.numbers.requested) or 0.0)
    return _spike(c, f"one allocation of {share} of the card is a transient of the input's size", "suspected")


def budget(c: OomCase, *, root: bool = True, sure: Confidence | None = None) -> LogCandidate:
    n = c.numbers
    held = n.own_process or n.allocated or 0
    share = c.share(held) or 0.0
    return c.found(
        "gpu_memory_utilization_too_high",
        sure or ("likely" if share >= 0.9 and _by_budget(c, share) else "suspected"),
        _budget_why(c, held, share),
        evidence=c.evidence(c.view.last("budget"), c.site.frame("serve")),
        root=root,
        excludes={
            "kv_pool_pressure": "the pool is preallocated: filling it refuses requests and ends nothing"
        },
        check_first=[
            f"{c.fraction_flag}, and what else uses the card since the start (NCCL, graphs, other contexts)"
        ],
        remedy=[
            f"{c.fraction_flag} lower by 0.03 to 0.05: leaves {size((n.total or 0) * 0.04)} "
            "more outside the pool",
            f"{c.batch_flag} or {c.sequences_flag} lower: smaller transients",
        ],
        would_change_my_mind=["the same failure with 0.10 less utilisation: then something grows (a leak)"],
    )


def _by_budget(c: OomCase, share: float) -> bool:
    """What is held was the budget's to give: far above it, something else has grown since."""
    if c.utilisation is not None:
        return share <= c.utilisation + _BEYOND_BUDGET
    return c.site.told


def _budget_why(c: OomCase, held: int, share: float) -> str:
    n = c.numbers
    u = f", utilisation {c.utilisation}" if c.utilisation else ""
    if c.verdict.fragmented:
        return (
            f"Fragmentation decides this request ({size(n.requested)} asked, "
            f"{size((n.free or 0) + (n.unallocated or 0))} there in pieces, {size(n.free or 0)} in "
            "one), but the "
            "root is the budget: an engine with a preallocated pool has "
            f"{percent(c.share(n.allocated) or 0.0)} of "
            f"the card allocated{u}."
        )
    return (
        f"The engine's pool leaves too little beside it: this process holds {size(held)} "
        f"({percent(share)} of the "
        f"card{u}) and a step needed {size(n.requested)}: {c.lacks()}."
    )


def _cache_grew(c: OomCase) -> LogCandidate:
    n = c.numbers
    whole = _TENSORS_OF_A_CACHE * n.requested
    return c.found(
        "logical_kv_too_large",
        "likely" if whole >= _NOTABLE_CACHE * (n.total or 0) > 0 else "suspected",
        f"The KV cache of the running sequence(s) was being enlarged when it failed: {c.lacks()}.",
        evidence=c.evidence(c.site.frame("kv_growth")),
        check_first=[
            "tokens per sequence x sequences x bytes per token (`kvprobe plan --model … --tokens N`)"
        ],
        remedy=[
            "a shorter context or fewer sequences at once: the cache falls in proportion",
            "a quantised cache (8 bit halves it), or an engine with a paged pool",
            f"`expandable_segments:True` gives back up to {size(n.unallocated or 0)} of pieces that "
            "growing leaves behind",
        ],
        would_change_my_mind=["the same failure at the first tokens of a short prompt"],
    )


_WEIGHTS_FILL: Final = 0.85
"""From this share of the card on, what the cache found there may as well be the root."""


def static_cache(c: OomCase) -> LogCandidate:
    """A cache that is allocated for the longest context, before any token is in it."""
    return c.found(
        "reservation_policy_waste",
        "suspected" if (c.share(c.numbers.allocated) or 0.0) >= _WEIGHTS_FILL else "likely",
        f"The whole KV cache, for the longest context, is reserved at once: {c.lacks()}.",
        evidence=c.evidence(c.site.frame("static_cache")),
        check_first=["the context length that the cache is built for, against the length really used"],
        remedy=[
            "a shorter maximum length of the cache: it falls in proportion",
            "a quantised cache (8 bit halves it), or one that grows with the tokens",
        ],
        would_change_my_mind=["weights that alone leave less room than a short cache needs"],
    )


def workspace(c: OomCase) -> LogCandidate:
    return c.found(
        "fixed_workspace_missized",
        "suspected",
        f"A kernel's preallocated workspace of {size(c.numbers.requested)} had no room left: {c.lacks()}.",
        evidence=c.evidence(c.site.frame("workspace")),
        check_first=[
            "the size of the workspace in the engine's settings (FlashInfer: `*_WORKSPACE_BUFFER_SIZE`)"
        ],
        remedy=[
            f"a lower memory fraction: each 0.01 leaves {size((c.numbers.total or 0) / 100)} for it",
            "a smaller workspace, or another attention back end",
        ],
        would_change_my_mind=["the same failure with another attention back end"],
    )


def _collective(c: OomCase) -> LogCandidate:
    return c.found(
        "nccl_or_runtime_buffers",
        "suspected",
        f"A collective's buffer could not be had while serving: {c.lacks()}.",
        evidence=c.evidence(c.site.frame("collective")),
        check_first=["memory outside PyTorch (`nvidia-smi` minus `torch.cuda.memory_reserved`)"],
        remedy=[f"a lower {c.fraction_flag}: each 0.01 leaves {size((c.numbers.total or 0) / 100)}"],
        would_change_my_mind=["the same failure on one GPU"],
    )


def _woken(c: OomCase) -> LogCandidate:
    return c.found(
        "other_process_on_gpu",
        "likely",
        f"Waking up, the engine asked for its memory back and it was gone: {c.lacks()}; while it "
        "slept, the trainer "
        "(or another process) took it.",
        evidence=c.evidence(c.site.frame("wake")),
        check_first=["what the trainer still holds when the engine is woken (`torch.cuda.memory_reserved`)"],
        remedy=[
            "empty the trainer's cache and offload its states before waking the engine",
            "a lower share for the engine's pool",
        ],
        would_change_my_mind=["the same failure with nothing else on the card"],
    )


def _training(c: OomCase) -> LogCandidate:
    return c.found(
        "capacity_exhausted",
        "likely",
        f"A training step did not fit: {c.lacks()}.",
        evidence=c.evidence(c.site.frame("training")),
        check_first=["batch size x sequence length, and the optimiser's states (8 to 12 bytes a parameter)"],
        remedy=[
            "a smaller micro batch with gradient accumulation",
            "gradient checkpointing, LoRA, or sharded states",
        ],
        would_change_my_mind=["the same step with a batch of one"],
    )


def _plain_generation(c: OomCase) -> LogCandidate:
    n = c.numbers
    if n.total and n.requested >= 0.08 * n.total:
        light = (c.share(n.allocated) or 1.0) < _WEIGHTS_FILL or n.requested >= 0.25 * n.total
        what = "one tensor of this size in a forward pass is a transient of the input's length"
        return _spike(c, what, "likely" if light else "suspected")
    return c.found(
        "capacity_exhausted",
        "suspected",
        f"The card is full while generating: {c.lacks()}.",
        check_first=["input length x batch, and the size of the weights"],
        remedy=[
            f"free at least {size(max(c.verdict.deficit, n.requested))}: shorter input, smaller "
            "batch, lower precision",
        ],
        would_change_my_mind=["a traceback frame in the cache, the logits or the attention"],
    )
