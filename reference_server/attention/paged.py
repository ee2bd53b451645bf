"""Backends whose kernels read a block table: Triton for decoding, torch's varlen attention.

Both are for CUDA. The Triton kernel also runs in Triton's interpreter, which is how it is tested; it
takes the decoding rows of a step, and prompts go through the gather of `sdpa`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from reference_server.attention.backend import TokenSpan
from reference_server.attention.sdpa import SdpaAttention, SdpaPlan, layer_places, write_rows
from reference_server.attention.store import KVStore
from reference_server.kv.pool import NULL_BLOCK_ID
from reference_server.models.shape import LlamaConfig


@dataclass(slots=True)
class PagedPlan:
    """One step on the device: what every layer reads.

    `write_rows` and `tables` have an entry for each group of layers. `rows` are the batch rows that
    the kernel answers, `lengths` the tokens that each of its sequences has stored.
    """

    write_rows: list[torch.Tensor]
    tables: list[torch.Tensor]
    rows: torch.Tensor
    lengths: torch.Tensor
    most_tokens: int
    num_rows: int
    prompts: SdpaPlan = field(default_factory=list)
    starts: torch.Tensor | None = None
    most_queries: int = 1


class PagedBackend:
    """What the two have in common: storing, and plans."""

    name = "paged"

    def __init__(self, shape: LlamaConfig, store: KVStore) -> None:
        self.store = store
        self.shape = shape
        self.device = store.keys.device
        self.places = layer_places(shape)
        self.groups = range(len(shape.groups))

    @property
    def cache_bytes(self) -> int:
        return self.store.nbytes

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor, plan: PagedPlan) -> None:
        place = self.places[layer]
        self.store.write(place.slot, plan.write_rows[place.group], keys, values)

    def _plan(self, kernel_spans: list[TokenSpan], spans: Sequence[TokenSpan], num_rows: int) -> PagedPlan:
        write = [write_rows(self.store, [s.tables[g] for s in spans], spans, num_rows) for g in self.groups]
        rows = [row for span in kernel_spans for row in range(span.row, span.row + span.count)]
        return PagedPlan(
            write_rows=[rows_of.to(self.device) for rows_of in write],
            tables=[self._tables(kernel_spans, group) for group in self.groups],
            rows=torch.tensor(rows, device=self.device, dtype=torch.int64),
            lengths=torch.tensor([s.end for s in kernel_spans], device=self.device, dtype=torch.int32),
            most_tokens=max((span.end for span in kernel_spans), default=0),
            num_rows=num_rows,
        )

    def _tables(self, spans: list[TokenSpan], group: int) -> torch.Tensor:
        """Block tables side by side, filled up with the null block."""
        wide = max((len(span.tables[group]) for span in spans), default=0)
        padded = [
            [*span.tables[group], *[NULL_BLOCK_ID] * (wide - len(span.tables[group]))] for span in spans
        ]
        return torch.tensor(padded, dtype=torch.int32, device=self.device)


class TritonAttention(PagedBackend):
    """Decoding by our own kernel, in any KV format; prompts by `sdpa`."""

    name = "triton"

    def __init__(self, shape: LlamaConfig, store: KVStore, *, split: int = 256) -> None:
        super().__init__(shape, store)
        from reference_server.attention import triton_kernel

        self._kernel = triton_kernel.decode
        self._sdpa = SdpaAttention(shape, store)
        self._split = split

    def plan(self, spans: Sequence[TokenSpan], num_rows: int) -> PagedPlan:
        plan = self._plan([span for span in spans if span.count == 1], spans, num_rows)
        plan.prompts = self._sdpa.plan([span for span in spans if span.count > 1], num_rows)
        return plan

    def attend(self, layer: int, queries: torch.Tensor, plan: PagedPlan) -> torch.Tensor:
        place = self.places[layer]
        out = self._sdpa.attend(layer, queries, plan.prompts).view(queries.shape)
        if plan.most_tokens:
            out[plan.rows] = self._kernel(
                queries[plan.rows],
                self.store,
                place.slot,
                plan.tables[place.group],
                plan.lengths,
                window=place.window,
                most_tokens=plan.most_tokens,
                split=self._split,
            )
        return out.view(plan.num_rows, -1)


class VarlenAttention(PagedBackend):
    """torch's `varlen_attn` over a block table, prompts and decoding alike. CUDA, bf16 or fp16 KV.

    Not run on a GPU so far. `num_splits=1` keeps a sequence's numbers apart from its company.
    """

    name = "varlen"

    def __init__(self, shape: LlamaConfig, store: KVStore) -> None:
        if store.head_major or store.form.name not in ("bf16", "fp16"):
            raise ValueError("varlen attention needs token-major pages of bf16 or fp16")
        super().__init__(shape, store)
        from torch.nn.attention.varlen import varlen_attn

        self._varlen = varlen_attn

    def plan(self, spans: Sequence[TokenSpan], num_rows: int) -> PagedPlan:
        plan = self._plan(list(spans), spans, num_rows)
        counts = torch.tensor([0, *(span.count for span in spans)])
        plan.starts = counts.cumsum(0).to(device=self.device, dtype=torch.int32)
        plan.most_queries = max(span.count for span in spans)
        return plan

    def attend(self, layer: int, queries: torch.Tensor, plan: PagedPlan) -> torch.Tensor:
        place, store = self.places[layer], self.store
        assert plan.starts is not None
        out = torch.zeros_like(queries)
        left = -1 if place.window is None else place.window - 1
        found = self._varlen(
            queries[plan.rows].to(store.form.dtype),
            store.keys[place.slot],
            store.values[place.slot],
            plan.starts,
            None,
            plan.most_queries,
            plan.most_tokens,
            window_size=(left, 0),
            enable_gqa=self.shape.heads != self.shape.kv_heads,
            seqused_k=plan.lengths,
            block_table=plan.tables[place.group],
            num_splits=1,
        )
        assert isinstance(found, torch.Tensor)
        out[plan.rows] = found.to(out.dtype)
        return out.view(plan.num_rows, -1)
