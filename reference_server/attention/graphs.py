"""Decode steps as CUDA graphs: one launch in place of some hundreds.

A graph replays the same kernels on the same addresses, so each batch size has tensors of its own that
are filled before a replay: tokens, positions, where to write, block tables, lengths. A step with fewer
sequences takes the next larger graph; the rows beyond write to the null block and are ignored.

`record` turns a function into something that repeats what it did. On CUDA that is a capture; a test
may pass one that simply calls it again. Not run on a GPU so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from reference_server.attention.backend import TokenSpan
from reference_server.attention.paged import PagedPlan, TritonAttention
from reference_server.kv.pool import NULL_BLOCK_ID

Forward = Callable[[torch.Tensor, torch.Tensor, PagedPlan, torch.Tensor], torch.Tensor]
"""Tokens, positions, plan, wanted rows -> logits."""
Record = Callable[[Callable[[], torch.Tensor]], Callable[[], torch.Tensor]]

WARM_PASSES = 2
"""Before a capture: kernels are compiled and libraries initialised outside of it."""


def record_cuda(step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Capture `step`; what is returned replays it and gives the tensor that it wrote."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_PASSES):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


@dataclass(slots=True)
class _Captured:
    """One batch size."""

    tokens: torch.Tensor
    positions: torch.Tensor
    plan: PagedPlan
    replay: Callable[[], torch.Tensor]


class DecodeGraphs:
    """Graphs for up to `most_sequences` sequences of up to `most_tokens` tokens."""

    def __init__(
        self,
        forward: Forward,
        attention: TritonAttention,
        *,
        most_sequences: int,
        most_tokens: int,
        record: Record = record_cuda,
    ) -> None:
        self._attention = attention
        self._most_tokens = most_tokens
        self._captured = {size: self._capture(forward, size, record) for size in batch_sizes(most_sequences)}

    def run(self, tokens: list[int], spans: Sequence[TokenSpan]) -> torch.Tensor | None:
        """Logits of one token for each span; None when no graph fits, and nothing was done."""
        size = next((size for size in self._captured if size >= len(spans)), None)
        if size is None or any(span.count != 1 or span.end > self._most_tokens for span in spans):
            return None
        captured, count = self._captured[size], len(spans)
        fresh = self._attention.plan(spans, size)
        _fill(captured.tokens, torch.tensor(tokens))
        _fill(captured.positions, torch.tensor([span.start for span in spans]))
        plan = captured.plan
        plan.lengths.fill_(1)
        plan.lengths[:count].copy_(fresh.lengths)
        for group, table in enumerate(fresh.tables):
            plan.write_rows[group].copy_(fresh.write_rows[group])
            plan.tables[group].fill_(NULL_BLOCK_ID)
            plan.tables[group][:count, : table.shape[1]].copy_(table)
        return captured.replay()[:count]

    def _capture(self, forward: Forward, size: int, record: Record) -> _Captured:
        attention = self._attention
        device, block_size = attention.device, attention.store.block_size
        width = -(-self._most_tokens // block_size)
        null = [NULL_BLOCK_ID] * width
        spans = [TokenSpan((null,) * len(attention.groups), 0, 1, row) for row in range(size)]
        plan = attention.plan(spans, size)
        # Stretches beyond a sequence's length cost a program that ends at once.
        plan.most_tokens = self._most_tokens
        tokens = torch.zeros(size, dtype=torch.int64, device=device)
        positions = torch.zeros(size, dtype=torch.int64, device=device)
        rows = torch.arange(size, device=device)
        replay = record(lambda: forward(tokens, positions, plan, rows))
        return _Captured(tokens, positions, plan, replay)


def batch_sizes(most: int) -> list[int]:
    """1, 2, 4, then multiples of 8, up to `most`, which is always among them."""
    return sorted({size for size in (1, 2, 4, *range(8, most, 8)) if size < most} | {most})


def _fill(target: torch.Tensor, values: torch.Tensor) -> None:
    target.zero_()
    target[: len(values)].copy_(values)
