"""Out of memory before the first request: weights, conversion, the profiling pass, graphs, warm-up."""

from __future__ import annotations

import re
from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs import model_size, oom_serving
from kvprobe.diagnose.rules.logs.base import LogCandidate
from kvprobe.diagnose.rules.logs.oom_case import OomCase, setting
from kvprobe.summary.units import percent, size

_WEIGHTS_FILL: Final = 0.88
"""Weights of this share of the card leave no room for a pass, whatever the batch."""
_CONVERT_NOTABLE: Final = 0.002
_MOSTLY_EMPTY: Final = 0.5
_NEARLY_FULL: Final = 0.8
_PLACED_ONE_BY_ONE: Final = frozenset({"create_quantized_param", "quantize_weight"})
"""Quantised while they are placed: the copy is one layer, and what is full is full of final weights."""
_VISION_NAME: Final = re.compile(
    r"(?:^|[-_/.\d])v[lm](?:[-_/.\d]|$)|vision|llava|pixtral|internvl|omni|minicpm-[vo]|molmo|idefics|mllama"
)
_PEAK_TENSOR: Final = 0.03
_LIGHT_WEIGHTS: Final = 0.75
_GREEDY: Final = 0.95
_EXPLAINED: Final = 0.85
_WORST_OVER_TEXT: Final = 2


def loading(c: OomCase) -> list[LogCandidate]:
    """What is allocated now is weights; converting them needs a second copy of a part."""
    if "convert" in c.site:
        return [_converting(c)]
    if "lora" in c.site and c.weights:
        return [too_large(c, "likely", "the adapters' buffers come on top of the weights")]
    share = c.share(c.numbers.allocated)
    fit = fit_by_name(c)
    if share is not None and share < _MOSTLY_EMPTY and c.verdict.step != "1" and fit != "over":
        return [too_large(c, "suspected", "the rest of the card is not in PyTorch's hands")]
    if c.site.told and share and share >= _NEARLY_FULL:
        return [too_large(c, "certain", None)]
    if c.site.phase == "load" and fit != "over" and _unaccounted(c):
        return [too_large(c, "suspected", None)]
    return [too_large(c, "likely" if c.site.phase == "load" else by_name(c), None)]


def _unaccounted(c: OomCase) -> bool:
    """What was loaded and what was asked leave a notable part of the card that nobody is told to hold."""
    held, asked = c.share(c.numbers.allocated), c.share(c.numbers.requested)
    return held is None or held + (asked or 0.0) < _EXPLAINED


def fit_by_name(c: OomCase) -> model_size.Fit | None:
    """Whether the model, by its name, is larger than the card or clearly smaller; only where the card's
    size is in the message."""
    estimate, total = model_size.estimate(c.view), c.numbers.total
    return estimate.fit(total) if estimate is not None and total else None


def by_name(c: OomCase) -> Confidence:
    """How far a name may carry a verdict."""
    estimate = model_size.estimate(c.view)
    return "likely" if estimate is not None and not estimate.ambiguous else "suspected"


def too_large(c: OomCase, confidence: Confidence, extra: str | None) -> LogCandidate:
    estimate = model_size.estimate(c.view)
    told = f"; {extra}" if extra else ""
    if estimate is not None:
        told += f"; {estimate.text}"
        told += "".join(f" ({doubt})" for doubt in estimate.open_points)
    when = "while they were loaded, " if c.site.phase in ("load", None) else ""
    return c.found(
        "weights_plus_fixed_too_large",
        confidence,
        f"The weights do not fit: {when}{c.lacks()}{told}.",
        evidence=c.evidence(c.site.frame("load", "lora", "draft")),
        excludes={
            "gpu_memory_utilization_too_high": "no pool existed yet: utilisation plays no part while loading"
        },
        check_first=[
            "the size of the checkpoint's files against the card, divided by the tensor-parallel size"
        ],
        remedy=[
            "a quantised checkpoint (8 bit halves the weights, 4 bit quarters them)",
            "more GPUs: `--tensor-parallel-size` divides the weights by that number",
            "`--cpu-offload-gb` for the missing part, at the price of speed",
        ],
        would_change_my_mind=["files of the checkpoint that are clearly smaller than the card"],
    )


