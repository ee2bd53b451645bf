"""The requests of a trace as prompts: the right lengths, and exactly the sharing that its hash ids say.

A prompt is its blocks' texts one after another. The text of a full block follows from its id and the
run's salt alone, so two prompts whose lists of ids begin alike begin with the same text, and part at the
first token of the first block that differs (or within a word of it). The rest that fills no block is
shared only by prompts that are the same as a whole: its text follows from the whole list and its length.
The template's tokens come out of that rest as far as they fit, so that a prompt is as long as in the trace.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from kvprobe.load.job import PlannedRequest
from kvprobe.load.prompt_kinds import LOOKED_AT, Prefix, PromptKind
from kvprobe.load.prompt_texts import Message, Texts
from kvprobe.load.words import HEADS, WORDS
from kvprobe.load.workload import Workload
from kvprobe.load.workload_base import MAX_TOKENS
from kvprobe.load.workload_parts import MAX_OUTPUT_TOKENS, MAX_REQUESTS
from kvprobe.load.workload_prompts import TraceReplayPrompt
from kvprobe.traces.index import TraceIndex
from kvprobe.traces.read import open_trace
from kvprobe.traces.rows import TraceRow, trace_error

_KEPT_BYTES = 64 << 20
_NO_LIMIT = 1 << 62


class TraceKind(PromptKind):
    """Request `index` of the plan is row `index` of the trace; the first ones may be the warm-up."""

    def __init__(self, workload: Workload, texts: Texts, prompt: TraceReplayPrompt) -> None:
        super().__init__(workload, texts)
        self._warmups = workload.warmup_requests
        self.index = _index_of(workload, prompt)
        self._blocks = BlockTexts(texts)
        self._units = _units(self.index)

    def facts(self) -> dict[str, object]:
        """What was read of the trace."""
        return {
            "path": str(self.index.path),
            "format": self.index.format,
            "sha256": self.index.digest,
            "rows": len(self.index),
            "dropped": dict(self.index.dropped),
            "orphans": self.index.orphans,
        }

    def total(self) -> int:
        return self.workload.requests or max(len(self.index) - self._warmups, 0)

    def measured(self, number: int, index: int) -> PlannedRequest:
        return self._request(self.index.row(index), index)

    def warmup(self, number: int, high: int, index: int) -> PlannedRequest:
        """The trace's own first rows; a closed loop's warm-up by time has texts of its own instead."""
        if index >= 0:
            return self._request(self.index.row(index), index)
        row = self.index.row(number % len(self.index))
        target = row.in_tokens - self.texts.overhead(["user"])
        message = Message("user", *self.texts.text("warmup", high, target))
        return self.texts.planned(index, [message], row.out_tokens)

    def aimed_at(self) -> int:
        return min(self.total(), LOOKED_AT)

    def prefixes(self, number: int, index: int) -> tuple[int, list[Prefix]]:
        row = self.index.row(index)
        before, overhead = self.texts.template(system=False).before, self.texts.overhead(["user"])
        full = row.full_blocks * (row.block_tokens or 0)
        tokens = max(row.in_tokens, full + overhead)
        found: list[Prefix] = []
        chain = 0
        for place, block in enumerate((row.hash_ids or ())[: row.full_blocks], start=1):
            chain = hash((chain, block))
            found.append(((place, chain), before + place * (row.block_tokens or 0)))
        if row.hash_ids is not None:
            found.append((("whole", row.hash_ids[-1:], chain, row.in_tokens), tokens))
        return tokens, found

    def brought_by_warmup(self) -> Iterator[Prefix]:
        for index in range(self._warmups):
            yield from self.prefixes(index - self._warmups, index)[1]

    def session_turns(self, number: int) -> Sequence[int] | None:
        """Rows from the start of the plan, the warm-up's with them; null for a trace without sessions."""
        if self._units is None:
            return None
        return self._units[number] if number < len(self._units) else ()

    def session_number(self, index: int) -> int | None:
        return self.index.session(index) if 0 <= index < len(self.index) else None

    def instants(self) -> Iterator[float]:
        return self.index.times_s()

    def _request(self, row: TraceRow, index: int) -> PlannedRequest:
        message = Message("user", *self._text(row, index))
        session = self.index.session(index)
        return self.texts.planned(
            index,
            [message],
            row.out_tokens,
            session=None if session is None else f"session-{session:05d}",
            turn=row.turn if session is not None else None,
        )

    def _text(self, row: TraceRow, index: int) -> tuple[str, float]:
        overhead = self.texts.overhead(["user"])
        if row.hash_ids is None or row.block_tokens is None:
            return self.texts.text("text", index, max(row.in_tokens - overhead, 1))
        full = row.hash_ids[: row.full_blocks]
        pieces = [self._blocks.text(n, row.block_tokens, first=not at) for at, n in enumerate(full)]
        rest = row.in_tokens - len(full) * row.block_tokens - overhead
        if rest > 0:
            # Without an id of its own the rest is nobody else's.
            own = "" if len(row.hash_ids) > len(full) else f"/{index}"
            pieces.append(self._blocks.rest(_digest(row.hash_ids) + own, rest, first=not full))
        return "".join(text for text, _ in pieces), sum(tokens for _, tokens in pieces)


