"""An error that says "out of memory" in words that no other reader knows.

Only a line that reports an error counts: advice ("if you run out of memory, …") and settings do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of

_FAILED = re.compile(
    r"(?:[Ee]rror|ERROR|[Ff]ailed|FAILED|[Ee]xception|what\(\)|panic|fatal|FATAL|terminate)\b.{0,200}?"
    r"(?:out[ _-]of[ _-]memory|OutOfMemory|OOM\b|insufficient memory|not enough memory)",
    re.IGNORECASE,
)
_ADVICE = re.compile(
    r"\b(?:if|may|might|could|can|avoid|prevent|to reduce|in case|when|try|consider|possible|unless|on oom|"
    r"handle|retry|falling back|fallback|pinned)\b",
    re.IGNORECASE,
)
_OUTLIVED = re.compile(r"falling back|retrying (?:with|without)", re.IGNORECASE)
_HOST = re.compile(r"\b(?:host|cpu|system|RAM|heap|mmap|std::bad_alloc|java)\b", re.IGNORECASE)


def _words(line: Line, around: Around) -> Iterable[Event]:
    found = _FAILED.search(line.text[:600])
    if found is None or _ADVICE.search(line.text[: found.end()]) or _OUTLIVED.search(line.text[:600]):
        return
    yield event_of(line, "oom_words", {"host": Value(True)} if _HOST.search(found[0]) else {})


READERS: tuple[Reader, ...] = (
    Reader(
        name="out of memory in words",
        engine=None,
        anchors=(
            "out of memory",
            "Out of memory",
            "OutOfMemory",
            "out-of-memory",
            "OUT_OF_MEMORY",
            "nsufficient memory",
        ),
        read=_words,
    ),
)
