"""Lengths from a file: a request trace of a known form, or a run directory of kvprobe.

Each row gives prompt and answer; their sum is what the request holds at its end. `kvprobe.traces` reads
the traces and tells their forms apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from kvprobe.errors import Problem, UsageError
from kvprobe.plan.lengths import Lengths, from_counts
from kvprobe.traces.formats import KNOWN
from kvprobe.traces.read import Trace, open_trace

_NAMES = {
    "azure": "Azure CSV",
    "burstgpt": "BurstGPT CSV",
    "vidur": "vidur CSV",
    "mooncake": "JSONL with input_length and output_length",
    "qwen": "Qwen JSONL",
    "kvprobe": "kvprobe JSONL",
}
_GROWN = "each request is counted at full growth: prompt and answer together"
MAX_ROWS = 20_000_000
_FORMS = f"{KNOWN}, or a run directory"


def read_lengths(path: Path, spec: str) -> Lengths:
    """The lengths that `path` holds. Raises UsageError naming what is wrong and where."""
    if path.is_dir():
        return _run_lengths(path, spec)
    if not path.is_file():  # a pipe without a writer would wait for ever
        raise _bad(path, "is no regular file", "write the trace to a file first")
    if path.name == "requests.parquet":
        return _parquet_lengths(path, spec)
    return _trace_lengths(path, spec)


def _trace_lengths(path: Path, spec: str) -> Lengths:
    try:
        trace = open_trace(path, lengths_only=True)
        totals = (row.in_tokens + row.out_tokens for row in trace.rows())
        return _counted(totals, f"trace ({_NAMES[trace.format]})", path, spec, trace=trace)
    except UsageError as error:
        raise UsageError(*(_as_option(problem) for problem in error.problems)) from error


def _as_option(problem: Problem) -> Problem:
    if problem.code == "bad_lengths":
        return problem
    return replace(problem, code="bad_lengths", message=f"--lengths: {problem.message}")


def _counted(
    totals: Iterator[int],
    source: str,
    path: Path,
    spec: str,
    assumptions: tuple[str, ...] = (),
    trace: Trace | None = None,
) -> Lengths:
    counts: Counter[int] = Counter()
    requests = 0
    for total in totals:
        requests += 1
        if requests > MAX_ROWS:
            raise _bad(path, f"has more than {MAX_ROWS:,} rows", "give a sample of the trace")
        counts[total] += 1
    empty = counts.pop(0, 0)
    requests -= empty
    empty += trace.dropped.total() if trace is not None else 0
    if not counts:
        raise _bad(path, "holds no request with tokens", f"known are {_FORMS}")
    notes = [_GROWN, *assumptions]
    if empty:
        where = " in prompt or answer" if trace is not None else ""
        notes.append(f"{empty:,} rows without a token{where} are left out")
    pairs = ((tokens, float(n)) for tokens, n in counts.items())
    return from_counts(spec, source, pairs, requests, notes)


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
