"""PyTorch's out-of-memory, judged by its numbers and by what the program was doing.

The phase comes first: the same numbers mean the weights while loading, the batch while profiling, the
graphs while capturing, and a too greedy budget while serving. Only then the fragmentation rule.
"""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.fragmentation import FULL_ALLOCATED
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs import oom_driver, oom_phases, oom_placeless, oom_serving, oom_starting
from kvprobe.diagnose.rules.logs.base import LogCandidate
from kvprobe.diagnose.rules.logs.oom_case import OomCase, case_of
from kvprobe.diagnose.rules.logs.vllm_memory_taken import is_unified
from kvprobe.summary.units import percent, size

_MAX_CASES = 3
_OTHERS_LIKELY: Final = 0.08
_OTHERS_NEEDED_AT_LOAD: Final = 0.05
_UNNAMED_NEEDED: Final = 0.15
_OVERHEAD_SHARE: Final = 0.12
_OTHERS_NOTABLE: Final = 0.2
_ROOMY: Final = 0.05
"""Pieces that leave so much of the card to spare decide, whatever was being loaded."""
_OTHERS_ROOT: Final = 0.25
"""Who holds so much of a card is the root, though pieces decide the request."""


def torch_oom(view: LogView) -> list[LogCandidate]:
    """Every sized out-of-memory of the log; the first ones suffice, the rest are echoes."""
    found: list[LogCandidate] = []
    for event in view.all("torch_oom")[:_MAX_CASES]:
        found += _judge(case_of(view, event))
    return found


def _judge(c: OomCase) -> list[LogCandidate]:
    if c.event.get("backend") == "mps":
        return [oom_driver.mps(c)]
    step = c.verdict.step
    if step == "0":
        return _bogus(c)
    if step == "0b":
        return [oom_driver.unusable(c)]
    if step == "1":
        return (
            [oom_driver.carve_out(c)] if oom_driver.total_is_a_carve_out(c) else oom_phases.can_never_fit(c)
        )
    if step == "3":
        return _refused_though_free(c)
    if step == "none" and (refused := oom_placeless.without_free(c)):
        return refused
    others = oom_driver.unified_host(c) or _others(c)
    if others is not None:
        return [others]
    if c.verdict.fragmented:
        return _fragmented(c)
    return [*oom_phases.plainly_short(c), *_overhead(c)]


def _refused_though_free(c: OomCase) -> list[LogCandidate]:
    """Step 3: neither capacity nor fragmentation by the numbers. While a card is being filled, a few free MiB
    are what the refusal itself gave back: then the phase is the root."""
    limit = oom_driver.driver(c)
    if limit.finding.confidence != "suspected" or c.site.phase is None:
        return [limit]
    filled = oom_phases.plainly_short(c)
    limit.root = not c.starting
    for one in filled:
        one.finding.confidence, one.root, one.excludes = "suspected", c.starting, {}
        limit.excludes.pop(one.finding.cause, None)
    return [limit, *filled]


def _bogus(c: OomCase) -> list[LogCandidate]:
    n = c.numbers
    against = f", {n.requested // n.total:,} times the card" if n.total else ""
    why = (
        f"{size(n.requested)} were asked for in one piece{against}: no tensor has that size, so a "
        "length or an "
        "index overflowed before it reached the allocator."
    )
    bug = c.found(
        "engine_accounting_bug",
        "certain",
        why,
        excludes={"capacity_exhausted": f"the size asked ({size(n.requested)}) is not a real demand"},
        check_first=["the shape that the innermost frame of the traceback computes"],
        remedy=["upgrade (or go back one version of) the engine and its kernels; no memory setting helps"],
        would_change_my_mind=["a plausible size in the same message"],
    )
    echo = c.found(
        "not_memory",
        "likely",
        "The message says out of memory, but memory is not what is wrong.",
        root=False,
        check_first=["the shape that the innermost frame of the traceback computes"],
        remedy=["no memory setting helps: mend what computed the size"],
        would_change_my_mind=["a plausible size in the same message"],
    )
    return [bug, echo]


