"""How a sequence gives its memory up, and comes back.

The scheduler decides *that* a sequence must go; the manager decides what happens to its KV data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from reference_server.kv.allocator import Allocator
from reference_server.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapUsage:
    """What lies in host memory, in blocks; all zero where nothing is ever swapped."""

    blocks_total: int = 0
    blocks_used: int = 0
    requests: int = 0
    out_total: int = 0
    in_total: int = 0


class PreemptionManager(Protocol):
    """Gives memory to waiting sequences and takes it from running ones."""

    name: str

    def admit(self, sequence: Sequence, most_new: int) -> bool:
        """Memory for all that is stored already and for up to `most_new` tokens beyond it.

        Sets `num_computed` to what is stored. False, and nothing changed, when there is no room.
        """

    def evict(self, sequence: Sequence) -> int:
        """Free a running sequence's memory; afterwards it waits like a new one.

        Returns how many blocks of its data were kept elsewhere.
        """

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence, running or waiting, for good."""

    def usage(self) -> SwapUsage:
        """What is kept elsewhere now."""

    def check(self) -> None:
        """Raise `IntegrityError` unless the books of what is kept elsewhere balance."""


class RecomputePreemption:
    """Forget the KV data. The tokens stay, generated ones too, and are computed again.

    Full blocks that nobody overwrites in the meantime are found again as prefix hits.
    """

    name = "recompute"

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def admit(self, sequence: Sequence, most_new: int) -> bool:
        stored = self._allocator.begin(sequence)
        if not self._allocator.extend(sequence, min(len(sequence.tokens), stored + most_new)):
            self._allocator.release(sequence)
            return False
        sequence.num_computed = stored
        return True

    def evict(self, sequence: Sequence) -> int:
        self._allocator.release(sequence)
        sequence.num_computed = 0
        return 0

    def drop(self, sequence: Sequence) -> None:
        self._allocator.release(sequence)

    def usage(self) -> SwapUsage:
        return SwapUsage()

    def check(self) -> None:
        """Nothing is kept."""
