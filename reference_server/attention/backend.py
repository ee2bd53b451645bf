"""What the model asks of attention over the KV cache.

The memory layout belongs to the backend, never to the allocator: the allocator says *which* block
holds a token, the backend says where in the block, and in what order, its numbers lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch

from reference_server.attention.store import KVStore

PlanT = TypeVar("PlanT")

Table = Sequence[int]
"""Block ids in the order of the tokens; a `range` where they lie in one piece."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens `start .. start + count` of one sequence in this step.

    They are rows `row .. row + count` of the step's flat batch; `tables` has the sequence's block
    table for each group of layers, with room for them.
    """

    tables: tuple[Table, ...]
    start: int
    count: int
    row: int

    @property
    def end(self) -> int:
        return self.start + self.count


class AttentionBackend(Protocol, Generic[PlanT]):
    """KV storage and attention for all layers of one model."""

    name: str
    store: KVStore

    @property
    def cache_bytes(self) -> int:
        """Bytes of the K and V tensors together."""

    def plan(self, spans: Sequence[TokenSpan], num_rows: int) -> PlanT:
        """Index tensors and masks of one step, used by every layer.

        `num_rows` may exceed the rows that the spans cover; the rest is padding.
        """

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor, plan: PlanT) -> None:
        """Store `[rows, kv_heads, head_dim]` of this step's tokens."""

    def attend(self, layer: int, queries: torch.Tensor, plan: PlanT) -> torch.Tensor:
        """Attention of `[rows, heads, head_dim]` over the stored tokens of each sequence.

        Causal; in a layer with a window, over the last `window` tokens only, the query's own among
        them. Returns `[rows, heads * head_dim]`.
        """


@dataclass(frozen=True, slots=True)
class LayerPlace:
    """Where a layer keeps its memory: its group's table, its own tensor among the group's."""

    group: int
    slot: int
    window: int | None