def _others(c: OomCase) -> LogCandidate | None:
    """Somebody else holds what was missing; while loading, they must hold a notable part of the card."""
    v = c.verdict
    share = c.share(v.outside)
    if not v.outside_decides or share is None:
        return None
    small = share < _OTHERS_NEEDED_AT_LOAD  # a display, or a second context
    if small and (c.starting or c.pool_engine or not v.own_process_known or _holds_nearly_all(c)):
        return None
    if share < _UNNAMED_NEEDED and c.pool_engine and not _named(c):
        return None  # graphs, collectives and libraries of the engine itself may take as much
    return _somebody(c)


def _holds_nearly_all(c: OomCase) -> bool:
    return (c.share(c.numbers.allocated) or 0.0) >= FULL_ALLOCATED


def _sure_of_others(share: float, *, sure: bool) -> Confidence:
    if sure and share >= _OTHERS_ROOT:
        return "certain"
    return "likely" if sure or share >= _OTHERS_NOTABLE else "suspected"


def _named(c: OomCase) -> bool:
    """The message itself tells this process's use, or other processes."""
    return c.numbers.others is not None or c.verdict.own_process_known


def _somebody(c: OomCase) -> LogCandidate:
    v = c.verdict
    outside, share = v.outside or 0, c.share(v.outside) or 0.0
    named = _named(c)
    who = "other processes hold" if named else "memory that this process's PyTorch does not hold amounts to"
    sure = named and share >= _OTHERS_LIKELY
    unified = is_unified(c.view, c.numbers.total or 0)
    more = ", more than was missing" if v.step == "4" else ""
    return c.found(
        "other_process_on_gpu",
        _sure_of_others(share, sure=sure) if not unified else "suspected",
        f"{c.lacks()}; {who} {size(outside)} ({percent(share)} of the card){more}.",
        excludes={"allocator_fragmentation": f"free and pieces together are {size(v.deficit)} short"}
        if v.step == "4"
        else {},
        check_first=["`nvidia-smi` and `fuser -v /dev/nvidia*`: who holds the memory, and is it still alive"],
        remedy=[
            f"end or move the other processes: frees up to {size(outside)}",
            "choose another device (`CUDA_VISIBLE_DEVICES`), or a budget that is a share of what is "
            "free, not of the card",
        ],
        would_change_my_mind=["the same failure on a card that nobody else uses"],
    )


def _overhead(c: OomCase) -> list[LogCandidate]:
    """This process holds far more outside PyTorch than a context takes, and nobody else is on the card."""
    n, v = c.numbers, c.verdict
    if not n.total or n.own_process is None or n.allocated is None:
        return []
    outside = n.own_process - n.allocated - (n.unallocated or 0)
    if outside < _OVERHEAD_SHARE * n.total or outside < v.deficit:
        return []
    return [
        c.found(
            "runtime_context_overhead",
            "suspected",
            f"This process holds {size(outside)} outside PyTorch's allocator "
            f"({percent(outside / n.total)} of the "
            f"card), more than the {size(v.deficit)} that were missing; a context takes 0.3 to 1 GiB.",
            check_first=[
                "what else allocates in this process: NCCL, graphs, another framework, a second context"
            ],
            remedy=[f"find and free it: up to {size(outside)}"],
            root=not c.pool_engine,  # graphs and communication of an engine take as much
            would_change_my_mind=["the same amount in a process that only creates a context"],
        )
    ]


def _fragmented(c: OomCase) -> list[LogCandidate]:
    """Steps 5a, 5b and 6."""
    pieces = _pieces(c)
    if (c.share(c.verdict.outside) or 0.0) >= _OTHERS_ROOT:
        pieces.root = False
        return [_somebody(c), pieces]
    if c.verdict.full and (c.pool_engine or (c.starting and not _roomy(c))):
        pieces.root = False
        return [*oom_phases.behind_fragmentation(c), pieces]
    if "static_cache" in c.site and not c.pool_engine:
        return _behind_a_cache(c, pieces)
    if c.site.phase == "capture":
        pieces.root = False
        return [*oom_phases.plainly_short(c), pieces]
    return [pieces, _tight(c)]


