"""SGLang's own checks. Its two kinds of out-of-memory need opposite changes, so the phase decides.

Pool = free after loading - free before loading x (1 - mem_fraction_static): at start a higher fraction
makes room for the pool, while serving a lower one makes room beside it.
"""

from __future__ import annotations

import re
from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence, Evidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, percent, size, told
from kvprobe.evidence.events import Event

_LEGAL_FRACTION: Final = 0.95
_ROOM_SHARE: Final = 0.04
"""Of the card: less than this for the pool is no room worth a start."""
_FULL_SHARE: Final = 0.85
"""Weights of this share leave no room at the default fraction; the model is too large for the card."""


def no_room(view: LogView) -> list[LogCandidate]:
    """No token fits after the weights: is the fraction too low, or are the weights too large?"""
    event = view.last("no_room_for_pool")
    negative = [e for e in view.all("profiled_tokens") if (e.get("profiled") or 0) <= 0]
    if event is None and not negative:
        return []
    at = event or negative[-1]
    loaded = [e for e in view.all("weights_loaded") if e.get("free_after") is not None]
    fraction = at.get("fraction") or told(view, "mem_fraction_static")
    evidence = [cite(at), *cites(loaded[-1:]), *cites(negative[:1])]
    least = told(view, "least", "fraction_needed")
    if least is not None and least <= _LEGAL_FRACTION and (fraction is None or least > fraction):
        evidence += cites(view.all("fraction_needed"), 1)
        return [_fraction(at, evidence, "likely", _by_its_own_sum(fraction, least, loaded))]
    if loaded and loaded[-1].get("weights") is not None:
        return [_by_numbers(at, loaded[-1], fraction, evidence)]
    sure: Confidence = "likely" if fraction is not None and negative else "suspected"
    if fraction is not None and fraction <= 0.6:
        return [
            _fraction(
                at,
                evidence,
                sure,
                f"Init, not run time: only {percent(fraction)} of the card may hold weights and pool.",
            )
        ]
    why = "Init, not run time: after the weights nothing is left for the KV pool"
    why += (
        f" at mem_fraction_static {fraction}."
        if fraction is not None
        else "; the fraction in use is not in the log."
    )
    return [_weights(at, evidence, sure, why)]


def _by_its_own_sum(fraction: float | None, least: float, loaded: list[Event]) -> str:
    kept = f"mem_fraction_static {fraction:g}" if fraction is not None else "the fraction"
    left = f" although {size(loaded[-1].get('free_after'))} were free after the weights" if loaded else ""
    return (
        f"Init, not run time: {kept} leaves nothing for the KV pool{left}; by the engine's own sum it has to "
        f"be at least {least:g}, which is legal."
    )


def _by_numbers(at: Event, loaded: Event, fraction: float | None, evidence: list[Evidence]) -> LogCandidate:
    free, weights = float(loaded.get("free_after")), float(loaded.get("weights"))
    before = free + weights
    best = free - before * (1 - _LEGAL_FRACTION)
    sums = f"Init, not run time: {size(weights)} of weights leave {size(free)} of {size(before)} free" + (
        f", and mem_fraction_static {fraction} keeps {size(before * (1 - fraction))} of it back"
        if fraction
        else ""
    )
    low = fraction is None or fraction < _FULL_SHARE
    if best > _ROOM_SHARE * before and low and weights < _FULL_SHARE * before:
        needed = weights / before
        return _fraction(
            at,
            evidence,
            "likely",
            f"{sums}; raise it above {needed:.2f}, at {_LEGAL_FRACTION} the pool gets {size(best)}.",
        )
    return _weights(
        at, evidence, _sure_of_weights(weights, before), f"{sums}; no legal fraction leaves room for KV."
    )


def _sure_of_weights(weights: float, before: float) -> Confidence:
    """What was free before is not the card: weights that are not most of it may miss what others hold."""
    return "likely" if weights >= 0.6 * before else "suspected"


def _fraction(at: Event, evidence: list[Evidence], sure: Confidence, why: str) -> LogCandidate:
    return candidate(
        "gpu_memory_utilization_too_low",
        sure,
        why,
        evidence,
        fatal=True,
        at=at,
        phase="profile",
        check_first=["`Load weight end … avail mem` against the card: what is free before the pool is made"],
        remedy=[
            "raise --mem-fraction-static (this is the failure at init; while serving it would be lowered)",
            "fewer bytes of weights: quantise, or a larger --tp-size",
        ],
        would_change_my_mind=["the failure comes after `Memory pool end`: then lower the fraction"],
    )