def _converting(c: OomCase) -> LogCandidate:
    share = (c.share(c.numbers.requested) or 0.0) if c.numbers.total else 0.0
    name = c.site.frame("convert")
    one_by_one = name is not None and name.get("function") in _PLACED_ONE_BY_ONE
    sure: Confidence = (
        "likely" if (share >= _CONVERT_NOTABLE or c.weights) and not one_by_one else "suspected"
    )
    return c.found(
        "loading_peak",
        sure,
        "The weights were in place and were being converted "
        f"(`{name.get('function') if name else 'convert'}`), which "
        f"holds two copies of a part for a moment: {c.lacks()}.",
        evidence=c.evidence(name),
        check_first=[
            "a checkpoint that is already in the format that this GPU runs (no repacking, no online "
            "quantising)"
        ],
        remedy=[
            "a pre-quantised checkpoint in the kernel's own format: saves the second copy "
            f"({size(c.numbers.requested)} here)",
            "another kernel for the same format (without a repack), or more GPUs for the load",
        ],
        would_change_my_mind=["final weights that are themselves larger than the card"],
    )


def profiling(c: OomCase) -> list[LogCandidate]:
    """The pass that measures the peak: worst-case images, worst-case batch, or no room at all."""
    if "sampler_warmup" in c.site:
        return warming_up(c)
    if "multimodal" in c.site:
        return [multimodal(c)]
    if "workspace" in c.site:
        return [oom_serving.workspace(c)]
    share = c.share(c.weights)
    if share is not None and share >= _WEIGHTS_FILL:
        return [_weights_fill(c, share)]
    if worst_case_images(c.view) and "logits" not in c.site:
        return [multimodal(c)]
    if c.view.all("mm_profile_too_short", "mm_budget") and c.site.told is False:
        return [multimodal(c, "suspected")]
    return [_peak(c)]


def _weights_fill(c: OomCase, share: float) -> LogCandidate:
    return c.found(
        "weights_plus_fixed_too_large",
        "certain" if share >= 0.95 else "likely",
        f"The weights alone take {size(c.weights or 0)}, {percent(share)} of the card, so that not "
        "even the profiling "
        f"pass has room: {c.lacks()}.",
        evidence=c.evidence(c.view.last("weights_loaded")),
        check_first=["weights per GPU against the card's memory"],
        remedy=[
            "a quantised checkpoint, or a larger `--tensor-parallel-size`",
            f"a smaller {c.batch_flag} only if the shortfall is that of one batch",
        ],
        would_change_my_mind=["weights of the same model below 80 % of the card"],
    )


def worst_case_images(view: LogView) -> bool:
    """vLLM itself says that the images and videos of the worst case are several times the text's pass."""
    told = view.last("mm_profile_too_short")
    worst, text = (told.get("worst"), told.get("profile")) if told is not None else (None, None)
    return isinstance(worst, int) and isinstance(text, int) and worst >= _WORST_OVER_TEXT * text


def multimodal(c: OomCase, sure: Confidence = "likely") -> LogCandidate:
    told = c.view.last("mm_profile_too_short", "mm_budget")
    worst = (told.get("worst") or told.get("budget")) if told is not None else None
    tokens = f" ({worst:,} tokens of them in the worst case)" if isinstance(worst, int) else ""
    return c.found(
        "multimodal_profiling",
        sure,
        f"The start-up pass profiles the largest images or videos that the model allows{tokens}, and its "
        f"encoder did not fit: {c.lacks()}.",
        evidence=c.evidence(c.site.frame("multimodal"), c.view.last("mm_budget", "mm_profile_too_short")),
        check_first=["how many items of which size are profiled (`limit_mm_per_prompt`, `max_pixels`)"],
        remedy=[
            "`--limit-mm-per-prompt` with the counts really used (0 for what never comes, video above all)",
            "`--mm-processor-kwargs` with a smaller `max_pixels` or resolution",
            f"{c.sequences_flag} and {c.batch_flag} lower: fewer items are profiled at once",
        ],
        would_change_my_mind=["the same failure with the text part only (all limits 0)"],
    )


