"""Hugging Face text-generation-inference: launcher, router and shard lines (text and JSON alike)."""

from __future__ import annotations

from kvprobe.observe.logs.lines import Reader
from kvprobe.observe.logs.readers.signature import signature, table_reader

ENGINE = "tgi"

_ROWS = (
    signature(
        "config",
        "max_batch_prefill_tokens",
        r"max_batch_prefill_tokens(?::|=|`? to) ?(?:Some\(\s{0,4})?(?P<max_prefill_tokens__tokens>\d+)",
    ),
    signature(
        "config",
        "max_batch_total_tokens: ",
        r"max_batch_total_tokens: (?:Some\(\s{0,4})?(?P<max_total_tokens__tokens>\d+)",
    ),
    signature(
        "config",
        "max_total_tokens: ",
        r"\bmax_total_tokens: (?:Some\(\s{0,4})?(?P<max_request_tokens__tokens>\d+)",
    ),
    signature("engine_start", "text_generation_launcher: Args", r"text_generation_launcher: Args"),
    signature(
        "engine_start",
        "text_generation_client: router/client",
        r"text_generation_client: router/client",
    ),
    signature(
        "phase",
        "text_generation_client: router/client",
        r"(?:prefill|decode)\{.{0,400}text_generation_client",
        phase="serve",
    ),
    signature("phase", "Starting shard", r"Starting shard", phase="load"),
    signature("phase", "Waiting for shard", r"Waiting for shard", phase="load"),
    signature("start_failed", "failed to start", r"Shard \d+ failed to start", stage="load"),
    signature("start_failed", "ShardCannotStart", r"\bShardCannotStart\b", stage="load"),
    signature("phase", "Shard ready in", r"Shard ready in", phase="warmup"),
    signature("phase", "Server started at unix:", r"Server started at unix:", phase="warmup"),
    signature("phase", "Warming up model", r"Warming up model", phase="warmup"),
    signature("phase", "Error: Warmup(", r"Error: Warmup\(", phase="warmup"),
    signature("phase", "Method Warmup encountered an error", r"Method Warmup", phase="warmup"),
    signature("phase", "Method Prefill encountered an error", r"Method Prefill", phase="serve"),
    signature("phase", "Method Decode encountered an error", r"Method Decode", phase="serve"),
    signature(
        "pool_size",
        "Setting max batch total tokens to",
        r"Setting max batch total tokens to (?P<tokens__tokens>\d+)",
    ),
    signature("serving", "text_generation_router", r"\bConnected\b", phase="serve"),
    signature(
        "warmup_no_memory",
        "Not enough memory to handle",
        r"Not enough memory to handle (?P<tokens__tokens>\d+) "
        r"(?:total tokens with (?P<prefill__tokens>\d+) )?prefill tokens",
        phase="warmup",
    ),
    signature(
        "refused",
        "`inputs` tokens + `max_new_tokens` must be",
        r"must be <= (?P<limit__tokens>\d+)\. Given: (?P<asked__tokens>\d+) `inputs` tokens",
        phase="serve",
        reason="context",
    ),
    signature(
        "refused",
        "`inputs` must have less than",
        r"`inputs` must have less than (?P<limit__tokens>\d+) tokens\. Given: (?P<asked__tokens>\d+)",
        phase="serve",
        reason="context",
    ),
    signature("refused", "Model is overloaded", r"Model is overloaded", phase="serve", reason="queue"),
    signature(
        "killed",
        "Shard process was signaled to shutdown",
        r"signaled to shutdown with signal (?P<signal__int>9)\b",
        how="signal",
    ),
    signature(
        "bus_error",
        "process was signaled to shutdown",
        r"signaled to shutdown with signal 7\b",
        shared_memory="yes",
    ),
    signature("crashed", "process was signaled to shutdown", r"with signal 4\b", kind="SIGILL"),
    signature("crashed", "process was signaled to shutdown", r"with signal 11\b", kind="SIGSEGV"),
)

READERS: tuple[Reader, ...] = (table_reader("tgi", ENGINE, _ROWS),)