def _weights(at: Event, evidence: list[Evidence], sure: Confidence, why: str) -> LogCandidate:
    return candidate(
        "weights_plus_fixed_too_large",
        sure,
        why,
        evidence,
        fatal=True,
        at=at,
        phase="profile",
        check_first=[
            "`Load weight end`: mem usage and avail mem; whether someone else holds memory on the card"
        ],
        remedy=[
            "fewer bytes of weights on a card: quantise, a larger --tp-size, no draft model",
            "raise --mem-fraction-static only if it is well below 0.9",
        ],
        would_change_my_mind=["free memory after loading above a tenth of the card"],
    )


def unequal(view: LogView) -> list[LogCandidate]:
    """Ranks that find unequal room before anything is loaded: somebody else is on one of the cards."""
    event = view.first("gpus_unequal")
    if event is None:
        return []
    least, here = event.get("least"), event.get("free")
    numbers = f": {size(least)} on the fullest card, {size(here)} on this one" if least and here else ""
    return [
        candidate(
            "other_process_on_gpu",
            "likely",
            f"Before loading, the cards have unequal free memory{numbers}: something else is on them.",
            [cite(event)],
            fatal=True,
            at=event,
            phase="load",
            check_first=["`nvidia-smi` before the start: which processes are on the fullest card"],
            remedy=[
                "stop the other process, also one left over from an earlier run",
                "CUDA_VISIBLE_DEVICES with free cards only, all of one size",
            ],
            would_change_my_mind=["cards of different sizes in one group"],
        )
    ]


_OOM = re.compile(r"out of memory|OutOfMemory|OOM|MemoryAllocation", re.IGNORECASE)
_UNCLEAR = re.compile(r"ALLOC_FAILED|NOT_INITIALIZED|unhandled cuda error", re.IGNORECASE)
_NEAR_MEMORY = re.compile(r"memory|alloc|workspace|launch fail", re.IGNORECASE)
"""Errors that want of memory and other reasons share: other rules know them better."""


def graph_failed(view: LogView) -> list[LogCandidate]:
    """`Capture cuda graph failed: …`: the inner text decides."""
    event = view.first("graph_failed")
    if event is None:
        return []
    inner = str(event.get("inner") or "").strip()
    beside = bool(view.all("torch_oom", "cuda_oom"))
    if _OOM.search(inner) is not None or (not inner and beside):
        return [_no_room_for_graphs(event, view.last("pool_end"))]
    return [_other_reason(event, inner)] if inner and _UNCLEAR.search(inner) is None else []


def _no_room_for_graphs(event: Event, left: Event | None) -> LogCandidate:
    room = f" {size(left.get('free_after'))} were left after the pool." if left is not None else ""
    return candidate(
        "cudagraph_memory",
        "likely",
        f"Capturing CUDA graphs ran out of memory: the pool was sized first and left too little.{room}",
        [cite(event), *cites([left] if left else [])],
        fatal=True,
        at=event,
        phase="capture",
        check_first=["`Memory pool end. avail mem` and the largest batch that is captured"],
        remedy=[
            "a smaller --cuda-graph-max-bs",
            "a lower --mem-fraction-static",
            "--disable-cuda-graph (slower decode)",
        ],
        would_change_my_mind=["the same failure with --disable-cuda-graph"],
    )


def _other_reason(event: Event, inner: str) -> LogCandidate:
    return candidate(
        "not_memory",
        "suspected" if _NEAR_MEMORY.search(inner) else "likely",
        f"Capturing CUDA graphs failed for another reason than memory: {inner[:160]}",
        [cite(event)],
        fatal=True,
        at=event,
        phase="capture",
        check_first=["the inner error; SGLang's list of remedies is printed for every capture failure"],
        remedy=[
            "mend the inner error (kernel, shape, compiler, communication)",
            "--disable-cuda-graph to go on meanwhile",
        ],
        would_change_my_mind=["an out-of-memory on another rank before it"],
    )


RULES: tuple[LogRule, ...] = (no_room, unequal, graph_failed)
