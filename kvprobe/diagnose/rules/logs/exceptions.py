"""Endings that look like a memory problem to a search for words, and are something else."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.base import LogCandidate, candidate, cite
from kvprobe.evidence.events import Event

_MEMORY_EVENTS: Final = (
    "torch_oom",
    "cuda_oom",
    "cpu_oom",
    "nvml_assert",
    "library_alloc_failed",
    "no_cache_blocks",
    "len_exceeds_pool",
    "free_below_desired",
    "profiling_assert",
    "killed",
    "gpu_fault",
)
_PLAIN: Final = frozenset(
    {
        "ImportError",
        "ModuleNotFoundError",
        "AttributeError",
        "KeyError",
        "NameError",
        "FileNotFoundError",
        "NotImplementedError",
        "UnicodeDecodeError",
        "JSONDecodeError",
        "ValidationError",
        "PackageNotFoundError",
        "OSError",
        "PermissionError",
        "ConnectionRefusedError",
        "TypeError",
        "IndexError",
        "SyntaxError",
        "HFValidationError",
        "GatedRepoError",
        "RepositoryNotFoundError",
        "BackendCompilerFailed",
        "InductorError",
        "CompilationError",
        "UserError",
    }
)
"""Exceptions that Python or a library raises for a mistake; `RuntimeError` and `ValueError` may be anything."""
_MEMORY_WORDS: Final = ("memory", "alloc", "oom", "cuda", "nccl")


def refused_settings(view: LogView) -> list[LogCandidate]:
    """A named refusal: a setting, a file or a package, not memory."""
    event = view.first("config_refused")
    if event is None or view.all(*_MEMORY_EVENTS):
        return []
    return [_not_memory(event, f"The start was refused for {event.get('kind')}", certain=True)]


def plain_exceptions(view: LogView) -> list[LogCandidate]:
    """A traceback that ends in a programming or file error, and no line of the log about memory."""
    if view.all(*_MEMORY_EVENTS, "config_refused", "gpu_unusable"):
        return []
    for event in view.all("exception"):
        kind = str(event.get("type") or "").rsplit(".", 1)[-1]
        text = str(event.get("message") or event.text).lower()
        if kind in _PLAIN and not any(word in text for word in _MEMORY_WORDS):
            return [_not_memory(event, f"The program ended in {kind}", certain=False)]
    return []


def _not_memory(event: Event, what: str, *, certain: bool) -> LogCandidate:
    return candidate(
        "not_memory",
        "certain" if certain else "likely",
        f"{what}, not for want of memory: {event.text[:160]}",
        [cite(event)],
        fatal=True,
        at=event,
        phase=event.phase,
        check_first=["the line itself: it names what has to change"],
        remedy=["mend that setting, file, package or version; no memory setting helps"],
        would_change_my_mind=["an out-of-memory message before this line"],
    )


RULES = (refused_settings, plain_exceptions)
