"""Attention by gathering blocks and calling torch's scaled dot product attention.

K and V are `[blocks, kv_heads, block_size, head_dim]` per layer. Seen as rows `[blocks * kv_heads,
block_size * head_dim]`, one row gather ordered (sequence, head, block) yields a contiguous
`[sequences, kv_heads, tokens, head_dim]`: one copy, and the fastest of the gathers that were tried.

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

from reference_server.attention.backend import TokenSpan
from reference_server.kv.pool import NULL_BLOCK_ID

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
class SdpaPlan:
    """One step."""

    write_rows: torch.Tensor
    decodes: list[_DecodeGroup]
    chunks: list[_Chunk]


class SdpaAttention:
    """The backend that always works."""

    name = "sdpa"

    def __init__(
        self, *, layers: int, num_blocks: int, block_size: int, heads: int, kv_heads: int, head_dim: int
    ) -> None:
        if KEY_STRIPE % block_size:
            raise ValueError(f"the block size must divide {KEY_STRIPE}")
        self.block_size = block_size
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        shape = (layers, num_blocks, kv_heads, block_size, head_dim)
        # Written to, so that the pages exist from the start: the pool is memory held, not promised.
        self.keys = torch.empty(shape).zero_()
        self.values = torch.empty(shape).zero_()
        self._scratch_keys = torch.empty(0)
        self._scratch_values = torch.empty(0)

    @property
    def cache_bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def plan(self, spans: Sequence[TokenSpan], num_rows: int) -> SdpaPlan:
        groups: dict[int, list[TokenSpan]] = defaultdict(list)
        chunks = []
        for span in spans:
            if span.count == 1:
                groups[_padded_keys(span.end)].append(span)
            else:
                chunks.append(self._chunk(span))
        decodes = [self._decode_group(group, num_keys) for num_keys, group in groups.items()]
        return SdpaPlan(self._write_rows(spans, num_rows), decodes, chunks)

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor, plan: SdpaPlan) -> None:
        dim = self.head_dim
        self.keys[layer].view(-1, dim).index_copy_(0, plan.write_rows, keys.reshape(-1, dim))
        self.values[layer].view(-1, dim).index_copy_(0, plan.write_rows, values.reshape(-1, dim))

    def attend(self, layer: int, queries: torch.Tensor, plan: SdpaPlan) -> torch.Tensor:
        out = torch.zeros_like(queries)
        for group in plan.decodes:
            self._attend_decodes(layer, queries, group, out)
        for chunk in plan.chunks:
            self._attend_chunk(layer, queries, chunk, out)
        return out.view(queries.shape[0], -1)

    def _attend_decodes(
        self, layer: int, queries: torch.Tensor, group: _DecodeGroup, out: torch.Tensor
    ) -> None:
        count = len(group.rows)
        keys, values = self._gather(layer, group.gather, count, group.num_keys)
        # The query heads that share a KV head stand as rows, so that their keys are read once.
        shared = self.heads // self.kv_heads
        folded = queries[group.rows].view(count, self.kv_heads, shared, self.head_dim)
        if shared < MIN_ROWS:
            folded = F.pad(folded, (0, 0, 0, MIN_ROWS - shared))
        found = F.scaled_dot_product_attention(folded, keys, values, attn_mask=group.mask)
        out[group.rows] = found[:, :, :shared].reshape(count, self.heads, self.head_dim)

    def _attend_chunk(self, layer: int, queries: torch.Tensor, chunk: _Chunk, out: torch.Tensor) -> None:
        keys, values = self._gather(layer, chunk.gather, 1, chunk.num_keys)
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
        self, layer: int, rows: torch.Tensor, count: int, num_keys: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        width = self.block_size * self.head_dim
        needed = rows.numel() * width
        if self._scratch_keys.numel() < needed:
            self._scratch_keys, self._scratch_values = torch.empty(needed), torch.empty(needed)
        shape = (count, self.kv_heads, num_keys, self.head_dim)
        keys = self._scratch_keys[:needed].view(-1, width)
        values = self._scratch_values[:needed].view(-1, width)
        torch.index_select(self.keys[layer].view(-1, width), 0, rows, out=keys)
        torch.index_select(self.values[layer].view(-1, width), 0, rows, out=values)
        return keys.view(shape), values.view(shape)

    def _gather_rows(self, spans: Sequence[TokenSpan], num_keys: int) -> torch.Tensor:
        wanted = num_keys // self.block_size
        # A table may hold more blocks than are filled: those hold nothing yet, as the null block.
        table = torch.tensor(
            [(span.block_ids + [NULL_BLOCK_ID] * wanted)[:wanted] for span in spans], dtype=torch.int64
        )
        heads = torch.arange(self.kv_heads)
        return (table[:, None, :] * self.kv_heads + heads[None, :, None]).reshape(-1)

    def _decode_group(self, spans: list[TokenSpan], num_keys: int) -> _DecodeGroup:
        ends = torch.tensor([span.end for span in spans])
        return _DecodeGroup(
            rows=torch.tensor([span.row for span in spans]),
            gather=self._gather_rows(spans, num_keys),
            mask=_mask(torch.arange(num_keys)[None, :] >= ends[:, None])[:, None, None, :],
            num_keys=num_keys,
        )

    def _chunk(self, span: TokenSpan) -> _Chunk:
        tiles = []
        for offset in range(0, span.count, QUERY_TILE):
            count = min(QUERY_TILE, span.count - offset)
            first = span.start + offset
            num_keys = _padded_keys(first + count)
            last_seen = torch.arange(first, first + max(count, MIN_ROWS)).clamp_(max=first + count - 1)
            hidden = torch.arange(num_keys)[None, :] > last_seen[:, None]
            tiles.append(_Tile(span.row + offset, count, num_keys, _mask(hidden)))
        num_keys = _padded_keys(span.end)
        return _Chunk(self._gather_rows([span], num_keys), num_keys, tiles)

    def _write_rows(self, spans: Sequence[TokenSpan], num_rows: int) -> torch.Tensor:
        """Row of `[blocks * kv_heads * block_size, head_dim]` for each (batch row, head)."""
        blocks = torch.zeros(num_rows, dtype=torch.int64)
        offsets = torch.zeros(num_rows, dtype=torch.int64)
        for span in spans:
            positions = torch.arange(span.start, span.end)
            rows = slice(span.row, span.row + span.count)
            first = span.start // self.block_size
            table = torch.tensor(span.block_ids[first : (span.end - 1) // self.block_size + 1])
            blocks[rows] = table[positions // self.block_size - first]
            offsets[rows] = positions % self.block_size
        heads = torch.arange(self.kv_heads)
        rows_of_heads = (blocks[:, None] * self.kv_heads + heads) * self.block_size + offsets[:, None]
        return rows_of_heads.reshape(-1)


def _padded_keys(num_tokens: int) -> int:
    return -(-num_tokens // KEY_STRIPE) * KEY_STRIPE


def _mask(hidden: torch.Tensor) -> torch.Tensor:
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
