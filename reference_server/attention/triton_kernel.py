"""Decode attention over pages in Triton: block table, ragged lengths, fused dequantisation.

Imported only where the backend is chosen: triton is no dependency. One program takes one sequence, one
KV head and one stretch of `SPLIT` positions (flash decoding: Dao et al. 2023); the stretches are put
together afterwards. They are cut by position, not by load, so that a sequence's numbers do not depend
on its company.

Products are sums of fp32 products, without `tl.dot`: decoding waits for memory, not for arithmetic,
and Triton's interpreter, in which the tests run this, gets `tl.dot` of bf16 wrong without a word.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from reference_server.attention.store import KVStore

PLAIN, FP8, INT8 = 0, 1, 2
"""How numbers become fp32: by themselves, times one scale, times the scale of each vector."""


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _load_tile(
    memory: Any, scales: Any, fp8_scale: Any, vector: Any, seen: Any, dims: Any, dim: Any, FORM: tl.constexpr
) -> Any:
    """Stored vectors as fp32 `[TILE, DIM_PADDED]`; zero where they are not to be seen."""
    read = seen[:, None] & (dims < dim)[None, :]
    wide = tl.load(memory + vector[:, None] * dim + dims[None, :], mask=read, other=0.0).to(tl.float32)
    if FORM == 1:
        wide *= tl.load(fp8_scale)
    if FORM == 2:
        wide *= tl.load(scales + vector, mask=seen, other=0.0)[:, None]
    return wide


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _decode(
    queries: Any, keys: Any, values: Any, key_scales: Any, value_scales: Any, fp8_scale_key: Any,
    fp8_scale_value: Any, tables: Any, lengths: Any, partial: Any, largest: Any, sums: Any, scale: Any,
    table_width: Any, window: Any,
    KV_HEADS: tl.constexpr, SHARED: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SHARED_PADDED: tl.constexpr, DIM_PADDED: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr,
    FORM: tl.constexpr,
) -> None:  # fmt: skip
    sequence, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence)
    heads_here, dims = tl.arange(0, SHARED_PADDED), tl.arange(0, DIM_PADDED)
    inside = (heads_here < SHARED)[:, None] & (dims < DIM)[None, :]
    q_at = (sequence * KV_HEADS * SHARED + head * SHARED + heads_here)[:, None] * DIM + dims[None, :]
    q = tl.load(queries + q_at, mask=inside, other=0.0).to(tl.float32) * scale
    # A window of 0 is none.
    low = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    start = tl.maximum(split * SPLIT, low // TILE * TILE)
    end = tl.minimum(length, (split + 1) * SPLIT)
    best = tl.full((SHARED_PADDED,), float("-inf"), tl.float32)
    total = tl.zeros((SHARED_PADDED,), tl.float32)
    out = tl.zeros((SHARED_PADDED, DIM_PADDED), tl.float32)
    for first in range(start, end, TILE):
        position = first + tl.arange(0, TILE)
        seen = (position < end) & (position >= low)
        block = tl.load(tables + sequence * table_width + position // BLOCK_SIZE, mask=seen, other=0)
        vector = (block.to(tl.int64) * KV_HEADS + head) * BLOCK_SIZE + position % BLOCK_SIZE
        k = _load_tile(keys, key_scales, fp8_scale_key, vector, seen, dims, DIM, FORM)
        v = _load_tile(values, value_scales, fp8_scale_value, vector, seen, dims, DIM, FORM)
        scores = tl.where(seen[None, :], tl.sum(q[:, None, :] * k[None, :, :], axis=2), float("-inf"))
        higher = tl.maximum(best, tl.max(scores, axis=1))
        weights = tl.exp(scores - higher[:, None])
        shrink = tl.exp(best - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        out = out * shrink[:, None] + tl.sum(weights[:, :, None] * v[None, :, :], axis=1)
        best = higher
    row = (sequence * tl.num_programs(2) + split) * KV_HEADS * SHARED + head * SHARED + heads_here
    tl.store(partial + row[:, None] * DIM + dims[None, :], out, mask=inside)
    tl.store(largest + row, best, mask=heads_here < SHARED)
    tl.store(sums + row, total, mask=heads_here < SHARED)


def decode(
    queries: torch.Tensor,
    store: KVStore,
    slot: int,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    *,
    window: int | None,
    most_tokens: int,
    tile: int = 16,
    split: int = 256,
) -> torch.Tensor:
    """`[sequences, heads, head_dim]` of one new token each, over the `lengths` tokens stored.

    `tables` is `[sequences, width]` int32, `most_tokens` at least the longest length. No value is read
    on the host, so that it can be captured in a CUDA graph.
    """
    count, heads, dim = queries.shape
    shared = heads // store.kv_heads
    splits = -(-most_tokens // split)
    partial = torch.empty(count, splits, heads, dim, device=queries.device)
    largest, sums = (torch.empty(count, splits, heads, device=queries.device) for _ in range(2))
    memory, sizes = _memory(store, slot), _sizes(store, shared, dim)
    _decode[count, store.kv_heads, splits](
        queries, *memory, tables, lengths, partial, largest, sums, dim**-0.5, tables.shape[1], window or 0,
        TILE=tile, SPLIT=split, **sizes,
    )  # fmt: skip
    # A stretch without a token has minus infinity here and weighs nothing.
    weights = torch.exp(largest - largest.amax(dim=1, keepdim=True))
    total = (sums * weights).sum(dim=1)
    return (partial * weights[..., None]).sum(dim=1) / total[..., None]


def _memory(store: KVStore, slot: int) -> tuple[torch.Tensor, ...]:
    """The tensors of a layer: K, V, their scales by vector and by tensor."""
    scales = (store.key_scales, store.value_scales)
    if store.form.name == "int8":
        scales = (store.key_scales[slot], store.value_scales[slot])
    return (
        store.keys[slot],
        store.values[slot],
        *scales,
        store.fp8_scales[0, slot:],
        store.fp8_scales[1, slot:],
    )


def _sizes(store: KVStore, shared: int, dim: int) -> dict[str, int]:
    """What a kernel is compiled for."""
    return {
        "KV_HEADS": store.kv_heads,
        "SHARED": shared,
        "DIM": dim,
        "BLOCK_SIZE": store.block_size,
        "SHARED_PADDED": triton.next_power_of_2(shared),
        "DIM_PADDED": triton.next_power_of_2(dim),
        "FORM": {"fp8": FP8, "int8": INT8}.get(store.form.name, PLAIN),
    }
