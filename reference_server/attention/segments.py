"""KV memory in segments that come and go: what is not held is not allocated.

Block ids form one line, cut into segments of equal size; block `id` lies in segment `id //
segment_blocks`. Each segment is a store of its own, really allocated on the device and really freed.
Segment 0 has the null block alone and is always there. A region that an allocator hands out may reach
over several segments: whoever reads finds each block where its id says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from reference_server.attention.store import KVStore, raw

Changed = Callable[[int, KVStore | None], None]
"""Told that a segment lies at a new place, or no longer anywhere."""


@dataclass(frozen=True, slots=True)
class SegmentShape:
    """How a line of blocks is cut."""

    blocks: int
    """Of a segment."""
    most: int
    """Segments that the line may have, the null block's among them; far more than lie in memory."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one segment: where they stand among those asked for, and which they are in its tensors."""

    store: KVStore
    picks: torch.Tensor
    rows: torch.Tensor


class SegmentedStore(KVStore):
    """The null block's own tensors, and a store for each segment that is in memory."""

    def __init__(self, *, segments: SegmentShape, **shape: Any) -> None:
        """`shape` is a `KVStore`'s, without `num_blocks`."""
        self._segments: dict[int, KVStore] = {}
        super().__init__(num_blocks=1, **shape)
        self.segments = segments
        self._shape = shape
        self._watchers: list[Changed] = []
        self._split_last: dict[int, tuple[torch.Tensor, list[_Part]]] = {}

    @property
    def nbytes(self) -> int:
        """Of what is in memory now."""
        return super().nbytes + sum(segment.nbytes for segment in self._segments.values())

    @property
    def block_bytes(self) -> int:
        return super().nbytes

    @property
    def present(self) -> set[int]:
        """Segments in memory, but for the null block's."""
        return set(self._segments)

    def watch(self, changed: Changed) -> None:
        """Have `changed` called for each segment that is there, and whenever one comes or goes."""
        self._watchers.append(changed)
        for index, segment in ((0, self), *self._segments.items()):
            changed(index, segment)

    def allocate(self, index: int) -> None:
        """Raises RuntimeError (on CUDA `torch.OutOfMemoryError`) when the device has no room."""
        self._segments[index] = KVStore(num_blocks=self.segments.blocks, **self._shape)
        self._tell(index)

    def release(self, index: int) -> None:
        del self._segments[index]
        self._tell(index)

    def _tell(self, index: int) -> None:
        self._split_last.clear()  # it holds on to segments
        for changed in self._watchers:
            changed(index, self._segments.get(index))

    def _put_rows(self, which: int, layer: int, rows: torch.Tensor, vectors: torch.Tensor) -> None:
        for part in self._split(rows, self.kv_heads * self.block_size):
            KVStore._put_rows(part.store, which, layer, part.rows, vectors[part.picks])

    def _put_scales(self, which: int, layer: int, rows: torch.Tensor, scales: torch.Tensor) -> None:
        for part in self._split(rows, self.kv_heads * self.block_size):
            KVStore._put_scales(part.store, which, layer, part.rows, scales[part.picks])

    def _take_rows(self, which: int, layer: int, rows: torch.Tensor, out: torch.Tensor) -> None:
        for part in self._split(rows, self.kv_heads):
            source = raw((part.store.keys, part.store.values)[which][layer]).view(-1, out.shape[1])
            out[part.picks] = source[part.rows]

    def _take_scales(self, which: int, layer: int, rows: torch.Tensor) -> torch.Tensor:
        found = torch.empty(len(rows), self.block_size, device=rows.device)
        for part in self._split(rows, self.kv_heads):
            found[part.picks] = KVStore._take_scales(part.store, which, layer, part.rows)
        return found

    def _read_blocks(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = tuple(t.new_empty((t.shape[0], len(ids), *t.shape[2:])) for t in map(raw, self._tensors()))
        for part in self._split(ids, 1):
            for target, source in zip(found, part.store._tensors(), strict=True):
                target[:, part.picks] = raw(source)[:, part.rows]
        return found

    def _write_blocks(self, ids: torch.Tensor, contents: tuple[torch.Tensor, ...]) -> None:
        for part in self._split(ids, 1):
            KVStore._write_blocks(
                part.store, part.rows, tuple(content[:, part.picks] for content in contents)
            )

    def _split(self, rows: torch.Tensor, rows_a_block: int) -> list[_Part]:
        """By segment. All layers of a step ask for the same rows, so the last answer is kept."""
        known, parts = self._split_last.get(rows_a_block, (None, []))
        if known is rows:
            return parts
        rows_a_segment = self.segments.blocks * rows_a_block
        owner = rows // rows_a_segment
        parts = []
        for index in torch.unique(owner).tolist():
            picks = (owner == index).nonzero()[:, 0]
            store = self._segments[index] if index else self
            parts.append(_Part(store, picks, rows[picks] - index * rows_a_segment))
        self._split_last[rows_a_block] = rows, parts
        return parts
