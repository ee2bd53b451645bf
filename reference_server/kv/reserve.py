"""Pages, but admission reserves: all that a request may come to need is taken at once.

A sequence that runs is never preempted, and every token that it does not generate in the end was
kept from others. Shared prefixes and eviction are as in the paged allocator.
"""

from __future__ import annotations

from reference_server.kv.paged import PagedAllocator
from reference_server.sequence import Sequence


class ReservingAllocator(PagedAllocator):
    """Reserves prompt and `max_tokens`, or a fixed number of tokens for everyone."""

    name = "paged-reserve"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_caching: bool,
        most_cached: int | None = None,
        each_tokens: int | None = None,
    ) -> None:
        """`each_tokens`: what every sequence reserves; None reserves what it may come to need."""
        super().__init__(num_blocks, block_size, prefix_caching=prefix_caching, most_cached=most_cached)
        self._each_tokens = each_tokens

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        # The last token that is generated is never stored.
        most = sequence.num_prompt_tokens + sequence.max_tokens - 1
        if self._each_tokens is not None:
            most = max(most, min(self._each_tokens, self.capacity_tokens))
        return super().extend(sequence, max(most, num_tokens))
