"""Attention by gathering blocks and calling torch's scaled dot product attention.

K and V are `[blocks, kv_heads, block_size, head_dim]` per layer. Seen as rows `[blocks * kv_heads,
block_size * head_dim]`, one row gather ordered (sequence, head, block) yields a contiguous
`[sequences, kv_heads, tokens, head_dim]`: one copy, and the fastest of the gathers that were tried.
A quantised cache is widened to fp32 after the gather.

NOTE on rounding. The order in which a sum is taken must not depend on what else is in the batch, or
greedy text could change with it. torch's CPU kernel walks the keys in stripes of 512 and leaves
other row counts to matrix kernels that treat a few rows in their own way. So the keys are padded
(from the null block, masked) to whole stripes, the queries of a call to at least `MIN_ROWS` rows,
and sequences are batched only with others of as many stripes. On the x86 CPUs tried this makes each
row bit for bit the same whatever the chunking and the batch. (Elsewhere greedy text still agrees
but for exact near-ties; the tests compare texts, not bits.)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from reference_server.attention.backend import LayerPlace, Table, TokenSpan
from reference_server.attention.store import KVStore
from reference_server.kv.pool import NULL_BLOCK_ID
from reference_server.models.shape import LlamaConfig

KEY_STRIPE = 512
MIN_ROWS = 4
QUERY_TILE = 64
"""Queries of a chunk in one call: small enough that the keys after a tile are skipped."""


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences with one new token and equally many stripes of keys."""

    rows: torch.Tensor
    gather: torch.Tensor
    mask: torch.Tensor
    num_keys: int


