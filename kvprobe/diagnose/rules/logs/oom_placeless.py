"""An out-of-memory whose place nobody told: no frame, no phase. What its own numbers still tell.

Never more than suspected: the same numbers come from weights, from a pass and from a budget.
"""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.causes import UNKNOWN
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs import oom_serving, oom_starting
from kvprobe.diagnose.rules.logs.base import LogCandidate
from kvprobe.diagnose.rules.logs.oom_case import OomCase
from kvprobe.summary.units import percent, size

NO_SETTING: Final = "the same numbers with `expandable_segments:True`: no allocator setting can help here"
_ONE_TENSOR: Final = 0.25
"""A single allocation of this share of a card is a transient of the input's size: weights and cache
blocks come in smaller pieces."""
_BEYOND_BUDGET: Final = 0.03
_GREEDY: Final = 0.9
_NO_BUDGET: Final = 0.985
"""No usual budget lets the allocator have this share of a card; loading knows no budget."""
_SMALL_STEP: Final = 0.05
_LITTLE_HELD: Final = 0.1
_BLOCK_LIMIT: Final = 2**30
_ROOMY: Final = 0.5
"""Of what can have been free: a request below it is not refused for want of memory of this process."""


def placeless(c: OomCase) -> list[LogCandidate]:
    """No phase is known: what was allocated at once, and what the engine's own budget allows."""
    if "multimodal" in c.site:
        return [oom_starting.multimodal(c, "suspected")] if c.pool_engine else oom_serving.serving(c)
    if c.pool_engine:
        found = _of_an_engine(c)
        if found:
            return found
    share = c.share(c.numbers.requested)
    if share is not None and share >= _ONE_TENSOR and c.numbers.free is not None:
        return [oom_serving.one_tensor(c)]
    return [exhausted(c)]


def _of_an_engine(c: OomCase) -> list[LogCandidate]:
    if oom_starting.fit_by_name(c) == "over":
        return oom_starting.loading(c)
    if c.event.get("private_pools") or "sampling" in c.site:
        return [oom_serving.budget(c, sure="suspected")]  # graphs exist: the pool is in place
    share, used = c.share(c.numbers.allocated), c.utilisation
    if share is not None and used is not None and share > used + _BEYOND_BUDGET:
        extra = (
            f"{percent(share)} of the card are allocated, above the budget of {used:.2f} that holds once "
            "weights are in place"
        )
        return [oom_starting.too_large(c, "suspected", extra)]
    if share is not None and used is None and share >= _NO_BUDGET and c.verdict.step == "4":
        return [oom_starting.too_large(c, "suspected", f"{percent(share)} of the card are allocated")]
    if c.verdict.full and (c.verdict.fragmented or _budget_is_filled(c)):
        return [oom_serving.budget(c, sure="suspected")]
    return []


def _budget_is_filled(c: OomCase) -> bool:
    """A high utilisation is told, what is allocated lies at it, and a small step failed beside it."""
    share, used, asked = c.share(c.numbers.allocated), c.utilisation, c.share(c.numbers.requested)
    if share is None or used is None or asked is None:
        return False
    return used >= _GREEDY and abs(share - used) <= _BEYOND_BUDGET and asked < _SMALL_STEP


def without_free(c: OomCase) -> list[LogCandidate]:
    """A wording (or an excerpt) without the free bytes: only what this process holds can be judged."""
    n = c.numbers
    held = (n.allocated or 0) + (n.unallocated or 0)
    room = (n.total or 0) - held
    if c.event.get("backend") == "xpu" and n.requested >= _BLOCK_LIMIT and n.requested < 0.95 * room:
        sure: Confidence = (
            "likely" if n.allocated is not None and held <= _LITTLE_HELD * (n.total or 0) else "suspected"
        )
        return [_refused_block(c, held, sure)]
    if c.verdict.most_free is not None and c.site.phase is None and n.requested < _ROOMY * room:
        return [_room_left(c, held)]
    return []


def _room_left(c: OomCase, held: int) -> LogCandidate:
    """What this process holds leaves far more than was asked, and nobody says who has it."""
    n = c.numbers
    return c.found(
        UNKNOWN,
        "suspected",
        f"{size(n.requested)} were refused and the message does not say how much was free; this process "
        f"holds {size(held)} of {size(n.total or 0)}, so another process, a limit of the driver, or memory "
        "outside PyTorch decided.",
        check_first=["free memory and the processes on the device at that moment"],
        remedy=[
            "collect `nvidia-smi`, `xpu-smi` or `rocm-smi` at the failure, and the whole message",
            "collect the traceback above the message",
        ],
        would_change_my_mind=["the free bytes of the device"],
    )


def _refused_block(c: OomCase, held: int, sure: Confidence) -> LogCandidate:
    n = c.numbers
    return c.found(
        "driver_limit_not_capacity",
        sure,
        f"{size(n.requested)} in one piece were refused on a device of {size(n.total or 0)} of which this "
        f"process holds {size(held)}: the driver limits a single allocation (4 GB on Arc, 1 GB under WSL2).",
        excludes={"allocator_fragmentation": f"this process holds only {size(held)}"},
        check_first=["the largest tensor that the same device does give, with nothing else on it"],
        remedy=[
            "split the tensor (a smaller batch or context): each part below the limit",
            "a driver and a PyTorch that relax the limit (`UR_L0_USE_RELAXED_ALLOCATION_LIMITS=1`)",
        ],
        would_change_my_mind=["another process that holds the rest of the device"],
    )


def exhausted(c: OomCase) -> LogCandidate:
    """The numbers say full, and no more."""
    deficit, n = c.verdict.deficit, c.numbers
    least = "at least " if n.free is None else ""
    short = f"free and pieces together are {least}{size(deficit)} short of the request"
    return c.found(
        "capacity_exhausted",
        "suspected",
        f"The card is full: {c.lacks()}." if n.free is not None else _cut_off(c),
        excludes={"allocator_fragmentation": short} if c.verdict.step == "4" else {},
        check_first=[
            "what the program was doing: the traceback above the message (loading, profiling, "
            "serving, training)",
        ],
        remedy=[
            f"free at least {size(max(deficit, n.requested))}: a smaller batch or context, lower "
            "precision, or more GPUs",
        ],
        would_change_my_mind=[
            NO_SETTING,
            "the frames of the traceback: they name the phase and a nearer cause",
        ],
    )


def _cut_off(c: OomCase) -> str:
    if c.verdict.most_free is not None:
        return f"An allocation failed: {c.lacks()}."
    return f"An allocation failed ({c.lacks()}); the message does not say how much was free."
