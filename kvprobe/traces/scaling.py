"""Traces made longer, shorter, faster or slower, with what prompts share left as it is."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

from kvprobe.traces.rows import MAX_BLOCK_TOKENS, MAX_TOKENS, TraceRow, trace_error

MAX_SCALE = 10_000.0
MAX_BLOCK_ERROR = 0.1
"""By how much a block may miss the factor asked for when it is rounded to whole tokens."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scaling:
    """`time` multiplies instants (0.5: twice as fast), `length` prompts and answers.

    With hash ids not the lists but the blocks are scaled: a block of 512 becomes one of 51 for 0.1, the
    lists stay as they are, and with them exactly which prompts share how many blocks. Lengths then follow
    the block's own factor (51 / 512), which may miss the one asked for by at most `MAX_BLOCK_ERROR`.
    """

    time: float = 1.0
    length: float = 1.0

    def check(self, path: Path) -> None:
        """Raises UsageError for a factor that is not above 0 and at most `MAX_SCALE`."""
        for name, value in (("time", self.time), ("length", self.length)):
            if not (math.isfinite(value) and 0 < value <= MAX_SCALE):
                why = f"cannot be scaled in {name} by {value:g}"
                raise trace_error(path, why, f"give a factor above 0, at most {MAX_SCALE:,.0f}")

    def apply(self, row: TraceRow, path: Path) -> TraceRow:
        """The row, scaled. Raises UsageError where a block cannot follow the factor."""
        if self.time == 1.0 and self.length == 1.0:
            return row
        found = dataclasses.replace(row, t_s=row.t_s * self.time)
        if self.length == 1.0:
            return found
        out = _scaled(row.out_tokens, self.length)
        if row.hash_ids is None or row.block_tokens is None:
            return dataclasses.replace(found, in_tokens=_scaled(row.in_tokens, self.length), out_tokens=out)
        block = self._block(row.block_tokens, row.line, path)
        rest = row.in_tokens % row.block_tokens
        # A block that is not full stays one: full it would be shared.
        left = min(_scaled(rest, block / row.block_tokens), max(block - 1, 0)) if rest else 0
        ids = row.hash_ids[: row.full_blocks + (left > 0)]
        prompt = max(row.full_blocks * block + left, 1)
        return dataclasses.replace(found, in_tokens=prompt, out_tokens=out, hash_ids=ids, block_tokens=block)

    def _block(self, block_tokens: int, line: int, path: Path) -> int:
        wanted = block_tokens * self.length
        block = max(round(wanted), 1)
        if abs(block / wanted - 1) > MAX_BLOCK_ERROR or block > MAX_BLOCK_TOKENS:
            why = f"has blocks of {block_tokens} tokens, which cannot be scaled by {self.length:g}"
            fix = f"use a factor of whole tokens such as {block / block_tokens:g}"
            raise trace_error(path, why, fix, line)
        return block


def _scaled(tokens: int, factor: float) -> int:
    return min(max(round(tokens * factor), 1), MAX_TOKENS) if tokens else 0
