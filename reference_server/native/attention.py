"""Attention by the C kernel: K and V are read where they lie, in whatever form.

A step is described once, for all layers, in a structure that the kernel reads. The fused decoder
(`decoder.py`) uses the same one.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

import torch

from reference_server.attention.backend import LayerPlace, TokenSpan
from reference_server.attention.sdpa import layer_places
from reference_server.attention.segments import SegmentedStore
from reference_server.attention.store import KVStore
from reference_server.kv.pool import NULL_BLOCK_ID
from reference_server.models.shape import LlamaConfig
from reference_server.native.structures import FORMS, CLayer, CMemory, CModel, CStep, address

MOST_DIM = 256
"""Widest head that the kernel's buffers hold (`MOST_DIM` in tile.h)."""
MOST_SHARED = 96
"""Most query heads on one KV head (`MOST_QUERIES` in attention.c)."""


class NativePlan:
    """One step: the structure, and what must stay alive as long as it."""

    def __init__(self, shape: LlamaConfig, store: KVStore, spans: Sequence[TokenSpan], num_rows: int) -> None:
        self.rows = num_rows
        groups = range(len(shape.groups))
        self._spans = array("q", [n for span in spans for n in (span.row, span.start, span.count)])
        self._positions = array("q", bytes(8 * num_rows))
        self._tables = [[array("i", span.tables[group]) for span in spans] for group in groups]
        self._slots = [array("i", [NULL_BLOCK_ID]) * num_rows for _ in groups]
        for index, span in enumerate(spans):
            self._place(index, span, store.block_size)
        tables = [_where(table) for tables in self._tables for table in tables]
        self._table_list = (ctypes.c_void_p * len(tables))(*tables)
        self._slot_list = (ctypes.c_void_p * len(self._slots))(*map(_where, self._slots))
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.qkv = torch.empty(num_rows, width)
        # Rows that no span covers are padding: their result is read, and must be a number.
        self.found = torch.zeros(num_rows, shape.heads * shape.head_dim)
        self.structure = CStep(
            rows=num_rows,
            spans=len(spans),
            groups=len(groups),
            threads=torch.get_num_threads(),
            scale_factor=store.scale_factor,
            span=_where(self._spans),
            position=_where(self._positions),
            table=ctypes.addressof(self._table_list),
            slot=ctypes.addressof(self._slot_list),
            qkv=address(self.qkv),
            found=address(self.found),
        )

    def _place(self, index: int, span: TokenSpan, size: int) -> None:
        rows = slice(span.row, span.row + span.count)
        self._positions[rows] = array("q", range(span.start, span.end))
        for slots, tables in zip(self._slots, self._tables, strict=True):
            table = tables[index]
            slots[rows] = array("i", [table[position // size] for position in range(span.start, span.end)])


class NativeAttention:
    """The backend over the C kernel."""

    name = "native"

    def __init__(self, shape: LlamaConfig, store: KVStore, kernels: ctypes.CDLL) -> None:
        if shape.head_dim > MOST_DIM or shape.heads // shape.kv_heads > MOST_SHARED:
            raise ValueError(f"heads wider than {MOST_DIM}, or more than {MOST_SHARED} on one KV head")
        self.store = store
        self.kernels = kernels
        self._shape = shape
        self.places: list[LayerPlace] = layer_places(shape)
        segments = store.segments if isinstance(store, SegmentedStore) else None
        self.layers = (CLayer * shape.layers)()
        self._memory = [(CMemory * (segments.most if segments else 1))() for _ in self.places]
        for layer, place, memory in zip(self.layers, self.places, self._memory, strict=True):
            layer.group, layer.window, layer.memory = place.group, place.window or 0, memory
            layer.fp8_scale_key = address(store.fp8_scales[0, place.slot])
            layer.fp8_scale_value = address(store.fp8_scales[1, place.slot])
        self.model = CModel(
            layers=shape.layers,
            hidden=shape.hidden,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            intermediate=shape.intermediate,
            kv_form=FORMS[store.form.name],
            block_size=store.block_size,
            gelu=int(shape.activation == "gelu_tanh"),
            segment_blocks=segments.blocks if segments else 0,
            norm_eps=shape.norm_eps,
            layer=self.layers,
        )
        if isinstance(store, SegmentedStore):
            store.watch(self._point)
        else:
            self._point(0, store)

    @property
    def cache_bytes(self) -> int:
        return self.store.nbytes

    def plan(self, spans: Sequence[TokenSpan], num_rows: int) -> NativePlan:
        return NativePlan(self._shape, self.store, spans, num_rows)

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor, plan: NativePlan) -> None:
        heads, rows = self._shape.heads, plan.rows
        qkv = plan.qkv.view(rows, -1, self._shape.head_dim)
        qkv[:, heads : heads + self._shape.kv_heads] = keys
        qkv[:, heads + self._shape.kv_heads :] = values
        self.kernels.store_kv(*self._arguments(layer, plan))

    def attend(self, layer: int, queries: torch.Tensor, plan: NativePlan) -> torch.Tensor:
        shape = self._shape
        plan.qkv.view(plan.rows, -1, shape.head_dim)[:, : shape.heads] = queries
        self.kernels.attend(*self._arguments(layer, plan))
        return plan.found

    def _arguments(self, layer: int, plan: NativePlan) -> tuple[object, object, object]:
        return ctypes.byref(self.model), ctypes.byref(self.layers[layer]), ctypes.byref(plan.structure)

    def _point(self, segment: int, store: KVStore | None) -> None:
        """Tell the kernel where a segment's memory lies; None: nowhere."""
        for place, memory in zip(self.places, self._memory, strict=True):
            memory[segment] = CMemory() if store is None else _memory(store, place.slot)


def _memory(store: KVStore, slot: int) -> CMemory:
    plain = CMemory(address(store.keys[slot]), address(store.values[slot]))
    if store.form.scale_bytes:
        plain.key_scales = address(store.key_scales[slot])
        plain.value_scales = address(store.value_scales[slot])
    return plain


def _where(numbers: array[int]) -> int:
    return numbers.buffer_info()[0]
