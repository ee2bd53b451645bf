"""One request of a trace, whatever file it came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvprobe.errors import Problem, UsageError

MAX_TOKENS = 1 << 40
"""Of one prompt or answer; more is a garbled file."""
MAX_BLOCK_TOKENS = 1 << 20
MAX_TIME_S = 1e10
"""About 300 years: more is a garbled file."""


@dataclass(frozen=True, slots=True)
class TraceRow:
    """A request: when it came, its size in tokens, and what it shares with others.

    `t_s` counts from the first row. `hash_ids` name the blocks of `block_tokens` tokens that the prompt
    is made of, in order, the last one perhaps not full: two prompts whose lists begin alike share that
    many blocks. `turn` counts from 1 within its `session`. `line` is where the row stands in its file.
    """

    t_s: float
    in_tokens: int
    out_tokens: int
    hash_ids: tuple[int, ...] | None
    block_tokens: int | None
    session: str | None
    turn: int | None
    line: int

    @property
    def full_blocks(self) -> int:
        """How many of `hash_ids` stand for blocks that are full (0 without hash ids)."""
        return self.in_tokens // self.block_tokens if self.block_tokens else 0


def trace_error(path: Path | str, why: str, fix: str, line: int | None = None) -> UsageError:
    """A UsageError about a trace file, with its line where there is one."""
    return UsageError(Problem("bad_trace", f"the trace {path} {why}", fix, path=str(path), line=line))