def _peak(c: OomCase) -> LogCandidate:
    tokens = setting(c.view, "max_num_batched_tokens") or setting(c.view, "max_model_len")
    batch = f" (up to {tokens:,} tokens in the pass)" if isinstance(tokens, int) else ""
    weights = f"; weights {size(c.weights)}" if c.weights else ""
    return c.found(
        "startup_activation_peak",
        _peak_confidence(c),
        f"The start-up profiling pass{batch} did not fit: {c.lacks()}{weights}.",
        evidence=c.evidence(c.site.frame("profile", "logits"), c.view.last("weights_loaded")),
        excludes={"max_model_len_exceeds_pool": "the pool was not sized yet when it failed"},
        check_first=[f"{c.batch_flag} and {c.sequences_flag}: they set the size of this pass"],
        remedy=[
            f"{c.batch_flag} halved: frees about half of the activations "
            f"({size(c.numbers.requested)} is one "
            "of their tensors)",
            f"{c.sequences_flag} and `--max-model-len` lower",
            "lower precision of the weights, or more GPUs",
        ],
        would_change_my_mind=["the same failure with 2,048 batched tokens: then the weights leave no room"],
    )


def _peak_confidence(c: OomCase) -> Confidence:
    """A large tensor, or weights that leave room, make it the pass; else the weights may leave no room."""
    asked, weights = c.share(c.numbers.requested) or 0.0, c.share(c.weights)
    light = weights is not None and weights < _LIGHT_WEIGHTS
    name = str(setting(c.view, "model") or "").lower()
    if _VISION_NAME.search(name) or setting(c.view, "limit_mm_per_prompt"):
        return "suspected"  # its encoder runs in the same pass
    return "likely" if (c.site.told and asked >= _PEAK_TENSOR) or light else "suspected"


def capturing(c: OomCase) -> list[LogCandidate]:
    return [
        c.found(
            "cudagraph_memory",
            "likely",
            "The pool was sized without room for CUDA graphs, and capturing them did not fit: "
            + c.lacks()
            + ".",
            evidence=c.evidence(c.site.frame("capture")),
            check_first=["whether it starts with `--enforce-eager` (no graphs)"],
            remedy=[
                f"a lower {c.fraction_flag}: each 0.01 leaves "
                f"{size((c.numbers.total or 0) / 100)} to the graphs",
                f"fewer graph sizes (`cudagraph_capture_sizes`, {c.sequences_flag}), or "
                "`--enforce-eager` (none, slower decode)",
            ],
            would_change_my_mind=["the same failure with `--enforce-eager`"],
        )
    ]


def warming_up(c: OomCase) -> list[LogCandidate]:
    """After the pool was allocated: the pool itself, or a pass beside it, had no room."""
    if "kv_alloc" in c.site:
        return [_pool_itself(c)]
    if "capture" in c.site and "sampler_warmup" not in c.site:
        return capturing(c)
    seqs = setting(c.view, "max_num_seqs")
    warm = c.view.last("sampler_warmup_oom")
    count = (warm.get("requests") if warm else None) or seqs
    dummy = f" with {count:,} dummy requests" if isinstance(count, int) else ""
    frame = c.site.frame("sampler_warmup")
    kernels = warm is None and frame is not None and "_dummy" not in str(frame.get("function"))
    what = "the kernels' warm-up" if kernels else f"the sampler's warm-up{dummy}"
    flag = c.batch_flag if kernels else c.sequences_flag
    few = "a small batch" if kernels else "a few dozen sequences"
    rows = "runs batches up to that size" if kernels else "holds that many rows of vocabulary size"
    return [
        c.found(
            "gpu_memory_utilization_too_high",
            "likely",
            f"The pool was in place and left too little for {what}: {c.lacks()}.",
            evidence=c.evidence(warm, frame),
            check_first=[f"{flag}: the warm-up {rows}"],
            remedy=[
                f"{flag} lower first: the buffer falls in proportion",
                f"then {c.fraction_flag}: each 0.01 leaves {size((c.numbers.total or 0) / 100)} more",
            ],
            would_change_my_mind=[f"the same failure with {few}"],
        )
    ]


def _pool_itself(c: OomCase) -> LogCandidate:
    u = c.utilisation
    high = f" (utilisation {u})" if u else ""
    return c.found(
        "gpu_memory_utilization_too_high",
        "likely" if u and u >= _GREEDY else "suspected",
        f"The KV pool was sized larger than what was free when it was allocated{high}: {c.lacks()}.",
        evidence=c.evidence(c.site.frame("kv_alloc"), c.view.last("available_kv", "pool_size")),
        check_first=[
            "whether another process took memory between profiling and allocating (two engines "
            "starting at once)"
        ],
        remedy=[
            f"a lower {c.fraction_flag}: each 0.01 is {size((c.numbers.total or 0) / 100)}",
            "start engines on one card one after the other",
        ],
        would_change_my_mind=[
            "free memory at this moment far below that at the start: then somebody else took it"
        ],
    )
