"""A trace by row number: where each row begins, when it comes, whose session it is; rows stay in the file.

A million rows take some 30 MB here, however long their lists of hash ids are.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kvprobe.traces.lines import Line, line_at, open_bytes
from kvprobe.traces.read import Trace
from kvprobe.traces.rows import MAX_TOKENS, TraceRow, trace_error

NO_SESSION = -1


class TraceIndex:
    """The first rows of a trace, readable in any order.

    At most `most` rows, of those before `end_s`; a row of more than `longest_tokens`, prompt and answer
    together, is left out. Raises UsageError for a trace without a row.
    """

    def __init__(
        self, trace: Trace, most: int, end_s: float = float("inf"), longest_tokens: int = 2 * MAX_TOKENS
    ) -> None:
        self._trace = trace
        self._too_long = 0
        self._offsets = array("q")
        self._lines = array("q")
        self._times = array("d")
        self._sessions = array("q")
        self._turns = array("q")
        self._names: list[str] = []
        self.longest_in_tokens = self.longest_out_tokens = 0
        self.longest: tuple[int, int, int] = (0, 0, 0)
        """Prompt tokens, answer tokens and line of the row that has most of both together."""
        self._read(most, end_s, longest_tokens)
        self.dropped: Counter[str] = Counter(trace.dropped)
        """Rows that were left out among those that were read, by reason."""
        if self._too_long:
            self.dropped[f"more than {longest_tokens:,} tokens"] = self._too_long
        if not self._offsets:
            dropped = ", ".join(f"{n:,}: {why}" for why, n in self.dropped.items())
            why = "holds no request that can be sent" + (f" ({dropped})" if dropped else "")
            raise trace_error(trace.path, why, "give a trace with prompt and answer tokens")
        self._file = open_bytes(trace.path)

    def __len__(self) -> int:
        return len(self._offsets)

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    @property
    def path(self) -> Path:
        """The trace's file."""
        return self._trace.path

    @property
    def format(self) -> str:
        """The trace's format."""
        return self._trace.format

    @property
    def digest(self) -> str:
        """SHA-256 of the file as hex."""
        return self._trace.digest

    @property
    def orphans(self) -> int:
        """Rows whose parent chat is not in the file."""
        return self._trace.orphans

    def row(self, number: int) -> TraceRow:
        """Row `number`, read again from the file. Raises UsageError when the file has changed."""
        offset, line = self._offsets[number], self._lines[number]
        text = line_at(self._file, offset)
        raw = self._trace.parse(Line(line, offset, text))
        session = self._sessions[number]
        name, turn = (self._names[session], self._turns[number]) if session != NO_SESSION else (None, None)
        row = self._trace.finish(raw, 0.0, name, turn, line)
        return TraceRow(
            self._times[number],
            row.in_tokens,
            row.out_tokens,
            row.hash_ids,
            row.block_tokens,
            name,
            turn,
            line,
        )

    def times_s(self) -> Iterator[float]:
        """The instants of all rows in order, from the first row on."""
        return iter(self._times)

    def session(self, number: int) -> int | None:
        """Number of the session of row `number`, in order of appearance; null without one."""
        found = self._sessions[number]
        return None if found == NO_SESSION else found

    def _read(self, most: int, end_s: float, longest_tokens: int) -> None:
        numbers: dict[str, int] = {}
        for row, offset in self._trace.placed_rows():
            if len(self._offsets) >= most or row.t_s >= end_s:
                return
            if row.in_tokens + row.out_tokens > longest_tokens:
                self._too_long += 1
                continue
            self._offsets.append(offset)
            self._lines.append(row.line)
            self._times.append(row.t_s)
            self._turns.append(row.turn or 0)
            self.longest_in_tokens = max(self.longest_in_tokens, row.in_tokens)
            self.longest_out_tokens = max(self.longest_out_tokens, row.out_tokens)
            if row.in_tokens + row.out_tokens > sum(self.longest[:2]):
                self.longest = (row.in_tokens, row.out_tokens, row.line)
            if row.session is None:
                self._sessions.append(NO_SESSION)
                continue
            number = numbers.setdefault(row.session, len(numbers))
            if number == len(self._names):
                self._names.append(row.session)
            self._sessions.append(number)
