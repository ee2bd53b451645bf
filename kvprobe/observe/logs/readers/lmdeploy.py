"""LMDeploy: TurboMind and its PyTorch engine."""

from __future__ import annotations

from kvprobe.observe.logs.lines import Reader
from kvprobe.observe.logs.readers.signature import signature, table_reader

ENGINE = "lmdeploy"

_ROWS = (
    signature(
        "turbomind_oom",
        "CUDA runtime error: out of memory",
        r"\[TM\].{0,20}CUDA runtime error: out of memory "
        r"(?:\S{0,120}/)?(?P<file__text>\w+\.\w{1,3}):(?P<at__int>\d+)",
    ),
    signature(
        "config",
        "cache_max_entry_count",
        r"cache_max_entry_count ?[=:] ?(?P<cache_max_entry_count__ratio>[\d.]+)",
    ),
    signature(
        "config",
        "--cache-max-entry-count",
        r"--cache-max-entry-count[ =](?P<cache_max_entry_count__ratio>[\d.]+)",
    ),
    signature("config", "session_len", r"\bsession_len ?[=:] ?(?P<max_model_len__tokens>\d+)"),
    signature("config", "max_batch_size", r"\bmax_batch_size ?[=:] ?(?P<max_num_seqs__count>\d+)"),
    signature(
        "engine_start",
        "TurbomindEngineConfig",
        r"TurbomindEngineConfig",
    ),
    signature("engine_start", "PytorchEngineConfig", r"PytorchEngineConfig"),
    signature(
        "block_bytes",
        "[BlockManager] block_size",
        r"block_size = (?P<bytes__MiB>[\d.]+) MB",
    ),
    signature("pool_size", "[BlockManager] max_block_count", r"max_block_count = (?P<blocks__blocks>\d+)"),
    signature("phase", "[BlockManager]", r"\[BlockManager\]", phase="profile"),
    signature(
        "lmdeploy_no_room", "No enough gpu memory", r"No enough gpu memory for (?P<what__text>[\w ]{2,20})"
    ),
    signature("pool_short", "No enough blocks", r"No enough blocks", phase="serve"),
    signature(
        "truncated",
        "truncated to",
        r"\[TM\].{0,160}(?:request_output_len|session_len).{0,60}truncated to (?P<limit__tokens>\d+)",
        phase="serve",
    ),
    signature(
        "refused",
        "exceed session_len",
        r"(?P<asked__tokens>\d{1,12})\)? .{0,30}exceed session_len ?\(?(?P<limit__tokens>\d+)",
        phase="serve",
        reason="context",
    ),
)

READERS: tuple[Reader, ...] = (table_reader("lmdeploy", ENGINE, _ROWS),)
