"""What the scheduler asks of whoever owns the KV memory.

The scheduler knows no blocks: it asks for room for a number of tokens and is told yes or no. A
policy that reserves more than it was asked for, or lays sequences out in one piece, is another
class behind the same protocol.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from reference_server.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Usage:
    """Where the memory is, in blocks, and the slots held but empty."""

    blocks_total: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    blocks_evicted_total: int
    tail_slots: int
    """Empty token slots at the ends of sequences' last blocks."""

    @property
    def ratio(self) -> float:
        """Held by sequences, of all; cached blocks count as free, as in vLLM."""
        return self.blocks_used / self.blocks_total


class Allocator(Protocol):
    """Room for tokens. Called by the engine thread only.

    It writes each sequence's `block_table`, which attention reads; nobody else does.
    """

    name: str
    block_size: int

    @property
    def capacity_tokens(self) -> int:
        """The most tokens that one sequence alone could have stored."""

    def begin(self, sequence: Sequence) -> int:
        """Give a sequence without memory the cached blocks of its prefix; returns their tokens.

        At most `len(tokens) - 1`: the last token is always computed, because its logits are wanted.
        """

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make room for the first `num_tokens` tokens; False, and nothing changed, when full."""

    def commit(self, sequence: Sequence) -> None:
        """Note that `sequence.num_computed` tokens are now stored, so that others can reuse them."""

    def release(self, sequence: Sequence) -> None:
        """Take all memory back."""

    def usage(self, holders: Iterable[Sequence]) -> Usage:
        """The state now; `holders` are the sequences that hold memory."""

    def check(self, holders: Iterable[Sequence]) -> None:
        """Raise `IntegrityError` unless the books balance."""
