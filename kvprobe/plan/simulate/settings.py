"""What a simulation is told: the pool, the scheduler's limits, the engine's habits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kvprobe.errors import Problem, UsageError

Allocator = Literal["paged", "paged-reserve", "contiguous"]
ALLOCATORS: tuple[Allocator, ...] = ("paged", "paged-reserve", "contiguous")
Engine = Literal["reference", "vllm", "sglang"]
ENGINES: tuple[Engine, ...] = ("reference", "vllm", "sglang")
MAX_BLOCKS = 1 << 28
MAX_SEQS = 1 << 14


@dataclass(frozen=True, slots=True)
class Groups:
    """Layers of several kinds over one pool, by the engine's own rule (`kvprobe.plan.engines`).

    A request takes `weight` blocks for each `block_size` tokens, and what `blocks_for` says beyond that, at
    its full length: windows and states.
    """

    block_size: int
    weight: int
    blocks_for: Callable[[int], int]

    def extra(self, tokens: int) -> int:
        """Blocks of a request of `tokens` tokens beside those that grow."""
        grown = -(-tokens // self.block_size) * self.weight
        return max(self.blocks_for(tokens) - grown, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """A server's settings.

    `usable_blocks` of `block_size` tokens can be handed out (the null block is not among them); under
    `contiguous` a slot is one token and the pool has `usable_blocks * block_size` of them.
    `max_tokens` is what requests ask for (paged-reserve and SGLang reserve by it): null takes each
    request's true output. `swap_blocks` fit into host memory; 0 recomputes. `full_prompt` lets a request
    in only when its whole prompt fits (vLLM's default since scheduler_reserve_full_isl exists), `watermark`
    is the share of blocks that an admission leaves free.
    """

    usable_blocks: int
    block_size: int = 16
    allocator: Allocator = "paged"
    engine: Engine = "reference"
    prefix_caching: bool = True
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    max_model_len: int | None = None
    max_tokens: int | None = None
    swap_blocks: int = 0
    full_prompt: bool = False
    watermark: float = 0.0
    groups: Groups | None = None

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise UsageError(*problems)

    def _problems(self) -> list[Problem]:
        found = []
        if not 1 <= self.usable_blocks <= MAX_BLOCKS:
            why = f"a pool of {self.usable_blocks:,} blocks"
            found.append(
                Problem("bad_pool", why, f"1 to {MAX_BLOCKS:,} blocks can be simulated: see --block-size")
            )
        if not 1 <= self.max_num_seqs <= MAX_SEQS:
            why = f"--max-num-seqs {self.max_num_seqs:,}"
            found.append(Problem("bad_value", why, f"give a whole number from 1 to {MAX_SEQS:,}"))
        if self.engine != "sglang" and self.max_num_batched_tokens < self.max_num_seqs:
            why = (
                f"--max-num-batched-tokens {self.max_num_batched_tokens:,} is less than --max-num-seqs "
                f"{self.max_num_seqs:,}: a step could not give each request its token"
            )
            found.append(Problem("bad_value", why, "raise the one or lower the other"))
        if self.allocator == "contiguous" and self.max_model_len is None:
            why = "--allocator contiguous reserves --max-model-len for each request, which is not given"
            found.append(Problem("bad_value", why, "give --max-model-len"))
        return found

    @property
    def in_regions(self) -> bool:
        """Whether each request lies in one piece."""
        return self.allocator == "contiguous"

    @property
    def slot_size(self) -> int:
        """Tokens of what the allocator hands out."""
        return 1 if self.in_regions else self.block_size

    @property
    def total(self) -> int:
        """Of these, how many there are."""
        return self.usable_blocks * self.block_size if self.in_regions else self.usable_blocks

    @property
    def region(self) -> int:
        """Slots of a region; 0 where there are none."""
        return min(self.max_model_len or 0, self.total) if self.in_regions else 0

    @property
    def caches(self) -> bool:
        """Whether equal prefixes are shared."""
        return self.prefix_caching and not self.in_regions and self.groups is None

    @property
    def weight(self) -> int:
        """Blocks that a request takes for each block of tokens."""
        return 1 if self.groups is None else self.groups.weight

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest request, prompt and output together, that is not refused.

        The last generated token has no KV data.
        """
        capacity = self.region if self.in_regions else self.total * self.slot_size
        return min(capacity + 1, self.max_model_len or capacity + 1)
