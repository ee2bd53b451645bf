"""Request logs: which requests of a file are looked at, in which order, within bounded memory."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvprobe.errors import Problem, UsageError
from kvprobe.observe.logs import sources
from kvprobe.observe.logs.blocks import ByteStream
from kvprobe.observe.logs.tally import Tally
from kvprobe.prefixes.openai_form import Unusable, sent_of, time_of
from kvprobe.prefixes.rows import MAX_PROMPTS, Sent

MAX_LINE_BYTES = 16 << 20
MAX_LINES = 2_000_000
MAX_KEPT_CHARS = 128 << 20
"""Of the prompts that are kept for analysis; those of the first requests in time."""
_READ_BYTES = 1 << 20
_FIX = 'a line is {"messages": [{"role": "user", "content": "…"}]}, or one with `request` and `response`'


@dataclass(slots=True)
class RequestLog:
    """What was read, in order of time where every line has one."""

    path: str
    sent: list[Sent] = field(default_factory=list)
    requests: int = 0
    """All of the file; `sent` has those that are looked at, the first in time."""
    lines: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Why lines were left out, and how many."""
    timed: bool = False
    notes: list[str] = field(default_factory=list)


def read_request_log(path: str) -> RequestLog:
    """Raises `UsageError` when there is no request in it at all.

    A log may be larger than memory. What is kept while it is read is bounded: when it has more than that, and
    times that are not in order, it is read again for the prompts of its first requests.
    """
    log = RequestLog(path)
    first = _Kept(log)
    for number, line in _lines(path, log):
        first.take(number, line)
    if not log.requests:
        why = ", ".join(f"{n} {reason}" for reason, n in log.skipped.most_common(3)) or "it is empty"
        raise UsageError(Problem("no_requests", f"the file holds no request: {why}", _FIX, path))
    log.sent = first.in_order()
    return log


class _Kept:
    """The prompts read so far, up to the bounds, and of all requests the time and the line."""

    def __init__(self, log: RequestLog) -> None:
        self._log = log
        self._sent: dict[int, Sent] = {}
        self._chars = 0
        self._times = array("d")
        self._numbers = array("q")
        self._sizes = array("q")

    def take(self, number: int, line: bytes) -> None:
        log = self._log
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError):
            log.skipped["not JSON"] += 1
            return
        try:
            sent = sent_of(row if isinstance(row, dict) else {}, number)
        except Unusable as why:
            log.skipped[str(why)] += 1
            return
        except RecursionError:  # nested as deep as can be read, and deeper than can be written
            log.skipped["nested too deep"] += 1
            return
        log.requests += 1
        time = time_of(row)
        self._times.append(np.nan if time is None else time)
        self._numbers.append(number)
        self._sizes.append(len(sent.text))
        if self._has_room(sent):
            self._sent[number] = sent
            self._chars += len(sent.text)

    def _has_room(self, sent: Sent) -> bool:
        return len(self._sent) < MAX_PROMPTS and self._chars + len(sent.text) <= MAX_KEPT_CHARS

    def in_order(self) -> list[Sent]:
        """The first requests, by time where every line has one, else as they stand in the file."""
        times, numbers, sizes = (np.asarray(x) for x in (self._times, self._numbers, self._sizes))
        self._log.timed = not bool(np.isnan(times).any())
        order = np.argsort(times, kind="stable") if self._log.timed else np.arange(len(numbers))
        order = order[:MAX_PROMPTS]
        order = order[: max(1, int(np.searchsorted(np.cumsum(sizes[order]), MAX_KEPT_CHARS, "right")))]
        wanted = [int(n) for n in numbers[order]]
        missing = {n for n in wanted if n not in self._sent}
        for number in self._sent.keys() - set(wanted):
            del self._sent[number]
        if missing:
            again = RequestLog(self._log.path)  # its counts are those of the first reading
            for number, line in _lines(self._log.path, again):
                if number in missing:
                    self._sent[number] = sent_of(json.loads(line), number)
        return [self._sent[number] for number in wanted]


def _lines(path: str, log: RequestLog) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, with their numbers; packed files are unpacked."""
    tally = Tally()
    with sources.opened(path, tally) as source:
        for number, line in enumerate(_split(source.stream), 1):
            if number > MAX_LINES:
                log.skipped["lines beyond the first 2,000,000"] += 1
                break
            if line is None:
                log.skipped["far too long"] += 1
            elif line.strip():
                log.lines += 1
                yield number, line
    if tally.stopped is not None:
        raise tally.stopped
    log.notes = list(tally.notes)


def _split(stream: ByteStream) -> Iterator[bytes | None]:
    """Lines without their ends; null for one that is longer than is kept."""
    rest, over = b"", False
    while chunk := stream.read(_READ_BYTES):
        first, *more = chunk.split(b"\n")
        rest += first if not over else b""
        over = over or len(rest) > MAX_LINE_BYTES
        rest = b"" if over else rest
        if more:
            yield None if over else rest
            yield from more[:-1]
            rest, over = more[-1], False
    if over or rest:
        yield None if over else rest
