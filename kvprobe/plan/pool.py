"""What an engine makes of the memory it is given: the pool, as the planner prints it.

`ByteRange` is an amount that somebody printed, with what its rounding leaves open; `EngineOptions`
what the user set; `Pool` the result. The fields of `Pool` are those of `pool` in `plan --json`; a
field is null where the engine has no such thing. How many blocks a request takes is the engine's own
rule, which a `Pool` carries as its `reservation`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

IntRange = tuple[int, int]
FloatRange = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes between `lo` and `hi`, both included; `exact` where the amount is known to the byte.

    A printed 5.29 GiB stands for every amount that may round to it, ties at both ends included
    (`kvprobe.plan.sizes`).
    """

    lo: int
    hi: int
    exact: int | None = None

    @classmethod
    def of(cls, size_bytes: int) -> ByteRange:
        return cls(size_bytes, size_bytes, size_bytes)

    @property
    def nominal(self) -> int:
        """The amount to compute with where one number is wanted: the exact one, else the middle."""
        return (self.lo + self.hi) // 2 if self.exact is None else self.exact

    def scaled(self, fraction: float) -> ByteRange:
        """`fraction` of it (an engine that takes a share of what is free)."""
        exact = None if self.exact is None else int(self.exact * fraction)
        return ByteRange(int(self.lo * fraction), int(self.hi * fraction), exact)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Settings of an engine; null means that engine's default for the version asked.

    `kv_dtype_k` and `kv_dtype_v` are names of `kvprobe.model.dtypes` (`auto` is the model's dtype).
    `layer_partition` is the layers of each pipeline stage (VLLM_PP_LAYER_PARTITION); null splits
    evenly. `hybrid_manager` false is `--disable-hybrid-kv-cache-manager`. `latent_cache` false makes
    llama.cpp keep decompressed K and V of an MLA model, as its older model files do. `static_cache` is
    transformers' cache of full length.
    `gpu_memory_bytes` and `gpu_name` decide defaults that depend on the device.
    """

    block_size: int | None = None
    max_model_len: int | None = None
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    prefix_caching: bool | None = None
    mamba_cache_mode: str | None = None
    speculative_tokens: int = 0
    draft_layers: int = 0
    tp: int = 1
    pp: int = 1
    layer_partition: tuple[int, ...] | None = None
    kv_dtype_k: str = "auto"
    kv_dtype_v: str = "auto"
    hybrid_manager: bool | None = None
    swa_full_tokens_ratio: float | None = None
    mamba_full_memory_ratio: float | None = None
    max_running_requests: int | None = None
    state_slots: int | None = None
    ctx: int | None = None
    parallel: int | None = None
    ubatch: int | None = None
    kv_unified: bool | None = None
    swa_full: bool = False
    latent_cache: bool | None = None
    static_cache: bool | None = None
    swap_space_bytes: int | None = None
    tokens: int | None = None
    gpu_memory_bytes: int | None = None
    gpu_name: str | None = None


def _no_blocks(tokens: int) -> int:
    """The rule of a pool without blocks: each request takes one share of it."""
    return 1 if tokens > 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The memory that an engine divides, in that engine's own units.

    `num_blocks` counts what the engine prints; `null_blocks` of them never hold a token.
    `groups` is the number of groups of each kind of layer, full attention first.
    `tokens` is what one set of requests can hold when every block is full (attention that grows);
    `log_line_tokens` what this version prints in its log. Ranges are what the rounding of a printed
    input leaves open. `parts_bytes` are bytes by part where the engine prints them.
    """

    engine: str
    version: str
    fits: bool
    available_bytes: int | None = None
    num_blocks: int | None = None
    num_blocks_range: IntRange | None = None
    null_blocks: int = 0
    block_size: int | None = None
    block_bytes: int | None = None
    page_bytes: int | None = None
    groups: tuple[int, ...] | None = None
    group_size: int | None = None
    padding_layers: int | None = None
    tokens: int | None = None
    tokens_range: IntRange | None = None
    log_line_tokens: int | None = None
    log_line_tokens_range: IntRange | None = None
    max_model_len: int | None = None
    max_concurrency: float | None = None
    max_concurrency_range: FloatRange | None = None
    blocks_per_request: int | None = None
    num_cpu_blocks: int | None = None
    full_tokens: int | None = None
    full_tokens_range: IntRange | None = None
    swa_tokens: int | None = None
    swa_tokens_range: IntRange | None = None
    state_slots: int | None = None
    state_slots_range: IntRange | None = None
    max_requests: int | None = None
    parts_bytes: dict[str, int] | None = None
    estimated_max_model_len: int | None = None
    estimated_max_model_len_range: IntRange | None = None
    needed_bytes: int | None = None
    assumptions: tuple[str, ...] = ()
    reservation: Callable[[int], int] = field(default=_no_blocks, repr=False, compare=False)
    holds: Callable[[int], int] | None = field(default=None, repr=False, compare=False)

    @property
    def num_groups(self) -> int | None:
        return None if self.groups is None else sum(self.groups)

    def at_length(self, max_model_len: int | None) -> Pool:
        """This pool with the concurrency of engines that divide its tokens by the longest request."""
        if not max_model_len or self.tokens is None or self.tokens_range is None:
            return replace(self, max_model_len=max_model_len)
        low, high = self.tokens_range
        return replace(
            self,
            max_model_len=max_model_len,
            max_concurrency=self.tokens / max_model_len,
            max_concurrency_range=(low / max_model_len, high / max_model_len),
            blocks_per_request=self.reservation(max_model_len),
        )

    def blocks_for(self, tokens: int) -> int:
        """Blocks of one request of `tokens` tokens, over all groups, as this engine reserves them."""
        return self.reservation(max(0, tokens))

    def requests_of(self, tokens: int) -> int:
        """How many requests of `tokens` tokens the pool holds at once: n(T) of LAYOUTS section 3."""
        if self.holds is not None:
            held = self.holds(max(0, tokens))
        else:
            usable = max(0, (self.num_blocks or 0) - self.null_blocks)
            held = usable // max(1, self.blocks_for(tokens))
        return held if self.max_requests is None else min(held, self.max_requests)