def _roomy(c: OomCase) -> bool:
    """Step 5a with much to spare: step 6 asks for an engine with a pool, and the weights would fit."""
    return c.verdict.step == "5a" and (c.share(c.verdict.margin) or 0.0) >= _ROOMY


def _behind_a_cache(c: OomCase, pieces: LogCandidate) -> list[LogCandidate]:
    """A cache that a loader makes at once, for the longest context (ExLlama, a static cache): on a full card
    its length and the weights are the root of step 6, and pieces prove little."""
    if pieces.finding.confidence != "suspected":
        pieces.finding.confidence = "likely" if pieces.finding.confidence == "certain" else "suspected"
    if not c.verdict.full:
        return [pieces, _tight(c)]
    pieces.root = False
    cache = oom_serving.static_cache(c)
    cache.root, cache.finding.confidence = False, "suspected"
    extra = "the cache for the longest context is made beside them"
    return [oom_starting.too_large(c, "suspected", extra), cache, pieces]


def _pieces(c: OomCase) -> LogCandidate:
    n, v = c.numbers, c.verdict
    strong, alone = v.step == "5a", _no_others(c)
    spare = v.margin or 0
    why = (
        f"Fragmentation decides: needs {size(n.requested)}, has "
        f"{size((n.free or 0) + (n.unallocated or 0))} in pieces, "
        f"{size(n.free or 0)} in one piece; {size(spare)} to spare"
    )
    why += "." if strong else f" ({percent(spare / n.total)} of the card)." if n.total else "."
    return c.found(
        "allocator_fragmentation",
        _how_sure(c),
        why,
        excludes={"other_process_on_gpu": alone} if alone else {},
        check_first=[
            "the same run with `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` "
            "(`PYTORCH_ALLOC_CONF` since 2.9)",
            "`torch.cuda.memory_stats()`: inactive_split_bytes near the unallocated amount",
        ],
        remedy=[
            f"`expandable_segments:True`: makes up to {size(n.unallocated or 0)} of stranded memory usable",
            "cut the peak as well (batch tokens, KV budget): after perfect packing only "
            f"{size(spare)} are left",
        ],
        would_change_my_mind=["the same failure, at the same place, with expandable segments on"],
    )


def _how_sure(c: OomCase) -> Confidence:
    """A strong band on a card with room is proof; a few MiB on a full card prove little."""
    spare = (c.verdict.margin or 0) / c.numbers.total if c.numbers.total else 0.0
    if c.verdict.full and c.site.phase is None:
        return "suspected"  # what filled the card may well be the root, and nothing tells what it was
    if c.verdict.step == "5a":
        return (
            "certain" if not c.verdict.full and spare >= 0.01 else "likely" if spare >= 0.005 else "suspected"
        )
    return "likely"


def _no_others(c: OomCase) -> str | None:
    n = c.numbers
    if n.total is None or n.free is None or n.allocated is None or c.verdict.outside:
        return None
    rest = n.total - n.free - n.allocated - (n.unallocated or 0)
    return f"only {size(max(0, rest))} of the card lie outside this process's PyTorch: a normal context"


def _tight(c: OomCase) -> LogCandidate:
    spare = c.verdict.margin or 0
    return c.found(
        "capacity_exhausted",
        "suspected",
        f"Even perfectly packed only {size(spare)} would be left: the next larger request fails.",
        root=False,
        check_first=["how much the peak varies from step to step, against what would be left"],
        remedy=[f"cut the peak by more than {size(c.numbers.requested)}: a smaller batch, context or cache"],
        would_change_my_mind=["a day of load with expandable segments and without a failure"],
    )


RULES = (torch_oom,)
