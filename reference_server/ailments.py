"""Ailments: switches that make the server ill in a known way. Imports nothing heavy.

Each is a real defect in the real path, so that a diagnosis can be tried on a server whose true
illness is known. Those that are a bad configuration are set here; those that are a fault of a part
are classes in `sick.py`, put in the place of the healthy ones by `build.py` and `api.py`. Neither
writes a word in log, metrics or headers that a healthy server in that state would not write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reference_server.errors import ConfigError

if TYPE_CHECKING:
    from reference_server.config import ServerConfig

NAMES = (
    "workspace-hog",
    "weights-too-large",
    "startup-peak",
    "small-pool",
    "reserve-max",
    "fragmented",
    "no-reuse",
    "salted",
    "coarse-blocks",
    "evict-early",
    "bad-kv-scales",
    "slow-prefill",
    "queue-limit",
    "leak-on-abort",
    "ignore-cancel",
    "early-role-chunk",
    "error-in-stream",
    "host-leak",
    "die-silently",
    "noisy-neighbour",
)

DEVICE_MEMORY_BYTES = 256 * 1024**2
"""The device's total for ailments of the budget, where none is given: some 7 times the tiny weights."""

COARSE_BLOCK_TOKENS = 512
QUEUE_LIMIT_SEQS = 2
KV_SCALE_FACTOR = 0.15
"""Scales so much too small clip all but the smallest numbers."""

_SETTINGS: dict[str, dict[str, Any]] = {
    "reserve-max": {"allocator": "paged-reserve"},
    "fragmented": {"allocator": "contiguous-exact"},
    "no-reuse": {"prefix_caching": False},
    "coarse-blocks": {"block_size": COARSE_BLOCK_TOKENS},
    "queue-limit": {"max_num_seqs": QUEUE_LIMIT_SEQS},
}
_OF_THE_BUDGET = ("workspace-hog", "weights-too-large", "startup-peak", "noisy-neighbour")
_OF_THE_CACHE = {"salted", "coarse-blocks", "evict-early"}
_OF_BLOCKS = ("coarse-blocks", "evict-early", "salted", "no-reuse", "reserve-max")


def afflict(config: ServerConfig) -> ServerConfig:
    """The configuration that the ailments lead to; raises `ConfigError` where two exclude each other."""
    ailments = set(config.ailments)
    if {"reserve-max", "fragmented"} <= ailments:
        raise ConfigError("--ailment reserve-max and --ailment fragmented need different allocators")
    for name in sorted(ailments & _SETTINGS.keys()):
        config = replace(config, **_SETTINGS[name])
    unfit = sorted(ailments.intersection(_OF_BLOCKS)) if config.in_regions else []
    if unfit:
        raise ConfigError(f"--ailment {unfit[0]} needs --allocator paged or paged-reserve")
    idle = sorted(ailments & _OF_THE_CACHE) if not config.prefix_caching else []
    if idle:
        raise ConfigError(f"--ailment {idle[0]} needs prefix caching, which is off; leave one of them out")
    if "bad-kv-scales" in ailments:
        config = _with_scales(config)
    if ailments.intersection(_OF_THE_BUDGET) and config.device == "cpu" and not config.pool_from_device:
        config = replace(config, device_memory_bytes=DEVICE_MEMORY_BYTES, pool_from_device=True)
    return config


def _with_scales(config: ServerConfig) -> ServerConfig:
    if config.kv_dtype == "auto":
        return replace(config, kv_dtype="int8")
    if config.kv_dtype not in ("fp8", "int8"):
        raise ConfigError(f"--ailment bad-kv-scales needs a format with scales, not {config.kv_dtype}")
    return config


def pool_bytes(config: ServerConfig, bytes_per_token: int, wanted: int) -> int:
    """The KV pool's size, given what a healthy server would take."""
    # One request at the context's limit, or a few that are long; and a null block.
    context = (config.max_model_len + config.slot_block_size) * bytes_per_token
    if "small-pool" in config.ailments:
        return min(wanted, context)
    # Room enough for what is asked of it, were it in one piece.
    return min(wanted, 2 * context) if "fragmented" in config.ailments else wanted


def device_total(config: ServerConfig, weight_bytes: int, total: int) -> int:
    """The device's memory, given the real total."""
    if "weights-too-large" not in config.ailments:
        return total
    return min(total, int(0.97 * weight_bytes / config.gpu_memory_utilization))


def workspace_bytes(config: ServerConfig, left: int, block_bytes: int) -> int:
    """Fixed buffers beside weights and pool: none, unless the server hogs some."""
    if "workspace-hog" not in config.ailments or left <= 0:
        return 0
    # One request at the context's limit still runs, so that nothing is refused for its size alone.
    context = (-(-config.max_model_len // config.slot_block_size) + 1) * block_bytes
    return left - min(context, left // 5)


def profile_tokens(config: ServerConfig, wanted: int, bytes_each: float, free: int) -> int:
    """Tokens of the pass that measures the activation peak, given what one token costs in it."""
    if "startup-peak" not in config.ailments or bytes_each <= 0:
        return wanted
    return max(wanted, int(1.5 * free / bytes_each))


def settings_of(name: str) -> Mapping[str, Any]:
    """What an ailment sets in the configuration; empty where the fault lies in a part."""
    return _SETTINGS.get(name, {})
