"""Endings that look like a memory problem to a search for words, and are something else."""

from __future__ import annotations

import re
from typing import Final

from kvprobe.diagnose.log_site import site_of
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.base import LogCandidate, candidate, cite
from kvprobe.diagnose.rules.logs.words import FATAL_EVENTS, lived_on, whole
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
_OF_ANY_CAUSE: Final = ("exception", "engine_dead", "collective_timeout", "watchdog_timeout")
_OTHER_MEMORY_EVENTS: Final = (
    *(n for n in FATAL_EVENTS if n not in _OF_ANY_CAUSE),
    "host_too_small",
    "ggml_cuda_oom",
    "metal_oom",
    "mlx_no_memory",
    "oom_words",
)
"""A fact of memory (or of the device) outranks what else a log complains of."""
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
"""Raised for a mistake, by Python or a library; `RuntimeError` and `ValueError` may be anything."""
_WRAPPERS: Final = frozenset(
    {"ValidationError", "OSError", "BackendCompilerFailed", "InductorError", "TypeError"}
)
"""They may carry another error inside, whose own lines an excerpt can lack."""
_CHECKS: Final = frozenset(
    {"AssertionError", "KeyError", "IndexError", "OverflowError", "ZeroDivisionError", "AttributeError"}
)
_KEEPERS: Final = re.compile(
    r"(?:block_manager|block_pool|block_table|block_allocator|kv_cache_manager|kv_cache_utils|kv_cache_coordinator|"
    r"prefix_caching_block|naive_block|evictor|radix_cache|memory_pool|mem_cache|allocator)\w{0,20}(?:/\w{1,40})?\.py"
)
_STEPS: Final = ("weights_loaded", "budget", "available_kv", "pool_size", "serving", "engine_stats")
_INNERMOST = 4
_MEMORY_WORDS: Final = ("memory", "alloc", "oom", "cuda", "nccl")


def refused_settings(view: LogView) -> list[LogCandidate]:
    """A named refusal: a setting, a file or a package, not memory."""
    event = next((e for e in view.all("config_refused") if not _went_on(view, e)), None)
    if event is None or view.all(*_MEMORY_EVENTS, *_OTHER_MEMORY_EVENTS):
        return []
    return [_not_memory(event, f"The start was refused for {event.get('kind')}")]


def crashes(view: LogView) -> list[LogCandidate]:
    """A signal of the processor, and not a word of memory: a build for another processor, or a bug."""
    event = next((e for e in view.all("crashed") if not _went_on(view, e)), None)
    others = (*_MEMORY_EVENTS, *_OTHER_MEMORY_EVENTS, "config_refused", "gpu_unusable", "exception")
    if event is None or view.all(*others):
        return []
    if event.get("kind") == "SIGILL":
        what = "The processor does not know an instruction of this build"
        return [_not_memory(event, what)]
    what = "The program accessed memory that is not its own (a bug, or a build that does not fit)"
    found = _not_memory(event, what)
    found.finding.confidence = "suspected"
    return [found]


def _went_on(view: LogView, event: Event) -> bool:
    """The engine took a further step after the line: it was a warning, or one request's error."""
    return any(e.source == event.source and e.line > event.line for e in view.all(*_STEPS))


def plain_exceptions(view: LogView) -> list[LogCandidate]:
    """A traceback that ends in a programming or file error, and no line of the log about memory."""
    if view.all(*_MEMORY_EVENTS, "config_refused", "gpu_unusable"):
        return []
    for event in view.all("exception"):
        if lived_on(view, event):
            continue  # a request's error that the server answered and outlived
        kind = str(event.get("type") or "").rsplit(".", 1)[-1]
        text = str(event.get("message") or event.text).lower()
        if kind in _PLAIN and not any(word in text for word in _MEMORY_WORDS):
            found = _not_memory(event, f"The program ended in {kind}")
            if kind in _WRAPPERS:
                found.finding.confidence = "suspected"
            return [found]
    return []


def _not_memory(event: Event, what: str) -> LogCandidate:
    return candidate(
        "not_memory",
        "likely",
        f"{what}, not for want of memory: {event.text[:160]}",
        [cite(event)],
        fatal=True,
        at=event,
        phase=event.phase,
        check_first=["the line itself: it names what has to change"],
        remedy=["mend that setting, file, package or version; no memory setting helps"],
        would_change_my_mind=["an out-of-memory message before this line"],
    )


def refused_requests(view: LogView) -> list[LogCandidate]:
    """A request longer than the context: an answer of 400, nothing wrong with the engine's memory."""
    event = view.last("context_refused")
    if event is None:
        return []
    asked, limit = event.get("asked"), event.get("limit")
    told = f": {whole(asked)} tokens against {whole(limit)}" if asked and limit else ""
    return [
        candidate(
            "context_limit_truncation",
            "likely",
            f"A request was longer than the context the engine serves{told}; no memory ran out.",
            [cite(event)],
            fatal=False,
            at=event,
            phase="serve",
            check_first=["prompt plus max_tokens of the request against the context limit"],
            remedy=["shorter prompts or a lower max_tokens", "a larger context limit (costs KV memory)"],
            would_change_my_mind=["an allocation failure at the same time"],
            excludes={"capacity_exhausted": "no allocation failed"},
        )
    ]


def broken_books(view: LogView) -> list[LogCandidate]:
    """A failed check inside the engine's own block keeping: its numbers are wrong, not the memory."""
    for event in view.all("exception"):
        kind = str(event.get("type") or "").rsplit(".", 1)[-1]
        doubled = "ouble free" in event.text
        frames = site_of(view, event).frames[-_INNERMOST:]
        keeper = next((f for f in reversed(frames) if _KEEPERS.search(str(f.get("file") or ""))), None)
        if lived_on(view, event) or not (doubled or (kind in _CHECKS and keeper is not None)):
            continue
        where = f" in `{keeper.get('function')}`" if keeper is not None else ""
        return [
            candidate(
                "engine_accounting_bug",
                "likely",
                f"A check of the engine's own block keeping failed{where}: {event.text[:160]}",
                [cite(event), *([cite(keeper, "function", "file")] if keeper is not None else [])],
                fatal=True,
                at=event,
                phase=event.phase,
                check_first=[
                    "which feature is on: speculation, prefix caching, offloading, swapping, aborts"
                ],
                remedy=[
                    "upgrade, or go back to the last version without it",
                    "switch the suspect feature off",
                ],
                would_change_my_mind=["an out-of-memory before this line"],
            )
        ]
    return []


RULES = (refused_settings, crashes, broken_books, plain_exceptions, refused_requests)
