"""Lengths from a file: a request trace of a known form, or a run directory of kvprobe.

Each row gives prompt and answer; their sum is what the request holds at its end. Forms are told by their
columns: Azure (`ContextTokens,GeneratedTokens`), BurstGPT (`Request tokens,Response tokens`), vidur
(`num_prefill_tokens,num_decode_tokens`), Mooncake and Qwen JSONL (`input_length`, `output_length`).
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from kvprobe.errors import Problem, UsageError
from kvprobe.plan.lengths import MAX_TOKENS, Lengths, from_counts

_CSV_COLUMNS = {
    "Azure": ("ContextTokens", "GeneratedTokens"),
    "BurstGPT": ("Request tokens", "Response tokens"),
    "vidur": ("num_prefill_tokens", "num_decode_tokens"),
}
_GROWN = "each request is counted at full growth: prompt and answer together"
MAX_ROWS = 20_000_000
MAX_LINE_CHARS = 1_000_000
_FORMS = "Azure, BurstGPT and vidur CSV, Mooncake and Qwen JSONL, or a run directory"


def read_lengths(path: Path, spec: str) -> Lengths:
    """The lengths that `path` holds. Raises UsageError naming what is wrong and where."""
    if path.is_dir():
        return _run_lengths(path, spec)
    if not path.is_file():  # a pipe without a writer would wait for ever
        raise _bad(path, "is no regular file", "write the trace to a file first")
    if path.name == "requests.parquet":
        return _parquet_lengths(path, spec)
    try:
        with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
            return _trace_lengths(file, path, spec)
    except OSError as error:
        raise _bad(path, f"cannot be read: {error.strerror}", "give a file that can be read") from error


def _trace_lengths(file: TextIO, path: Path, spec: str) -> Lengths:
    first = file.readline(MAX_LINE_CHARS)
    file.seek(0)
    if first.lstrip().startswith("{"):
        return _counted(
            _json_rows(file, path), "trace (JSONL with input_length and output_length)", path, spec
        )
    try:
        rows = csv.DictReader(file)
        columns = rows.fieldnames or []
        for name, pair in _CSV_COLUMNS.items():
            if set(pair) <= set(columns):
                return _counted(_csv_rows(rows, pair, path), f"trace ({name} CSV)", path, spec)
    except csv.Error as error:
        raise _bad(path, f"is no CSV: {error}", f"known are {_FORMS}") from error
    shown = ", ".join(columns[:6]) or "nothing"
    raise _bad(
        path, f"has no columns of a known trace; its first line holds: {shown[:200]}", f"known are {_FORMS}"
    )


def _csv_rows(rows: csv.DictReader[str], pair: tuple[str, str], path: Path) -> Iterator[int]:
    for row in rows:
        yield _total(row.get(pair[0]), row.get(pair[1]), path, rows.line_num)


def _json_rows(file: TextIO, path: Path) -> Iterator[int]:
    number = 0
    while line := file.readline(MAX_LINE_CHARS):
        number += 1
        if not line.strip():
            continue
        try:
            row: Any = json.loads(line)
        except (json.JSONDecodeError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise _bad(path, "holds a line that is no JSON object", "mend or drop that line", number)
        yield _total(row.get("input_length"), row.get("output_length"), path, number)


def _total(prompt: object, answer: object, path: Path, line: int) -> int:
    """Prompt + answer; a row whose numbers are missing or absurd is an error, not a zero."""
    counts = []
    for value in (prompt, answer):
        try:
            count = float(str(value))
        except ValueError:
            count = -1.0
        if not 0 <= count <= MAX_TOKENS:
            raise _bad(path, "has a row without both token counts", "mend or drop that row", line)
        counts.append(round(count))
    return sum(counts)


def _counted(
    totals: Iterator[int], source: str, path: Path, spec: str, assumptions: tuple[str, ...] = ()
) -> Lengths:
    counts: Counter[int] = Counter()
    requests = 0
    for total in totals:
        requests += 1
        if requests > MAX_ROWS:
            raise _bad(path, f"has more than {MAX_ROWS:,} rows", "give a sample of the trace")
        counts[total] += 1
    empty = counts.pop(0, 0)
    if not counts:
        raise _bad(path, "holds no request with tokens", f"known are {_FORMS}")
    notes = [_GROWN, *assumptions]
    if empty:
        notes.append(f"{empty:,} rows without a token are left out")
    pairs = ((tokens, float(n)) for tokens, n in counts.items())
    return from_counts(spec, source, pairs, requests - empty, notes)


def _run_lengths(path: Path, spec: str) -> Lengths:
    if (path / "spool").is_dir() and not (path / "requests.parquet").exists():
        raise _bad(
            path, "is a run that was not finished into requests.parquet", "run `kvprobe report` on it first"
        )
    if not (path / "requests.parquet").is_file():
        raise _bad(path, "is a directory without requests.parquet", "give a run directory, or a trace file")
    return _parquet_lengths(path / "requests.parquet", spec)


def _parquet_lengths(path: Path, spec: str) -> Lengths:
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = ["prompt_tokens", "completion_tokens", "failure", "warmup"]
    try:
        with open(path, "rb") as file:
            table = pq.read_table(file, columns=wanted)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _bad(path, f"is no requests.parquet of a run: {error}"[:300], "give a run directory") from error
    columns = [table.column(name).to_pylist() for name in wanted]
    rows = list(zip(*columns, strict=True))
    kept = [
        p + a
        for p, a, failure, warmup in rows
        if p is not None and a is not None and not failure and not warmup
    ]
    note = (
        f"{len(kept):,} of {len(rows):,} requests of the run: those that ended well after the "
        "warm-up, by the server's own count"
    )
    return _counted(iter(kept), "run directory (usage reported by the server)", path, spec, (note,))


def _bad(path: Path, why: str, fix: str, line: int | None = None) -> UsageError:
    return UsageError(Problem("bad_lengths", f"--lengths: {path} {why}", fix, path=str(path), line=line))
