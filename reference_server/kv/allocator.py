"""What the scheduler asks of whoever owns the KV memory.

The scheduler knows no blocks: it asks for room for a number of tokens and is told yes or no. A
policy that reserves more than it was asked for, or lays sequences out in one piece, is another
class behind the same protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Sequences
from dataclasses import dataclass
from typing import Protocol

from reference_server.sequence import Sequence

TABLE_ENTRY_BYTES = 8
"""One entry of a block table: a pointer in a Python list."""
RANGE_BYTES = 48
"""A block table of consecutive ids, however many: a `range` object."""

Mover = Callable[[Sequences[int], Sequences[int]], None]
"""Copies the KV data of blocks to other blocks; the two may overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Where the memory is, in blocks, and what of it holds no token.

    With `table_blocks` counted once for each sequence that lists a block,

        table_blocks x block size = stored + tail + reserved slots,
        blocks_used = table_blocks - blocks saved by sharing.
    """

    blocks_total: int
    blocks_used: int
    blocks_cached: int
    blocks_free: int
    blocks_backed: int | None = None
    """Of all, those whose memory is allocated now; None: all, from the start."""
    blocks_evicted_total: int = 0
    table_blocks: int = 0
    """Entries of all block tables that point to a block."""
    stored_tokens: int = 0
    """Tokens whose KV data sequences hold; one that is shared counts for each."""
    tail_slots: int = 0
    """Empty token slots at the ends of sequences' last started blocks."""
    reserved_slots: int = 0
    """Empty slots of blocks that are held and not started: room kept for later tokens."""
    largest_free_blocks: int = 0
    """The longest run that could be handed out in one piece, cached blocks included."""
    table_bytes: int = 0
    metadata_bytes: int = 0
    """Of the books: block or region records, and the index of cached blocks."""
    moved_blocks_total: int = 0
    """Blocks copied elsewhere so that a region could grow."""
    failures_total: int = 0
    """Refusals for lack of blocks."""
    fragmented_failures_total: int = 0
    """Refusals although enough blocks were free, in pieces."""

    @property
    def ratio(self) -> float:
        """Held by sequences, of all; cached blocks count as free, as in vLLM."""
        return self.blocks_used / self.blocks_total

    @property
    def shared_blocks(self) -> int:
        """Blocks that would be held in addition if sequences did not share."""
        return max(self.table_blocks - self.blocks_used, 0)


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why the last request for room was refused, in blocks."""

    asked: int
    """In one piece where regions are, else the blocks that lacked."""
    free: int
    largest_free: int

    @property
    def fragmented(self) -> bool:
        """Enough in sum, but not in one piece."""
        return self.free >= self.asked > self.largest_free


class Allocator(Protocol):
    """Room for tokens. Called by the engine thread only.

    It writes each sequence's `block_table`, which attention reads; nobody else does.
    """

    name: str
    block_size: int
    last_shortage: Shortage | None
    """Of the last refusal; None before the first."""

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

    def unreachable_blocks(self) -> int:
        """Cached blocks that no prompt can find now, because a block before them is gone.

        They can be found again once that block is computed anew. Walks all cached blocks.
        """

    def check(self, holders: Iterable[Sequence]) -> None:
        """Raise `IntegrityError` unless the books balance."""


def slots(sequence: Sequence, block_size: int) -> tuple[int, int]:
    """Empty slots of a sequence's table: at the end of its last started block, and beyond it."""
    started = -(-sequence.num_computed // block_size) * block_size
    held = len(sequence.block_table) * block_size
    return started - sequence.num_computed, max(held - started, 0)
