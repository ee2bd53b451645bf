"""How a log ends: with a traceback, a shutdown, in mid-life without a word, or is it only an excerpt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from kvprobe.observe.logs.entries import Entry, entries_of
from kvprobe.observe.logs.provenance import is_exception_line

Ending = Literal["traceback", "shutdown", "cut", "excerpt"]

EDGE_BYTES = 48 * 1024
_EDGE_LINES = 80
_FEWEST_LINES = 12
"""Fewer lines are an excerpt, whatever they look like."""
_LIVES_ON = 12
"""So many ordinary lines after a traceback, and the process lived on."""
_SHUTDOWN = re.compile(
    r"Shutting down|shutting down|shutdown triggered|received signal=SIG(?:TERM|INT)|[Ss]hutdown complete"
    r"|Finished server process|Server stopped|Stopping server|Goodbye|Exiting\b|cleaning up before exit"
    r"|[Rr]eceived (?:SIGTERM|SIGINT|signal 15|signal 2|exit signal)"
    r"|[Gg]raceful(?:ly)? (?:shutdown|stop|exit)|Deactivated successfully|exited with code 0\b"
)
_UNWISHED = re.compile(r"died|dead|fail|[Ee]rror|unexpected")
_ABORT = re.compile(
    r"terminate called|Aborted|Segmentation fault|core dumped|GGML_ASSERT|ggml_abort|Fatal Python error"
    r"|panicked at|SIGABRT|SIGSEGV|std::bad_alloc|Traceback \(most recent call last\)|CUDA error:"
)
_WISHED = re.compile(r"(?:[\w.]{1,80}\.)?(?:KeyboardInterrupt|CancelledError|SystemExit|GeneratorExit)\b")
_PROGRESS = re.compile(r"\d{1,3}%[| ]|it/s\]|s/it\]|\d{1,3}% Completed")


class Edges:
    """Passes blocks through and keeps the first and the last of a source."""

    def __init__(self) -> None:
        self.head = b""
        self._tail = b""

    def watch(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """The same blocks."""
        for block in blocks:
            if not self.head:
                self.head = block[:EDGE_BYTES]
            self._tail = block if len(block) >= EDGE_BYTES else (self._tail + block)[-2 * EDGE_BYTES :]
            yield block

    def ending(self) -> Ending:
        """How the source ends, judged by its last lines (and by whether it is a log at all)."""
        tail = list(_lines(self._tail[-EDGE_BYTES:]))[-_EDGE_LINES:]
        if not tail:
            return "excerpt"
        head = list(_lines(self.head))[:_EDGE_LINES]
        stopped = _where(tail, _is_shutdown)
        crashed = _where(tail, _is_crash)
        wished = bool(stopped) and (not crashed or stopped[0] < crashed[0])
        if wished and _ordinary_after(tail, stopped[-1]) <= _LIVES_ON:
            return "shutdown"  # errors of a server that is being stopped are its last noise
        if crashed and _ordinary_after(tail, crashed[-1]) <= _LIVES_ON:
            return "traceback"
        return "cut" if _is_log(head, tail) else "excerpt"


def _lines(data: bytes) -> Iterator[Entry]:
    for raw in data.split(b"\n"):
        if raw.strip():
            yield entries_of("", 0, raw)[-1]


def _is_crash(entry: Entry) -> bool:
    text = entry.line.text
    if _WISHED.match(text) is not None:
        return False
    return is_exception_line(text) or (_ABORT.search(text) is not None)


def _is_shutdown(entry: Entry) -> bool:
    text = entry.line.text
    return _SHUTDOWN.search(text) is not None and _UNWISHED.search(text) is None


def _where(entries: list[Entry], holds: Callable[[Entry], bool]) -> list[int]:
    return [i for i, entry in enumerate(entries) if holds(entry)]


def _ordinary_after(entries: list[Entry], index: int) -> int:
    """Lines of an engine's life below: what its logger says that is no warning and no error."""
    quiet = ("WARNING", "WARN", "ERROR", "CRITICAL", "FATAL", "W", "E", "F")
    below = (e for e in entries[index + 1 :] if e.head.speaker == "logger")
    return sum(1 for e in below if (e.line.level or "").upper() not in quiet)


def _is_log(head: list[Entry], tail: list[Entry]) -> bool:
    """Most lines carry a logger's prefix or are the states of a progress bar, and there are enough."""
    lines = [*head, *tail]
    marked = sum(1 for e in lines if e.head.stamped or _PROGRESS.search(e.line.text) is not None)
    return len(tail) >= _FEWEST_LINES and 2 * marked >= len(lines)
