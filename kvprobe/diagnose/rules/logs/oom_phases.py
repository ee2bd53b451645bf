"""A card that is plainly too full: which phase filled it decides the name of the cause."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.rules.logs import oom_placeless, oom_serving, oom_starting
from kvprobe.diagnose.rules.logs.base import LogCandidate
from kvprobe.diagnose.rules.logs.oom_case import OomCase
from kvprobe.summary.units import percent, size

_FILLED: Final = 0.85
"""Of the card: so much in the allocator's hands is what leaves a collective no room."""


def plainly_short(c: OomCase) -> list[LogCandidate]:
    """Steps 4 and 5c: capacity first, by phase."""
    found = _by_phase(c)
    if c.verdict.step == "5c":
        found.append(_perhaps_fragmented(c))
    return found


def behind_fragmentation(c: OomCase) -> list[LogCandidate]:
    """Step 6: contiguity decided this request, but the card is full: what filled it is the root."""
    return _by_phase(c)


def can_never_fit(c: OomCase) -> list[LogCandidate]:
    """Step 1: more than the whole card in one piece."""
    n = c.numbers
    if c.site.phase == "load":
        return oom_starting.loading(c)
    multimodal = "multimodal" in c.site
    cause = "runtime_activation_spike"
    if c.starting or (c.site.phase is None and multimodal and c.pool_engine):
        cause = "multimodal_profiling" if multimodal else "startup_activation_peak"
    placed = c.site.phase is not None or not c.pool_engine
    return [
        c.found(
            cause,
            "likely" if placed else "suspected",
            f"{size(n.requested)} were asked for in one piece on a card of {size(n.total or 0)}: it "
            "can never fit, "
            "whatever is free; a shape is too large, not the model.",
            excludes={
                "allocator_fragmentation": f"{size(n.requested)} exceed the whole card",
                "capacity_exhausted": f"one tensor of {size(n.requested)} cannot fit an empty card either",
            },
            check_first=[
                "the tensor of the innermost frame: attention scores (length squared), or logits of "
                "all tokens"
            ],
            remedy=[
                "an attention that does not build the score matrix (flash attention, SDPA): its cost "
                "falls from "
                "length squared to length",
                f"a shorter input, or fewer tokens in a batch ({c.batch_flag}, `--max-model-len`)",
            ],
            would_change_my_mind=["a much smaller request in the same frame"],
        )
    ]


def _by_phase(c: OomCase) -> list[LogCandidate]:
    phase = c.site.phase
    if "static_cache" in c.site and not c.pool_engine:
        return [oom_serving.static_cache(c)]
    if "collective" in c.site and "serve" not in c.site and "profile" not in c.site:
        return [_collective(c)]
    if phase == "load":
        return oom_starting.loading(c)
    if phase == "profile":
        return oom_starting.profiling(c)
    if phase == "capture":
        return oom_starting.capturing(c)
    if phase == "warmup" and c.site.engine == "tgi":
        return oom_starting.profiling(c)  # its warm-up measures the pool: none exists yet
    if phase == "warmup":
        return oom_starting.warming_up(c)
    if phase == "serve":
        return oom_serving.serving(c)
    return oom_placeless.placeless(c)


def _collective(c: OomCase) -> LogCandidate:
    return c.found(
        "nccl_or_runtime_buffers",
        "suspected" if (c.share(c.numbers.allocated) or 0.0) >= _FILLED else "likely",
        f"Buffers for communication between GPUs could not be had: {c.lacks()}.",
        check_first=["free memory before the engine starts, on every GPU of the group"],
        remedy=[
            f"leave more room outside the budget: a lower {c.fraction_flag} (each 0.01 is "
            f"{size((c.numbers.total or 0) / 100)})",
            "`--disable-custom-all-reduce`, or a smaller `NCCL_BUFFSIZE`",
        ],
        would_change_my_mind=["the same failure on one GPU, without a group"],
    )


def _perhaps_fragmented(c: OomCase) -> LogCandidate:
    spare, total = c.verdict.margin or 0, c.numbers.total or 0
    return c.found(
        "allocator_fragmentation",
        "suspected",
        f"The pieces would just add up ({size(spare)} to spare, "
        f"{percent(spare / total) if total else 'little'} of "
        "the card), but the card is full all the same.",
        root=False,
        check_first=["the same run with `expandable_segments:True`"],
        remedy=["`expandable_segments:True` may rescue this request, not the next one"],
        would_change_my_mind=["success with expandable segments over a whole day's load"],
    )
