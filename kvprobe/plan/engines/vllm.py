"""vLLM V1: blocks, tokens and concurrency as it prints them at start.

    num_blocks = min over stages of  available // bytes of one block there
    max_concurrency = num_blocks / blocks of a request of max-model-len

Block 0 is the null block: it is counted in what is printed and never holds a token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvprobe.plan.engines.arithmetic import largest, spread
from kvprobe.plan.engines.settings import Setting
from kvprobe.plan.engines.versions import has
from kvprobe.plan.engines.vllm_groups import Demand, Grouping, group
from kvprobe.plan.engines.vllm_specs import CacheSpec, Rules, layer_specs, rules
from kvprobe.plan.pool import ByteRange, Pool

_GIB = 2**30
_SEARCH_LIMIT_TOKENS = 2**40
_SMALL_BATCH, _LARGE_BATCH, _HUGE_BATCH = 2048, 8192, 16384


@dataclass(frozen=True, slots=True)
class Layout:
    """A model as this vLLM lays it out: its groups, and the rules by which requests take blocks."""

    setting: Setting
    specs: tuple[tuple[CacheSpec, ...], ...]
    grouping: Grouping
    demand: Demand
    rules: Rules

    @property
    def stages(self) -> range:
        return range(len(self.specs))

    def num_blocks(self, available_bytes: int) -> int:
        """The smallest stage's blocks; stages without a cache do not count."""
        sizes = [size for stage in self.stages if (size := self.grouping.block_bytes(stage))]
        return max(0, available_bytes) // max(sizes) if sizes else 0

    def blocks_for(self, tokens: int) -> int:
        return self.demand.blocks(tokens, self.rules)


def v1_pool(setting: Setting, available: ByteRange) -> Pool:
    """What vLLM V1 makes of `available` bytes on every GPU."""
    layout = _layout(setting)
    blocks, blocks_range = spread(available, layout.num_blocks)
    length = setting.max_model_len
    tokens, tokens_range = spread(available, lambda size: _tokens(layout, layout.num_blocks(size)))
    pool = Pool(
        engine="vllm",
        version=setting.version.text,
        fits=_starts(layout, available, length) and _holds_one(layout, available, length),
        available_bytes=available.nominal,
        num_blocks=blocks,
        num_blocks_range=blocks_range,
        null_blocks=1,
        block_size=layout.grouping.smallest_block if layout.grouping.groups else None,
        block_bytes=max((layout.grouping.block_bytes(stage) for stage in layout.stages), default=0),
        page_bytes=layout.grouping.page_bytes,
        groups=layout.grouping.per_kind,
        group_size=layout.grouping.size,
        padding_layers=layout.grouping.padding,
        tokens=tokens,
        tokens_range=tokens_range,
        max_model_len=length,
        max_requests=setting.options.max_num_seqs,
        assumptions=_notes(layout, available, length),
        reservation=layout.blocks_for,
    )
    return _at_length(pool, layout, available) if length else pool


def _layout(setting: Setting) -> Layout:
    specs = layer_specs(setting)
    grouping = _grouping(setting, specs)
    return Layout(setting, specs, grouping, grouping.demand(), rules(setting, in_flight_tokens(setting)))


def _grouping(setting: Setting, specs: tuple[tuple[CacheSpec, ...], ...]) -> Grouping:
    version = setting.version
    hybrid = has(version, "groups") and setting.options.hybrid_manager is not False
    chunked = any(spec.kind == "chunked" for stage in specs for spec in stage)
    if chunked and (has(version, "chunked_promoted") or setting.options.draft_layers):
        hybrid = hybrid and setting.options.hybrid_manager is True
    if has(version, "global_groups") or len(specs) == 1:
        return group(specs, version, hybrid=hybrid)
    # Older versions group each stage by itself; the one with the largest block decides.
    alone = [group((stage,), version, hybrid=hybrid) for stage in specs if stage]
    return max(alone, key=lambda grouping: grouping.block_bytes(0))


def in_flight_tokens(setting: Setting) -> int:
    """Tokens that may be computed and not yet freed: a batch, or every batch in flight in newer versions."""
    options = setting.options
    batch = options.max_num_batched_tokens or default_batch_tokens(setting)
    if not has(setting.version, "in_flight"):
        return batch
    # Async scheduling, on by default, overlaps one batch more than there are pipeline stages
    # (`max_concurrent_batches` with the V2 model runner; the older runner overlaps only without stages).
    return batch * (options.pp + 1)


def default_batch_tokens(setting: Setting) -> int:
    """`max_num_batched_tokens` of the API server when nobody sets it (`get_batch_defaults`)."""
    memory, name = setting.options.gpu_memory_bytes, (setting.options.gpu_name or "").lower()
    if memory is None:
        return _LARGE_BATCH
    if has(setting.version, "batch_160") and memory >= 160 * _GIB:
        return _HUGE_BATCH
    return _LARGE_BATCH if memory >= 70 * _GIB and "a100" not in name else _SMALL_BATCH