class BlockTexts:
    """Texts of blocks by their ids, the latest kept."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._made: OrderedDict[tuple[int, int, bool], tuple[str, float]] = OrderedDict()
        self._made_bytes = 0

    def text(self, block: int, tokens: int, *, first: bool) -> tuple[str, float]:
        """The text of block `block`; the `first` of a prompt begins without a space."""
        key = (block, tokens, first)
        known = self._made.get(key)
        if known is not None:
            self._made.move_to_end(key)
            return known
        made = self._made[key] = self._make(block, tokens, first)
        self._made_bytes += len(made[0])
        while self._made_bytes > _KEPT_BYTES and len(self._made) > 1:
            self._made_bytes -= len(self._made.popitem(last=False)[1][0])
        return made

    def rest(self, name: str, tokens: int, *, first: bool) -> tuple[str, float]:
        """A text that fills no block, for the prompts of this name."""
        key = self._texts.key(f"rest/{name}/{tokens}", 0)
        return self._texts.question(key, tokens) if first else self._texts.filler.fill(key, tokens)

    def _make(self, block: int, tokens: int, first: bool) -> tuple[str, float]:
        """Words that spell the id, as far as they fit, then words that follow from it."""
        filler, key = self._texts.filler, self._texts.key("block", block)
        opening, spent, high = "", 0.0, block
        if first:
            head = HEADS[(block + self._texts.shift) % len(HEADS)]
            opening, spent, high = head, filler.head_tokens(head), block // len(HEADS)
        while high or not opening:
            word = (high + self._texts.shift) % len(WORDS)
            cost = filler.word_tokens(word)
            if spent + cost > tokens:
                break
            opening, spent, high = opening + WORDS[word], spent + cost, high // len(WORDS)
        rest, worth = filler.fill(key, tokens - spent)
        return opening + rest, spent + worth


def _digest(ids: Sequence[int]) -> str:
    return hashlib.blake2b(array("q", ids).tobytes(), digest_size=16).hexdigest()


def _index_of(workload: Workload, prompt: TraceReplayPrompt) -> TraceIndex:
    """The rows that the run can want. Raises UsageError when the trace has fewer than it asks for."""
    opened = workload.arrival.open
    end_s = float("inf")
    if workload.requests is None and workload.duration_s is not None and opened and opened.trace:
        wanted_s = workload.duration_s + (workload.warmup.duration_s or 0.0)
        # A warm-up by number comes before the duration, and takes as long as its rows do.
        if not workload.warmup_requests:
            end_s = wanted_s / opened.trace.scale_time
    most = MAX_REQUESTS if workload.requests is None else workload.requests + workload.warmup_requests
    try:
        stat = os.stat(prompt.trace)
    except OSError as error:
        raise trace_error(
            prompt.trace, f"cannot be read: {error.strerror}", "give a file that can be read"
        ) from error
    form, longest = prompt.format, prompt.max_request_tokens or _NO_LIMIT
    index = _read(prompt.trace, form, prompt.scale_len, most, end_s, longest, stat.st_mtime_ns, stat.st_size)
    if workload.requests is not None and len(index) < most:
        why = f"has {len(index):,} rows that can be sent, and the workload asks for {most:,}"
        if index.dropped:
            why += " (left out: " + ", ".join(f"{n:,} {reason}" for reason, n in index.dropped.items()) + ")"
        raise trace_error(
            prompt.trace, why, f"write `requests: {max(len(index) - workload.warmup_requests, 1)}`"
        )
    return index


@lru_cache(maxsize=4)
def _read(
    path: str, form: str, scale_len: float, most: int, end_s: float, longest: int, mtime_ns: int, size: int
) -> TraceIndex:
    """The same file is read once: a run asks for its prompts several times. Raises UsageError."""
    trace = open_trace(Path(path), form, scale_len=scale_len)
    index = TraceIndex(trace, most, end_s, longest)
    for what, found, limit in (
        ("a prompt", index.longest_in_tokens, MAX_TOKENS),
        ("an answer", index.longest_out_tokens, MAX_OUTPUT_TOKENS),
    ):
        if found > limit:
            why = f"has {what} of {found:,} tokens, above {limit:,}"
            raise trace_error(
                path, why, "set `prompt.max_request_tokens`, or scale it with `prompt.scale_len`"
            )
    return index


def _units(index: TraceIndex) -> list[array[int]] | None:
    """Rows of each session in order, a row without a session by itself; null without any session."""
    if all(index.session(number) is None for number in range(len(index))):
        return None
    units: list[array[int]] = []
    places: dict[int, int] = {}
    for number in range(len(index)):
        session = index.session(number)
        if session is None:
            units.append(array("q", [number]))
        elif session in places:
            units[places[session]].append(number)
        else:
            places[session] = len(units)
            units.append(array("q", [number]))
    return units
