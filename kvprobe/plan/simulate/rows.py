"""Rows of a trace as the kernel takes them: chunks of flat arrays, with a key for each hash id.

A key covers an id and all ids before it, so that equal keys mean equal tokens from the start. Keys are
64-bit mixes; among 10^8 blocks two unequal ones collide with a chance of about 3 in 10,000.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvprobe.errors import Problem, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvprobe.traces.rows import TraceRow

CHUNK_ROWS = 1 << 15
_SALT = np.uint64(0x9E3779B97F4A7C15)
_OWN = np.uint64(1 << 63)


@dataclass(slots=True)
class Chunk:
    """Rows of a trace, in order of arrival; `ids[first[i]:first[i + 1]]` are those of row i."""

    times_s: NDArray[np.float64]
    in_tokens: NDArray[np.int64]
    out_tokens: NDArray[np.int64]
    first: NDArray[np.int64]
    ids: NDArray[np.uint64]
    block_tokens: int | None = None
    sessions: list[str | None] | None = None
    lines: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.times_s)

    def keys(self, base: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each row's keys, one for its own tokens behind those of its ids, and where they begin.

        `base` is the number of the first row in its trace.
        """
        counts = np.diff(self.first)
        rows = np.arange(len(counts), dtype=np.int64)
        place = np.arange(len(self.ids), dtype=np.int64) - np.repeat(self.first[:-1], counts)
        mixed = _mix(self.ids ^ _mix(place.astype(np.uint64)))
        sums = np.concatenate(([np.uint64(0)], np.cumsum(mixed, dtype=np.uint64)))
        chained = _mix(sums[1:] - np.repeat(sums[self.first[:-1]], counts))
        starts = self.first[:-1] + rows
        keys = np.empty(len(self.ids) + len(counts), dtype=np.uint64)
        keys[np.repeat(rows, counts) + np.arange(len(self.ids))] = chained
        keys[starts + counts] = _mix((rows + base).astype(np.uint64) ^ _OWN)
        return (keys | np.uint64(1)).view(np.int64), starts


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser (Steele, Lea and Flood, OOPSLA 2014): every input bit moves every output bit."""
    x = values + _SALT
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def chunks(rows: Iterable[TraceRow], size: int = CHUNK_ROWS) -> Iterator[Chunk]:
    """The rows of a trace in chunks. Raises UsageError where blocks of ids change their size."""
    waiting = iter(rows)
    block_tokens: int | None = None
    while part := list(islice(waiting, size)):
        for row in part:
            if row.hash_ids and row.block_tokens != block_tokens:
                if block_tokens is not None:
                    raise _mixed(row, block_tokens)
                block_tokens = row.block_tokens
        yield _chunk(part, block_tokens)


def _mixed(row: TraceRow, before: int) -> UsageError:
    message = f"hash ids stand for {before} tokens each, and from here on for {row.block_tokens}"
    return UsageError(Problem("bad_trace", message, "use one block size throughout", line=row.line))


def _chunk(part: list[TraceRow], block_tokens: int | None) -> Chunk:
    ids = [row.hash_ids or () for row in part]
    counts = np.fromiter((len(one) for one in ids), dtype=np.int64, count=len(part))
    flat = np.fromiter((i for one in ids for i in one), dtype=np.int64, count=int(counts.sum()))
    return Chunk(
        times_s=np.array([row.t_s for row in part]),
        in_tokens=np.array([row.in_tokens for row in part], dtype=np.int64),
        out_tokens=np.array([row.out_tokens for row in part], dtype=np.int64),
        first=np.concatenate(([0], np.cumsum(counts))),
        ids=flat.view(np.uint64),
        block_tokens=block_tokens,
        sessions=[row.session for row in part],
        lines=np.array([row.line for row in part], dtype=np.int64),
    )