def _tokens(layout: Layout, num_blocks: int) -> int:
    """The longest sequence that the pool holds; where length costs nothing more, all its slots."""
    slots = num_blocks * layout.grouping.smallest_block if layout.grouping.groups else 0
    growing = layout.blocks_for(_SEARCH_LIMIT_TOKENS) > num_blocks
    if not growing:
        return slots
    return largest(lambda tokens: layout.blocks_for(tokens) <= num_blocks, _SEARCH_LIMIT_TOKENS)


def _at_length(pool: Pool, layout: Layout, available: ByteRange) -> Pool:
    """The figures that depend on max-model-len."""
    length = pool.max_model_len or 0
    per_request = layout.blocks_for(length)

    def concurrency(blocks: int) -> float:
        if not has(layout.setting.version, "concurrency_blocks"):
            return blocks * layout.grouping.smallest_block / length
        return blocks / per_request if per_request else 0.0

    def logged(size: int) -> int:
        return _logged_tokens(layout, layout.num_blocks(size), concurrency(layout.num_blocks(size)), length)

    line, line_range = spread(available, logged)
    estimate, estimate_range = spread(available, lambda size: _longest(layout, size))
    low, high = pool.num_blocks_range or (0, 0)
    return replace(
        pool,
        blocks_per_request=per_request,
        max_concurrency=concurrency(pool.num_blocks or 0),
        max_concurrency_range=(concurrency(low), concurrency(high)),
        log_line_tokens=line,
        log_line_tokens_range=line_range,
        estimated_max_model_len=estimate,
        estimated_max_model_len_range=estimate_range,
        needed_bytes=_needed(layout, length),
    )


def _logged_tokens(layout: Layout, num_blocks: int, concurrency: float, length: int) -> int:
    """`GPU KV cache size: N tokens`: its meaning changed in 0.20.1."""
    if has(layout.setting.version, "log_concurrency"):
        return int(concurrency * length)
    groups = len(layout.grouping.groups)
    return num_blocks // groups * layout.grouping.smallest_block if groups else 0


def _needed(layout: Layout, length: int) -> int:
    """Bytes that the start check asks of the tightest stage for one request of `length` tokens."""
    return max((_stage_needed(layout, stage, length) for stage in layout.stages), default=0)


def _stage_needed(layout: Layout, stage: int, length: int) -> int:
    version, grouping = layout.setting.version, layout.grouping
    if not has(version, "group_check"):
        # Before groups were charged: each layer of the stage by its own rule, without padding.
        return sum(layout.rules.blocks(spec, length) * spec.page_bytes for spec in layout.specs[stage])
    block_bytes = grouping.block_bytes(stage)
    if has(version, "pp_charges_all"):
        whole = Grouping(
            tuple(tuple(replace(member, stage=0) for member in members) for members in grouping.groups),
            grouping.per_kind,
            grouping.size,
            grouping.padding,
            grouping.uniform,
        )
        block_bytes = whole.block_bytes(0)
    if has(version, "check_first_group"):
        return block_bytes * layout.demand.first_group_blocks(length, layout.rules)
    return block_bytes * layout.blocks_for(length)


def _checked(layout: Layout, size: int) -> int:
    """Bytes that the start check may use: without the null block in newer versions."""
    if not has(layout.setting.version, "null_check"):
        return size
    return size - max((layout.grouping.block_bytes(stage) for stage in layout.stages), default=0)


def _longest(layout: Layout, size: int) -> int:
    """vLLM's "estimated maximum model length": the largest length whose check passes."""
    limit = max(layout.setting.max_model_len or 0, layout.setting.spec.max_position_tokens or 0)
    usable = _checked(layout, size)
    return largest(lambda length: _needed(layout, length) <= usable, limit)


def _starts(layout: Layout, available: ByteRange, length: int | None) -> bool:
    """Would this vLLM start? Its check of one request of max-model-len must pass."""
    if layout.grouping.refused or available.nominal <= 0 or not layout.num_blocks(available.nominal):
        return False
    return length is None or _needed(layout, length) <= _checked(layout, available.nominal)


def _holds_one(layout: Layout, available: ByteRange, length: int | None) -> bool:
    """Does the pool hold one request of max-model-len, whatever the check says?"""
    return length is None or layout.blocks_for(length) <= layout.num_blocks(available.nominal)


def _notes(layout: Layout, available: ByteRange, length: int | None) -> tuple[str, ...]:
    refused = layout.grouping.refused
    if refused:
        return (refused,)
    if _starts(layout, available, length) and not _holds_one(layout, available, length):
        return (
            "this vLLM starts, for its check counts less than a request takes, and then such a request "
            "waits for ever (vllm issue 39734)",
        )
    return ()
