"""From a trace file to rows: the format is told by its columns, rows stream, what is dropped is counted."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from kvprobe.traces.fields import BadCell
from kvprobe.traces.formats import FORMATS, KNOWN, Format, RawRow
from kvprobe.traces.lines import Line, open_bytes, read_lines
from kvprobe.traces.rows import TraceRow, trace_error
from kvprobe.traces.scaling import Scaling
from kvprobe.traces.sessions import SessionBook

NO_PROMPT = "no prompt tokens"
NO_ANSWER = "no answer tokens"
_MEND = "mend or drop that line"
_decode = msgspec.json.Decoder().decode


class Trace:
    """A trace file of a known format.

    `dropped` counts the rows that were left out in the latest pass over `rows`, by reason; a request
    without a prompt or without an answer (a failed one) is left out. Anything else that is wrong with
    a line is an error with its number.
    """

    def __init__(
        self, path: Path, form: Format, header: list[str] | None, scaling: Scaling, lengths_only: bool
    ) -> None:
        self.path = path
        self.format = form.name
        self.dropped: Counter[str] = Counter()
        self.orphans = 0
        """Rows of the latest pass whose parent chat is not in the file: they begin a session."""
        self._form = form
        self._header = header
        self._scaling = scaling
        self._full = not lengths_only

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file as hex."""
        with open_bytes(self.path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def rows(self) -> Iterator[TraceRow]:
        """All rows that can be used, in order. Raises UsageError with the line of what is wrong."""
        return (row for row, _ in self.placed_rows())

    def placed_rows(self) -> Iterator[tuple[TraceRow, int]]:
        """As `rows`, each with the byte at which its line begins (see `index`)."""
        self.dropped = Counter()
        book = SessionBook()
        first_s: float | None = None
        latest_s = 0.0
        with open_bytes(self.path) as file:
            lines = read_lines(file, self.path)
            if self._header is not None:
                next(lines, None)
            for line in lines:
                raw = self.parse(line)
                if raw.at_s < latest_s:
                    fix = "sort the trace by time"
                    raise trace_error(
                        self.path, "has a row that came before the one above it", fix, line.number
                    )
                latest_s = raw.at_s
                session, turn = book.place(raw)
                self.orphans = book.orphans
                why = NO_PROMPT if raw.in_tokens == 0 else NO_ANSWER if raw.out_tokens == 0 else None
                if why is not None:
                    self.dropped[why] += 1
                    continue
                first_s = raw.at_s if first_s is None else first_s
                yield self.finish(raw, raw.at_s - first_s, session, turn, line.number), line.offset

    def parse(self, line: Line) -> RawRow:
        """What one line says. Raises UsageError with its number."""
        try:
            row = self._cells(line)
            return self._form.parse(row, self._full)
        except BadCell as error:
            raise trace_error(self.path, f"has a line that {error}", _MEND, line.number) from error

    def finish(self, raw: RawRow, t_s: float, session: str | None, turn: int | None, line: int) -> TraceRow:
        """The row in its place, scaled. Raises UsageError where it cannot be scaled."""
        row = TraceRow(
            t_s, raw.in_tokens, raw.out_tokens, raw.hash_ids, raw.block_tokens, session, turn, line
        )
        return self._scaling.apply(row, self.path)

    def _cells(self, line: Line) -> dict[str, Any]:
        if self._header is None:
            return _json_object(line.text)
        cells = _csv_cells(line.text)
        if len(cells) != len(self._header):
            raise BadCell(f"has {len(cells):,} cells where the header has {len(self._header):,}")
        return dict(zip(self._header, cells, strict=True))


def open_trace(
    path: Path,
    format: str = "auto",
    *,
    scale_time: float = 1.0,
    scale_len: float = 1.0,
    lengths_only: bool = False,
) -> Trace:
    """The trace in `path`, of a known `format` or of the one that its columns tell.

    `scale_time` multiplies instants (0.5: twice as fast), `scale_len` prompts and answers (`scaling`
    says how what prompts share stays exact). With `lengths_only` instants are all 0 and hash ids null,
    and neither is checked. Raises UsageError for a file that is none.
    """
    scaling = Scaling(scale_time, scale_len)
    scaling.check(path)
    if format != "auto" and format not in FORMATS:
        known = ", ".join(FORMATS)
        raise trace_error(path, f"cannot be read as {format!r}", f"known formats: auto, {known}")
    with open_bytes(path) as file:
        first = next(read_lines(file, path), None)
    if first is None:
        raise trace_error(path, "is empty", f"known are {KNOWN}")
    if first.text.lstrip().startswith("{"):
        form, header = _json_format(path, format, first, lengths_only), None
    else:
        form, header = _csv_format(path, format, first)
    return Trace(path, form, header, scaling, lengths_only)


def _json_format(path: Path, asked: str, first: Line, lengths_only: bool) -> Format:
    try:
        keys = frozenset(_json_object(first.text))
    except BadCell as error:
        raise trace_error(path, f"has a line that {error}", _MEND, first.number) from error
    form = _choose(path, asked, keys, csv_form=False)
    if asked == "auto" and form.name == "mooncake" and not lengths_only and "hash_ids" not in keys:
        why = "has lengths and no hash ids or chat ids: its times may be seconds or milliseconds"
        raise trace_error(path, why, "say which format it is: mooncake (milliseconds) or qwen (seconds)", 1)
    return form


def _csv_format(path: Path, asked: str, first: Line) -> tuple[Format, list[str]]:
    try:
        header = [cell.strip() for cell in _csv_cells(first.text)]
    except BadCell as error:
        raise trace_error(path, f"has a first line that {error}", f"known are {KNOWN}", 1) from error
    form = _choose(path, asked, frozenset(header), csv_form=True)
    twice = next((name for name in form.needs if header.count(name) > 1), None)
    if twice is not None:
        raise trace_error(path, f"has two columns `{twice}`", "keep the one that is meant", first.number)
    return form, header


def _choose(path: Path, asked: str, columns: frozenset[str], *, csv_form: bool) -> Format:
    found = [f for f in FORMATS.values() if f.csv == csv_form and f.fits(columns)]
    if asked != "auto":
        found = [f for f in found if f.name == asked]
    if found:
        return found[0]
    shown = ", ".join(sorted(columns)[:8])[:200] or "nothing"
    what = f"of {asked}" if asked != "auto" else "of a known trace"
    raise trace_error(path, f"has no columns {what}; its first line holds: {shown}", f"known are {KNOWN}", 1)


def _json_object(text: str) -> dict[str, Any]:
    try:
        row = _decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadCell(f"is no JSON: {str(error)[:120]}") from error
    if not isinstance(row, dict):
        raise BadCell("is no JSON object")
    return row


def _csv_cells(text: str) -> list[str]:
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error as error:
        raise BadCell(f"is no CSV: {error}") from error
    return rows[0] if rows else []
