"""What looks like memory and is not, and what a log can say of KV precision."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, percent
from kvprobe.evidence.events import Event

_MEANING: Final[dict[str, tuple[str, str]]] = {
    "disk_full": (
        "A disk (not memory) is full.",
        "free space on the file system of the path in the traceback",
    ),
    "threads_exhausted": (
        "No new thread could be started: a limit of processes or threads.",
        "raise pids.max or `ulimit -u`",
    ),
    "files_exhausted": ("Too many open files: a limit of descriptors.", "raise `ulimit -n`"),
    "nccl_other": (
        "Communication between the ranks failed for another reason than memory.",
        "mend that; see NCCL_DEBUG=INFO",
    ),
}
_USAGE: Final = ("invalid usage", "two ranks on one GPU")
_ODD: Final = 1.05
_SAME: Final = 1.01


def not_memory(view: LogView) -> list[LogCandidate]:
    """Limits of disk, threads and descriptors, and communication errors."""
    if view.all("nccl_no_memory", "torch_oom", "cuda_oom", "cpu_oom", "killed", "xid"):
        return []
    for event in view.all(*_MEANING)[:1]:
        meaning, remedy = _MEANING[event.name]
        detail = f" ({event.get('what')})" if event.get("what") else ""
        return [
            candidate(
                "not_memory",
                "suspected" if event.name == "nccl_other" and event.get("what") not in _USAGE else "likely",
                f"{meaning[:-1]}{detail}.",
                [cite(event)],
                fatal=True,
                at=event,
                check_first=["the first error of the log, on every rank"],
                remedy=[remedy],
                would_change_my_mind=["an allocation failure before it"],
            )
        ]
    return []


def quantised_cache(view: LogView) -> list[LogCandidate]:
    """Perplexity with two KV formats, or the warning about scales alone."""
    measured = _perplexities(view)
    if len(measured) >= 2:
        return _compared(measured)
    warned = view.all("kv_scale_warning")
    if not warned or view.all("engine_stats"):
        return []
    return [
        candidate(
            "kv_quant_warning_harmless",
            "suspected",
            "The engine warns that its KV scales are 1.0; the log shows no damage, and the warning alone "
            "proves none.",
            cites(warned, 2),
            fatal=False,
            root=False,
            at=warned[0],
            check_first=[
                "the same tasks with 16-bit KV: long contexts and exact answers, not perplexity of 512 tokens"
            ],
            remedy=["calibrated scales, if the comparison shows a loss"],
            would_change_my_mind=["a measured loss: then kv_quant_error"],
        )
    ]


def _perplexities(view: LogView) -> list[tuple[str, float, Event]]:
    found: list[tuple[str, float, Event]] = []
    kinds = "unknown"
    for e in view.all("kv_types", "perplexity"):
        if e.name == "kv_types":
            kinds = f"{e.get('k')}/{e.get('v')}"
        elif e.get("perplexity"):
            found.append((kinds, float(e.get("perplexity")), e))
    return found


def _compared(measured: list[tuple[str, float, Event]]) -> list[LogCandidate]:
    plain = [m for m in measured if "f16" in m[0] or "bf16" in m[0]]
    packed = [m for m in measured if "f16" not in m[0] and m[0] != "unknown"]
    if not plain or not packed:
        return []
    base, worst = plain[0], max(packed, key=lambda m: m[1])
    ratio = worst[1] / base[1]
    if _SAME < ratio < _ODD:
        return []
    bad = ratio >= _ODD
    return [
        candidate(
            "kv_quant_error" if bad else "kv_quant_warning_harmless",
            "certain" if ratio >= 2 else "likely",
            f"Perplexity is {worst[1]:.4g} with {worst[0]} KV against {base[1]:.4g} with {base[0]} "
            f"(x{ratio:.3f}): "
            + (
                "the KV format damages the output."
                if bad
                else f"a difference of {percent(ratio - 1)}, within noise."
            ),
            [cite(base[2]), cite(worst[2])],
            fatal=False,
            at=worst[2],
            check_first=["K and V apart: K is the sensitive one; models with large K bias (Qwen2) first"],
            remedy=[
                "a finer format for K (q8_0 or 16 bit), V may stay",
                "16 bit for the first and last layers",
            ],
            would_change_my_mind=["the same texts and settings in both runs give other numbers"],
        )
    ]


RULES: tuple[LogRule, ...] = (not_memory, quantised_cache)
