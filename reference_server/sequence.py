"""One request inside the engine."""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reference_server.detokenizer import TextStream
    from reference_server.kv.prefix import HashChain
    from reference_server.logprobs import TokenLogprobs
    from reference_server.sampler import TokenChooser


class FinishReason(StrEnum):
    """Why a request ended; the values are OpenAI's and vLLM's."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True)
class Timeline:
    """Moments of a request, `time.monotonic()` seconds; None until they happen."""

    arrived: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens, and how many of them have their KV data computed.

    There is no prefill phase and no decode phase: `num_computed` catches up with `len(tokens)`,
    many tokens a step for a prompt, one for a token just generated.
    """

    request_id: str
    tokens: list[int]
    num_prompt_tokens: int
    max_tokens: int
    chooser: TokenChooser
    text: TextStream
    chain: HashChain
    timeline: Timeline
    stop_tokens: frozenset[int] = frozenset()
    """Any of these ends it; none where the request ignores the end of sequence."""
    min_tokens: int = 0
    """Before so many are generated, neither end of sequence nor a stop string ends it."""
    logprobs: int | None = None
    """How many alternatives are told beside each token's log probability; None for no log probabilities."""
    last_logprobs: TokenLogprobs | None = None
    """Of the token that was sampled last, where they are told; the runner's own."""
    num_computed: int = 0
    block_table: Sequences[int] = field(default_factory=list)
    """Where its KV data lies: ids of blocks, in order; a `range` where they lie in one piece. Only the
    allocator writes it, and it may put another in its place."""
    extra_tables: list[list[int]] = field(default_factory=list)
    """Block tables of the model's further groups of layers, where it has kinds with a need of their own."""
    num_committed_blocks: int = 0
    """Of these, how many others can find; the allocator's own."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when the request was first scheduled."""
    num_preemptions: int = 0
    stuck_at: int | None = None
    """How many tokens it had when it last gave its memory up although it ran alone."""
    finished: FinishReason | None = None

    @property
    def num_pending(self) -> int:
        """Tokens whose KV data is still to be computed."""
        return len(self.tokens) - self.num_computed

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def may_stop(self) -> bool:
        """Whether the next token may end it before its length does."""
        return self.num_output_tokens >= self.min_tokens
