"""The tree of shared prefixes: each node is a start that at least two prompts have, and where they part.

Rows in sorted order have their shared starts beside each other: the intervals of the table of lengths
that neighbours share are the inner nodes of the tree (Abouelhoda et al., 2004). One sort, one pass.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import numpy as np

from kvprobe.prefixes.rows import Rows

MIN_TOKENS = 16
"""A shorter start is shared by chance, or by the template."""
SHOWN_NODES = 24
TEXT_BEFORE, TEXT_AFTER = 60, 60
SHOWN_TEXTS = 3


class Node(msgspec.Struct, kw_only=True):
    """A start that `prompts` prompts share, `tokens` long counted from the prompt's first token.

    `before` ends where they part; `after` are the first few ways in which they go on (foreign text).
    `saved_tokens` is what reuse of this node alone saves, beyond what its parent saves.
    """

    tokens: int
    prompts: int
    saved_tokens: int
    before: str
    after: list[str]
    depth: int = 0
    parent: int | None = None
    """Index of the parent among the nodes that are shown."""


@dataclass(slots=True)
class _Inner:
    length: int
    left: int
    right: int
    parent: _Inner | None = None
    children: list[_Inner] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.right - self.left + 1

    @property
    def saved(self) -> int:
        above = self.parent.length if self.parent is not None else 0
        return (self.count - 1) * (self.length - above)


def prefix_tree(rows: Rows) -> list[Node]:
    """The nodes that save most, parents before children; empty when nothing substantial is shared."""
    order = sorted(range(len(rows.rows)), key=lambda n: _sortable(rows.rows[n]))
    lengths = [_common(rows.rows[a], rows.rows[b]) for a, b in pairwise(order)]
    inner = [n for n in _intervals(lengths) if rows.tokens(n.length) >= MIN_TOKENS]
    best = sorted(inner, key=lambda n: (-n.saved, n.left, n.length))[:SHOWN_NODES]
    return _shown(rows, order, best)


def _sortable(row: array[int]) -> bytes:
    return np.frombuffer(row, dtype=np.int64).astype(">i8").tobytes()


def _common(a: array[int], b: array[int]) -> int:
    length = min(len(a), len(b))
    left, right = (np.frombuffer(x, dtype=np.int64, count=length) for x in (a, b)) if length else ((), ())
    different = np.flatnonzero(np.asarray(left) != np.asarray(right))
    return int(different[0]) if len(different) else length


def _intervals(lengths: Sequence[int]) -> list[_Inner]:
    """Inner nodes of the tree over rows 0 … len(lengths), bottom-up with a stack."""
    out: list[_Inner] = []
    stack = [_Inner(0, 0, 0)]
    for place, length in enumerate([*lengths, 0]):
        left, last = place, None
        while stack and length < stack[-1].length:
            last = stack.pop()
            last.right = place
            out.append(last)
            left = last.left
            if stack and length <= stack[-1].length:
                last.parent = stack[-1]
                last = None
        if stack and length > stack[-1].length:
            node = _Inner(length, left, place)
            if last is not None:
                last.parent = node
            stack.append(node)
        elif last is not None:
            last.parent = stack[-1] if stack and stack[-1].length > 0 else None
    for node in out:
        if node.parent is not None and node.parent.length == 0:
            node.parent = None
    return out


def _shown(rows: Rows, order: Sequence[int], best: list[_Inner]) -> list[Node]:
    chosen = {id(n) for n in best}
    placed = sorted(best, key=lambda n: (n.left, -n.right, n.length))
    index = {id(n): i for i, n in enumerate(placed)}
    nodes: list[Node] = []
    for inner in placed:
        parent = inner.parent
        while parent is not None and id(parent) not in chosen:
            parent = parent.parent
        place = index[id(parent)] if parent is not None else None
        before, after = _texts(rows, order, inner)
        nodes.append(
            Node(
                tokens=rows.tokens(inner.length),
                prompts=inner.count,
                saved_tokens=rows.tokens(inner.saved),
                before=before,
                after=after,
                depth=nodes[place].depth + 1 if place is not None else 0,
                parent=place,
            )
        )
    return nodes


def _texts(rows: Rows, order: Sequence[int], inner: _Inner) -> tuple[str, list[str]]:
    members = order[inner.left : inner.right + 1]
    before, _ = rows.text_at(members[0], inner.length, TEXT_BEFORE, TEXT_AFTER)
    after: dict[str, None] = {}
    for number in members[:: max(1, len(members) // (4 * SHOWN_TEXTS))]:
        after.setdefault(rows.text_at(number, inner.length, TEXT_BEFORE, TEXT_AFTER)[1])
        if len(after) >= SHOWN_TEXTS:
            break
    return before, list(after)