@dataclass(frozen=True, slots=True)
class _Tile:
    """Queries `row .. row + count` of one chunk; the mask covers the padded queries too."""

    row: int
    count: int
    num_keys: int
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The new tokens of one sequence."""

    gather: torch.Tensor
    num_keys: int
    tiles: list[_Tile]


@dataclass(frozen=True, slots=True)
class _GroupPlan:
    """One step, for the layers under one block table."""

    write_rows: torch.Tensor
    decodes: list[_DecodeGroup]
    chunks: list[_Chunk]


SdpaPlan = list[_GroupPlan]


class SdpaAttention:
    """The backend that always works."""

    name = "sdpa"

    def __init__(self, shape: LlamaConfig, store: KVStore) -> None:
        if KEY_STRIPE % store.block_size:
            raise ValueError(f"the block size must divide {KEY_STRIPE}")
        self.store = store
        self.block_size = store.block_size
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self._places = layer_places(shape)
        self._windows = [group.window for group in shape.groups]
        self._device = store.keys.device

    @property
    def cache_bytes(self) -> int:
        return self.store.nbytes

    def plan(self, spans: Sequence[TokenSpan], num_rows: int) -> SdpaPlan:
        return [self._group_plan(group, spans, num_rows) for group in range(len(self._windows))]

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor, plan: SdpaPlan) -> None:
        place = self._places[layer]
        self.store.write(place.slot, plan[place.group].write_rows, keys, values)

    def attend(self, layer: int, queries: torch.Tensor, plan: SdpaPlan) -> torch.Tensor:
        place = self._places[layer]
        out = torch.zeros_like(queries, memory_format=torch.contiguous_format)
        for group in plan[place.group].decodes:
            self._attend_decodes(place.slot, queries, group, out)
        for chunk in plan[place.group].chunks:
            self._attend_chunk(place.slot, queries, chunk, out)
        return out.view(queries.shape[0], -1)

    def _attend_decodes(
        self, slot: int, queries: torch.Tensor, group: _DecodeGroup, out: torch.Tensor
    ) -> None:
        count = len(group.rows)
        keys, values = self._gather(slot, group.gather, count, group.num_keys)
        # The query heads that share a KV head stand as rows, so that their keys are read once.
        shared = self.heads // self.kv_heads
        folded = queries[group.rows].view(count, self.kv_heads, shared, self.head_dim)
        if shared < MIN_ROWS:
            folded = F.pad(folded, (0, 0, 0, MIN_ROWS - shared))
        found = F.scaled_dot_product_attention(folded, keys, values, attn_mask=group.mask)
        out[group.rows] = found[:, :, :shared].reshape(count, self.heads, self.head_dim)

    def _attend_chunk(self, slot: int, queries: torch.Tensor, chunk: _Chunk, out: torch.Tensor) -> None:
        keys, values = self._gather(slot, chunk.gather, 1, chunk.num_keys)
        for tile in chunk.tiles:
            wanted = queries[tile.row : tile.row + tile.count].transpose(0, 1)[None]
            if tile.count < MIN_ROWS:
                wanted = F.pad(wanted, (0, 0, 0, MIN_ROWS - tile.count))
            found = F.scaled_dot_product_attention(
                wanted,
                keys[:, :, : tile.num_keys],
                values[:, :, : tile.num_keys],
                attn_mask=tile.mask,
                enable_gqa=True,
            )
            out[tile.row : tile.row + tile.count] = found[0, :, : tile.count].transpose(0, 1)

    def _gather(
        self, slot: int, rows: torch.Tensor, count: int, num_keys: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (count, self.kv_heads, num_keys, self.head_dim)
        keys, values = self.store.gather(slot, rows)
        return keys.view(shape), values.view(shape)

    def _group_plan(self, group: int, spans: Sequence[TokenSpan], num_rows: int) -> _GroupPlan:
        window = self._windows[group]
        alike: dict[tuple[int, int], list[TokenSpan]] = defaultdict(list)
        chunks = []
        for span in spans:
            if span.count == 1:
                alike[_keys_from(span.start, window), _padded_keys(span.end)].append(span)
            else:
                chunks.append(self._chunk(group, span))
        decodes = [self._decode_group(group, same, first, end) for (first, end), same in alike.items()]
        rows = write_rows(self.store, [span.tables[group] for span in spans], spans, num_rows)
        return _GroupPlan(rows.to(self._device), decodes, chunks)

    def _gather_rows(self, tables: Sequence[Table], first: int, end: int) -> torch.Tensor:
        """Rows of the keys `first .. end`, both multiples of the stripe."""
        low, high = first // self.block_size, end // self.block_size
        # A table may hold more blocks than are filled: those hold nothing yet, as the null block.
        ids = [[*table[low:high], *([NULL_BLOCK_ID] * (high - max(len(table), low)))] for table in tables]
        table = torch.tensor(ids, dtype=torch.int64)
        heads = torch.arange(self.kv_heads)
        rows = table[:, None, :] * self.kv_heads + heads[None, :, None]
        return rows.reshape(-1).to(self._device)

    def _decode_group(self, group: int, spans: list[TokenSpan], first: int, end: int) -> _DecodeGroup:
        last_seen = torch.tensor([span.start for span in spans])
        hidden = _hidden(first, end, last_seen, self._windows[group])
        return _DecodeGroup(
            rows=torch.tensor([span.row for span in spans], device=self._device),
            gather=self._gather_rows([span.tables[group] for span in spans], first, end),
            mask=_mask(hidden)[:, None, None, :].to(self._device),
            num_keys=end - first,
        )

    def _chunk(self, group: int, span: TokenSpan) -> _Chunk:
        window = self._windows[group]
        from_key = _keys_from(span.start, window)
        tiles = []
        for offset in range(0, span.count, QUERY_TILE):
            count = min(QUERY_TILE, span.count - offset)
            first = span.start + offset
            last_seen = torch.arange(first, first + max(count, MIN_ROWS)).clamp_(max=first + count - 1)
            end = _padded_keys(first + count)
            mask = _mask(_hidden(from_key, end, last_seen, window)).to(self._device)
            tiles.append(_Tile(span.row + offset, count, end - from_key, mask))
        end = _padded_keys(span.end)
        return _Chunk(self._gather_rows([span.tables[group]], from_key, end), end - from_key, tiles)


def layer_places(shape: LlamaConfig) -> list[LayerPlace]:
    """By layer."""
    places = {
        layer: LayerPlace(index, slot, group.window)
        for index, group in enumerate(shape.groups)
        for slot, layer in enumerate(group.layers)
    }
    return [places[layer] for layer in range(shape.layers)]


def write_rows(
    store: KVStore, tables: Sequence[Table], spans: Sequence[TokenSpan], num_rows: int
) -> torch.Tensor:
    """Rows of the store for each (batch row, head); rows that no span covers go to the null block."""
    blocks = torch.zeros(num_rows, dtype=torch.int64)
    offsets = torch.zeros(num_rows, dtype=torch.int64)
    size = store.block_size
    for span, ids in zip(spans, tables, strict=True):
        positions = torch.arange(span.start, span.end)
        rows = slice(span.row, span.row + span.count)
        first = span.start // size
        table = torch.tensor(ids[first : (span.end - 1) // size + 1])
        blocks[rows] = table[positions // size - first]
        offsets[rows] = positions % size
    return store.row_of(blocks, offsets)


def _keys_from(first_query: int, window: int | None) -> int:
    """The stripe in which the first key stands that a query at this position sees."""
    oldest = 0 if window is None else max(first_query - window + 1, 0)
    return oldest // KEY_STRIPE * KEY_STRIPE


def _padded_keys(num_tokens: int) -> int:
    return -(-num_tokens // KEY_STRIPE) * KEY_STRIPE


def _hidden(first: int, end: int, last_seen: torch.Tensor, window: int | None) -> torch.Tensor:
    """Which keys of `first .. end` each query does not see; `last_seen` is its own position."""
    keys = torch.arange(first, end)[None, :]
    hidden = keys > last_seen[:, None]
    if window is not None:
        hidden |= keys <= last_seen[:, None] - window
    return hidden


def _mask(hidden: torch.Tensor) -> torch.Tensor:
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
