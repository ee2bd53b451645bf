"""What a cache that never drops anything could serve: for each prompt, its longest start seen before.

Rows of the past stand in sorted order, where the one with which a new row shares most is one of its two
neighbours. A cache of whole blocks serves the whole blocks within that start, whatever the block: one pass
answers for every block size.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from kvprobe.prefixes.rows import Rows

_WIDTH = 4
"""Bytes of a stand-in in a sortable row: they are numbered from 0, and there are fewer than 2^32."""


def common_starts(rows: Rows, where: Sequence[str], *, keyed: bool) -> list[int]:
    """Stand-ins that each prompt shares from its start with an earlier one at the same place (`where`, one
    for each prompt); with `keyed`, also of the same key, and none where the request leaves the cache out."""
    name = (tuple(where) if any(where) else (), keyed)
    known = rows.starts.get(name)
    if known is None:
        known = rows.starts[name] = _starts(rows, where, keyed)
    return known


def _starts(rows: Rows, where: Sequence[str], keyed: bool) -> list[int]:
    seen: dict[tuple[str, tuple[str, ...]], list[bytes]] = {}
    out = []
    for item, row, place in zip(rows.sent, rows.rows, where, strict=True):
        if keyed and item.bypass is not None:
            out.append(0)
            continue
        past = seen.setdefault((place, item.key if keyed else ()), [])
        data = np.frombuffer(row, dtype=np.int64).astype(">u4").tobytes() if len(row) else b""
        at = bisect_left(past, data)
        out.append(max((_common(data, other) for other in past[max(at - 1, 0) : at + 1]), default=0))
        if at == len(past) or past[at] != data:
            past.insert(at, data)
    return out


def _common(a: bytes, b: bytes) -> int:
    """Stand-ins that two sortable rows share from their start."""
    length = min(len(a), len(b))
    one, other = (np.frombuffer(x, dtype=np.uint32, count=length // _WIDTH) for x in (a, b))
    different = np.flatnonzero(one != other)
    return int(different[0]) if len(different) else length // _WIDTH
