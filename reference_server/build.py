"""From a configuration to an engine core. Imports torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from reference_server import ailments, startup_log
from reference_server.attention.backend import AttentionBackend
from reference_server.attention.select import make_attention
from reference_server.config import ServerConfig
from reference_server.core import EngineCore
from reference_server.device import CpuMemory, OutOfDeviceMemory
from reference_server.device_segments import make_backed_pool, wants_segments
from reference_server.errors import ConfigError
from reference_server.kv.allocator import Allocator
from reference_server.kv.backed import BackedRegions
from reference_server.kv.contiguous import ContiguousAllocator, ExactAllocator
from reference_server.kv.paged import PagedAllocator
from reference_server.kv.preemption import PreemptionManager, RecomputePreemption
from reference_server.kv.prefix import PrefixHasher
from reference_server.kv.reserve import ReservingAllocator
from reference_server.kv.swap import SwapPreemption
from reference_server.metered_runner import MeteredRunner
from reference_server.metrics import Metrics
from reference_server.models.llama import LlamaModel
from reference_server.models.shape import LlamaConfig
from reference_server.prepare import Prepared, prepare
from reference_server.runner import ModelRunner
from reference_server.scheduler import Scheduler
from reference_server.sizing import PoolSize, size_pool

WARM_UP_TOKENS = 512
EVICT_EARLY_BLOCKS = 1
"""Cached blocks that the ailment `evict-early` leaves: fewer than any prefix worth its reuse."""


def build_core(
    config: ServerConfig,
    metrics: Metrics,
    shape: LlamaConfig | None = None,
    *,
    prepared: Prepared | None = None,
) -> EngineCore:
    """Pool, scheduler and core; raises `ConfigError` when the pool cannot be made."""
    ready = prepared or prepare(config, shape)
    config, model = ready.config, ready.model
    startup_log.server(config)
    startup_log.model(config, model, ready.load_seconds)
    with _as_config_error():
        pool = _make_pool(ready, size_pool(ready))
        attention = pool.attention
        allocator = _make_allocator(ready, pool)
        preemption = _make_preemption(ready, allocator, attention)
        core = _make_core(ready, attention, allocator, preemption, metrics)
    pool_bytes = pool.num_blocks * ready.block_bytes
    core.state.pool_bytes = pool_bytes
    core.state.device = ready.memory
    core.state.model_config = ready.model.config.public()
    with _as_config_error():
        _capture(ready, core)
    metrics.attach(core.state, _cache_config(ready, pool.num_blocks, allocator))
    startup_log.pool(config, ready, pool_bytes, allocator, preemption)
    return core


def _capture(ready: Prepared, core: EngineCore) -> None:
    """On CUDA, record the decode step; after a first pass, in which fp8 finds its scales."""
    if ready.config.device != "cuda" or ready.memory is None:
        return
    ready.memory.phase = "capture"
    core.runner.warm_up(min(ready.config.max_num_batched_tokens, WARM_UP_TOKENS))
    core.runner.capture(ready.config.max_num_seqs, ready.config.max_model_len)


@contextlib.contextmanager
def _as_config_error() -> Iterator[None]:
    """A start that runs out of device memory is a configuration that cannot be served."""
    try:
        yield
    except (OutOfDeviceMemory, torch.OutOfMemoryError) as error:
        raise ConfigError(" ".join(str(error).split())) from error


@dataclass(frozen=True, slots=True)
class _Pool:
    """The KV memory; `regions` where it is allocated region by region, None where it is all there."""

    attention: AttentionBackend[Any]
    num_blocks: int
    regions: BackedRegions | None = None


def _make_pool(ready: Prepared, size: PoolSize) -> _Pool:
    config = ready.config
    num_bytes = size.num_blocks * ready.block_bytes
    factor = ailments.KV_SCALE_FACTOR if "bad-kv-scales" in config.ailments else 1.0
    try:
        if wants_segments(ready):
            backed = make_backed_pool(ready, size.num_blocks, size.activation_peak, scale_factor=factor)
            return _Pool(backed.attention, backed.num_blocks, backed.regions)
        if ready.memory is not None:
            ready.memory.take(num_bytes)
        attention = make_attention(config, ready.model.config, size.num_blocks, scale_factor=factor)
        return _Pool(attention, size.num_blocks)
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" not in str(error):
            raise
        raise ConfigError(
            f"the host has no {num_bytes} B for the KV pool; give a smaller --kv-memory or --device-memory"
        ) from error


def _make_allocator(ready: Prepared, pool: _Pool) -> Allocator:
    config, shape, num_blocks = ready.config, ready.model.config, pool.num_blocks
    most_cached = EVICT_EARLY_BLOCKS if "evict-early" in config.ailments else None
    if len(shape.groups) > 1:
        if config.allocator != "paged":
            raise ConfigError(
                f"--allocator {config.allocator} cannot hold {shape.name}, whose layers look back over "
                "different lengths; use --allocator paged"
            )
        from reference_server.kv.hybrid import HybridAllocator

        windows = [group.window for group in shape.groups]
        return HybridAllocator(
            num_blocks, config.block_size, windows, chunk_tokens=config.max_num_batched_tokens
        )
    if config.allocator == "contiguous":
        return ContiguousAllocator(num_blocks, config.max_model_len, regions=pool.regions)
    if config.allocator == "contiguous-exact":
        return ExactAllocator(
            num_blocks,
            config.block_size,
            pool.attention.store.copy_blocks,
            joining="fragmented" not in config.ailments,
            regions=pool.regions,
        )
    if config.allocator == "paged-reserve":
        return ReservingAllocator(
            num_blocks,
            config.block_size,
            prefix_caching=config.prefix_caching,
            most_cached=most_cached,
            each_tokens=config.max_model_len if "reserve-max" in config.ailments else None,
        )
    return PagedAllocator(
        num_blocks, config.block_size, prefix_caching=config.prefix_caching, most_cached=most_cached
    )


def _make_preemption(
    ready: Prepared, allocator: Allocator, attention: AttentionBackend[Any]
) -> PreemptionManager:
    if ready.config.preemption == "recompute":
        return RecomputePreemption(allocator)
    host_blocks = ready.config.swap_space_bytes // ready.block_bytes
    if not host_blocks:
        raise ConfigError(
            f"--swap-space is too small: {ready.config.swap_space_bytes} B hold no block of "
            f"{ready.block_bytes} B"
        )
    return SwapPreemption(allocator, attention.store, host_blocks)


def _make_core(
    ready: Prepared,
    attention: AttentionBackend[Any],
    allocator: Allocator,
    preemption: PreemptionManager,
    metrics: Metrics,
) -> EngineCore:
    config, model = ready.config, ready.model
    runner: Any = ModelRunner(LlamaModel(model.config, model.weights, attention), model.tokenizer)
    if isinstance(ready.memory, CpuMemory):
        runner = MeteredRunner(runner, ready.memory)
    scheduler = Scheduler(
        allocator,
        preemption,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )
    named: dict[str, Any] = {
        "bytes_per_token": ready.bytes_per_token,
        "block_bytes": ready.block_bytes,
        "prefix_caching": ready.caches_prefixes,
        "check_integrity": config.check_integrity,
    }
    hasher = PrefixHasher(allocator.block_size)
    if not config.ailments:
        return EngineCore(scheduler, runner, hasher, metrics, **named)
    from reference_server.sick import SickCore, sick_runner

    runner = sick_runner(runner, config.ailments)
    kinds = frozenset(config.ailments)
    return SickCore(scheduler, runner, hasher, metrics, ailments=kinds, memory=ready.memory, **named)


def _cache_config(ready: Prepared, num_blocks: int, allocator: Allocator) -> dict[str, object]:
    """Labels of `cache_config_info`; as in vLLM, `num_gpu_blocks` counts the null block."""
    config = ready.config
    return {
        "allocator": config.allocator,
        "block_size": allocator.block_size,
        "cache_dtype": ready.form.name,
        "enable_prefix_caching": ready.caches_prefixes,
        "kv_bytes_per_token": ready.bytes_per_token,
        "kv_cache_memory_bytes": num_blocks * ready.block_bytes,
        "kv_cache_size_tokens": (num_blocks - 1) * allocator.block_size,
        "max_model_len": config.max_model_len,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "num_gpu_blocks": num_blocks,
        "preemption": config.preemption,
    }
