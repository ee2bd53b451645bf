"""Memory of the server while the load ran; bytes, null where nobody said."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.evidence.rundata import RunData
from kvprobe.summary import activity

_POOL_BYTES_LABELS = ("kv_cache_memory_bytes", "kv_pool_bytes", "pool_bytes")
_BLOCK_BYTES_LABELS = ("block_bytes", "block_size_bytes")


class Memory(msgspec.Struct, kw_only=True):
    """Server process, KV pool and GPUs."""

    server_rss_start_bytes: float | None = None
    server_rss_max_bytes: float | None = None
    kv_pool_bytes: int | None = None
    kv_pool_source: str | None = None
    kv_blocks: int | None = None
    kv_block_size_tokens: int | None = None
    kv_pool_tokens: int | None = None
    """What the engine says that it can hold, else blocks x block size (an upper bound)."""
    kv_pool_reason: str | None = None
    """Why the pool is null."""
    gpu_used_max_bytes: dict[str, float] = msgspec.field(default_factory=dict)
    gpu_note: str | None = None
    """What NVML said when there is no device."""


def cache_config(run: RunData) -> dict[str, Any]:
    """Labels of the engine's `*cache_config_info`, empty when it exports none."""
    found = [f.value for f in run.facts if f.name == "cache_config" and isinstance(f.value, dict)]
    return found[-1] if found else {}


def memory(run: RunData) -> Memory:
    """What was sampled and what the engine's configuration says."""
    out = Memory()
    rss = activity.series(run.samples, "server.rss_bytes")
    if rss:
        out.server_rss_start_bytes, out.server_rss_max_bytes = rss[0][1], max(v for _, v in rss)
    for sample, value in activity.readings(run.samples, "gpu.memory_used_bytes"):
        gpu = sample.labels.get("gpu", "0")
        out.gpu_used_max_bytes[gpu] = max(value, out.gpu_used_max_bytes.get(gpu, 0.0))
    nvml = [f.value for f in run.facts if f.name == "nvml"]
    if nvml and isinstance(nvml[-1], str):
        out.gpu_note = nvml[-1]
    _pool(out, cache_config(run), activity.largest(run.samples, "engine.kv_blocks_total"))
    if out.kv_pool_tokens is None and out.kv_pool_bytes is None:
        out.kv_pool_reason = activity.why_absent(run.samples)
    return out


def _pool(out: Memory, config: dict[str, Any], exported_blocks: float | None) -> None:
    out.kv_block_size_tokens = whole(config.get("block_size"))
    out.kv_blocks = whole(config.get("num_gpu_blocks"))
    if out.kv_blocks is None and exported_blocks is not None:
        out.kv_blocks = int(exported_blocks)
    # Engines keep a block for themselves (vLLM's null block): their own word comes first.
    out.kv_pool_tokens = whole(config.get("kv_cache_size_tokens"))
    if out.kv_pool_tokens is None and out.kv_blocks is not None and out.kv_block_size_tokens is not None:
        out.kv_pool_tokens = out.kv_blocks * out.kv_block_size_tokens
    for label in _POOL_BYTES_LABELS:
        if (value := whole(config.get(label))) is not None:
            out.kv_pool_bytes, out.kv_pool_source = value, f"cache_config_info {label}"
            return
    for label in _BLOCK_BYTES_LABELS:
        if (value := whole(config.get(label))) is not None and out.kv_blocks is not None:
            out.kv_pool_bytes = value * out.kv_blocks
            out.kv_pool_source = f"cache_config_info {label} x blocks"
            return


def whole(value: Any) -> int | None:
    """A non-negative whole number out of a metric label (labels are text); null for anything else."""
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if number >= 0 else None
