"""The lines that a start writes; `docs/server-log.md` lists them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from reference_server import __version__
from reference_server.attention.formats import KV_FORMATS
from reference_server.budget import Budget
from reference_server.config import ServerConfig
from reference_server.kv.allocator import Allocator
from reference_server.kv.preemption import PreemptionManager
from reference_server.models.load import LoadedModel

if TYPE_CHECKING:
    from reference_server.prepare import Prepared

log = logging.getLogger("reference_server.build")

MIB = 1024**2
_DTYPES = {form.dtype: form.name for form in KV_FORMATS.values()}


def server(config: ServerConfig) -> None:
    """Who starts, with what."""
    log.info(
        "reference_server %s: model %s, device %s, allocator %s, preemption %s, max_model_len %d, "
        "max_num_seqs %d, max_num_batched_tokens %d",
        __version__,
        config.served_model,
        config.device,
        config.allocator,
        config.preemption,
        config.max_model_len,
        config.max_num_seqs,
        config.max_num_batched_tokens,
    )


def model(config: ServerConfig, loaded: LoadedModel, seconds: float) -> None:
    shape, size = loaded.config, loaded.weights.nbytes
    log.info(
        "model %s: %d layers, %d heads, %d KV heads x %d, weights %d B (%.1f MiB) %s, made in %.2f s; "
        "threads %d",
        shape.name,
        shape.layers,
        shape.heads,
        shape.kv_heads,
        shape.head_dim,
        size,
        size / MIB,
        _DTYPES.get(loaded.weights.embedding.dtype, str(loaded.weights.embedding.dtype)),
        seconds,
        config.threads,
    )


def budget(made: Budget) -> None:
    log.info("%s", made.line())


def pool(
    config: ServerConfig,
    ready: Prepared,
    pool_bytes: int,
    allocator: Allocator,
    preemption: PreemptionManager,
) -> None:
    """The pool, and what it holds."""
    total = allocator.usage(()).blocks_total
    slots = total * allocator.block_size
    log.info(
        "KV pool: %.1f MiB %s at %d B a token; %d blocks of %d tokens = %d tokens (and a null block); "
        "allocator %s; prefix caching %s",
        pool_bytes / MIB,
        ready.form.name,
        ready.bytes_per_token,
        total,
        allocator.block_size,
        slots,
        config.allocator,
        "on" if ready.caches_prefixes else "off",
    )
    host_blocks = preemption.usage().blocks_total
    if host_blocks:
        size = host_blocks * ready.block_bytes
        log.info("swap pool: %.1f MiB of host memory; %d blocks", size / MIB, host_blocks)
    log.info(
        "at the full %d tokens a request the pool holds %.2f requests; at most %d run in a step of %d tokens",
        config.max_model_len,
        total / -(-config.max_model_len // allocator.block_size),
        config.max_num_seqs,
        config.max_num_batched_tokens,
    )
    if allocator.capacity_tokens < config.max_model_len:
        log.warning(
            "the pool is smaller than --max-model-len: requests beyond %d tokens will be refused",
            allocator.capacity_tokens,
        )
