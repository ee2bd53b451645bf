"""Who says a line, judged with the lines around it: foreign text can go on over many of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kvprobe.evidence.events import Event, Provenance
from kvprobe.observe.logs import provenance
from kvprobe.observe.logs.entries import LINE_BYTES, Entry
from kvprobe.observe.logs.page import Neighbours

_FOREIGN_LINES = 64
_ROUTINE = frozenset({"engine_stats", "frame", "phase", "config"})
"""What stands on every other line of a log and proves no failure: not worth looking far around."""
_FAILURE = re.compile(
    r"oom|failed|killed|xid|fault|off_bus|no_room|no_memory|no_cache|exceeds|refused|dead|died|leak|lost|kv_full"
    r"|exhausted|free_below|assert|below_one|exception"
)
"""Events that tell of a failure; what an engine says of itself while all is well is not among them."""


def who_says(entry: Entry, around: Neighbours, position: int) -> Provenance:
    """The provenance of a line whose first anchor stands at `position` of its message."""
    text = entry.line.text
    if provenance.quoted_at(text, position) or provenance.is_source_code(text, _above(around, 3)):
        return "quoted"
    if entry.head.speaker is None and _in_foreign_text(around):
        return "quoted"
    if entry.head.speaker == "kernel":
        return "kernel"
    if provenance.is_exception_line(text):
        return "traceback"
    return "logger" if entry.head.speaker == "logger" else "bare"


def _above(around: Neighbours, n: int) -> list[str]:
    lines: list[str] = []
    for entry in around.above():
        lines.insert(0, entry.line.text)
        if len(lines) >= n:
            break
    return lines


def _in_foreign_text(around: Neighbours) -> bool:
    """Whether a line without a prefix goes on with what a logger's line above began to quote."""
    for count, entry in enumerate(around.above()):
        if count >= _FOREIGN_LINES or provenance.closes_foreign_text(entry.line.text):
            return False
        if entry.head.stamped:
            cut = len(entry.line.raw) >= LINE_BYTES - 4
            return not cut and provenance.opens_foreign_text(entry.line.text, entry.head.level)
    return False


def is_foreign(events: Sequence[Event], entry: Entry, around: Neighbours, position: int) -> bool:
    """Whether events of a line with a logger's prefix, whose anchor stands at `position`, are told of what
    somebody sent: the prefix itself can be a part of a prompt of many lines."""
    if entry.line.provenance == "quoted":
        return True
    if not any(event.name not in _ROUTINE for event in events):
        return False
    if any(_FAILURE.search(event.name) for event in events) and provenance.retells(
        entry.line.text, position, entry.head.level
    ):
        return True
    # llama.cpp's own words are its prefix: whoever quotes a line of it quotes that too.
    unmarked = entry.head.time_s is None and entry.head.level is None
    return (unmarked and _in_foreign_text(around)) or _within_quotation(around)


def _within_quotation(around: Neighbours) -> bool:
    """Whether a quotation opens above, and is closed below in the way that only its writer can."""
    mark = None
    for entry in _few(around.above()):
        text = entry.line.text
        if (mark := provenance.opens_quotation(text)) is not None:
            if len(entry.line.raw) >= LINE_BYTES - 4 or not entry.head.stamped:
                return False
            break
        if provenance.closes_foreign_text(text):
            return False
    if mark is None:
        return False
    for entry in _few(around.below()):
        if provenance.closes_quotation(entry.line.text, mark):
            return provenance.opens_quotation(entry.line.text) is None
        if entry.head.stamped and provenance.opens_quotation(entry.line.text) is not None:
            return False
    return False


def _few(entries: Iterator[Entry]) -> Iterator[Entry]:
    for count, entry in enumerate(entries):
        if count >= _FOREIGN_LINES:
            return
        yield entry
