"""From a configuration to an engine core. Imports torch."""

from __future__ import annotations

import logging
import time

import torch

from reference_server.attention.sdpa import SdpaAttention
from reference_server.config import ServerConfig
from reference_server.core import EngineCore
from reference_server.errors import ConfigError
from reference_server.kv.paged import PagedAllocator, blocks_for
from reference_server.kv.preemption import RecomputePreemption
from reference_server.kv.prefix import PrefixHasher
from reference_server.metrics import Metrics
from reference_server.models.llama import LlamaConfig, LlamaModel
from reference_server.models.tiny import TINY, random_weights
from reference_server.models.tokenizer import ByteTokenizer
from reference_server.runner import ModelRunner
from reference_server.scheduler import Scheduler

log = logging.getLogger(__name__)

MIB = 1024**2


def build_core(config: ServerConfig, metrics: Metrics, shape: LlamaConfig = TINY) -> EngineCore:
    """Weights, pool, scheduler and core; raises `ConfigError` when the pool cannot be made."""
    torch.set_num_threads(config.threads)
    bytes_per_token = shape.kv_bytes_per_token()
    num_blocks = config.kv_memory_bytes // (bytes_per_token * config.block_size)
    if num_blocks < 2:
        raise ConfigError(
            f"--kv-memory is too small: {config.kv_memory_bytes} B hold {num_blocks} blocks of "
            f"{bytes_per_token * config.block_size} B; the null block and at least one more are needed"
        )
    if config.max_model_len > shape.max_positions:
        raise ConfigError(f"--max-model-len is at most {shape.max_positions} for model {shape.name}")
    started = time.monotonic()
    weights = random_weights(shape, config.seed)
    try:
        attention = SdpaAttention(
            layers=shape.layers,
            num_blocks=num_blocks,
            block_size=config.block_size,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
        )
    except RuntimeError as error:
        raise ConfigError(
            f"the KV pool of {config.kv_memory_bytes} B cannot be allocated: {error}"
        ) from error
    allocator = PagedAllocator(num_blocks, config.block_size, prefix_caching=config.prefix_caching)
    core = EngineCore(
        Scheduler(
            allocator,
            RecomputePreemption(allocator),
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
        ),
        ModelRunner(LlamaModel(shape, weights, attention), ByteTokenizer()),
        PrefixHasher(config.block_size),
        metrics,
        bytes_per_token=bytes_per_token,
        prefix_caching=config.prefix_caching,
        check_integrity=config.check_integrity,
    )
    metrics.attach(core.state, _cache_config(config, num_blocks, bytes_per_token))
    _log_start(config, shape, weights.nbytes, attention.cache_bytes, allocator, time.monotonic() - started)
    return core


def _cache_config(config: ServerConfig, num_blocks: int, bytes_per_token: int) -> dict[str, object]:
    """Labels of `cache_config_info`; as in vLLM, `num_gpu_blocks` counts the null block."""
    return {
        "allocator": config.allocator,
        "block_size": config.block_size,
        "cache_dtype": "fp32",
        "enable_prefix_caching": config.prefix_caching,
        "kv_bytes_per_token": bytes_per_token,
        "kv_cache_memory_bytes": num_blocks * config.block_size * bytes_per_token,
        "kv_cache_size_tokens": (num_blocks - 1) * config.block_size,
        "max_model_len": config.max_model_len,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "num_gpu_blocks": num_blocks,
        "preemption": config.preemption,
    }


def _log_start(
    config: ServerConfig,
    shape: LlamaConfig,
    weight_bytes: int,
    pool_bytes: int,
    allocator: PagedAllocator,
    seconds: float,
) -> None:
    blocks_each = blocks_for(config.max_model_len, config.block_size)
    log.info(
        "model %s: %d layers, %d heads, %d KV heads x %d, weights %.1f MiB fp32, made in %.2f s; threads %d",
        shape.name,
        shape.layers,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        weight_bytes / MIB,
        seconds,
        config.threads,
    )
    log.info(
        "KV pool: %.1f MiB fp32 at %d B a token; %d blocks of %d tokens = %d tokens (and a null block); "
        "prefix caching %s",
        pool_bytes / MIB,
        shape.kv_bytes_per_token(),
        allocator.pool.total,
        config.block_size,
        allocator.capacity_tokens,
        "on" if config.prefix_caching else "off",
    )
    log.info(
        "at the full %d tokens a request the pool holds %.2f requests; at most %d run in a step of %d tokens",
        config.max_model_len,
        allocator.pool.total / blocks_each,
        config.max_num_seqs,
        config.max_num_batched_tokens,
    )
    if allocator.capacity_tokens < config.max_model_len:
        log.warning(
            "the pool is smaller than --max-model-len: requests beyond %d tokens will be refused",
            allocator.capacity_tokens,
        )
