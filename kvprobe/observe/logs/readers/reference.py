"""The project's reference server; its lines are described in `docs/server-log.md`."""

from __future__ import annotations

from kvprobe.observe.logs.lines import Reader
from kvprobe.observe.logs.readers.signature import signature, table_reader

ENGINE = "reference"

_START = (
    signature(
        "engine_start",
        "reference_server ",
        r"reference_server (?P<version__text>\d[\w.+-]{0,20}): model \S{1,120},",
        phase="load",
    ),
    signature(
        "config",
        "reference_server ",
        r"allocator (?P<allocator__text>[\w-]{3,20}), preemption (?P<preemption__text>\w{4,12}), "
        r"max_model_len (?P<max_model_len__tokens>\d+), max_num_seqs (?P<max_num_seqs__count>\d+), "
        r"max_num_batched_tokens (?P<max_num_batched_tokens__tokens>\d+)",
    ),
    signature(
        "weights_loaded",
        "KV heads x",
        r"model \S{1,120}: \d+ layers, .{0,80}weights (?P<weights__B>\d+) B ",
        phase="profile",
    ),
    signature(
        "budget",
        "memory budget: total ",
        r"memory budget: total (?P<total__B>\d+) B, free at start (?P<free__B>\d+) B, utilisation "
        r"(?P<utilisation__ratio>[\d.]+) = \d+ B; weights (?P<weights__B>\d+) B, workspace "
        r"(?P<workspace__B>\d+) B, "
        r"activation peak (?P<activation_peak__B>\d+) B; left for KV (?P<kv__B>-?\d+) B",
    ),
    signature(
        "budget",
        "no memory is left for KV: total ",
        r"no memory is left for KV: total (?P<total__B>\d+) B x utilisation (?P<utilisation__ratio>[\d.]+) "
        r"= \d+ B, "
        r"weights (?P<weights__B>\d+) B, workspace (?P<workspace__B>\d+) B, activation peak "
        r"(?P<activation_peak__B>\d+) B; "
        r"lacking (?P<lacking__B>\d+) B",
        failed=1,
    ),
    signature(
        "budget",
        "free memory on the device at start is ",
        r"free memory on the device at start is (?P<free__B>\d+) B of (?P<total__B>\d+) B, less than the "
        r"budget of "
        r"(?P<asked__B>\d+) B \(utilisation (?P<utilisation__ratio>[\d.]+)\)",
        failed=1,
    ),
    signature(
        "pool_size",
        "(and a null block)",
        r"KV pool: [\d.]+ MiB \w{2,8} at (?P<bytes_per_token__B>\d+) B a token; "
        r"(?P<blocks__blocks>\d+) blocks of (?P<block_size__tokens>\d+) tokens = (?P<tokens__tokens>\d+) "
        r"tokens",
    ),
    signature(
        "config",
        "(and a null block)",
        r"blocks of (?P<block_size__tokens>\d+) tokens.{0,120}; prefix caching "
        r"(?P<enable_prefix_caching__flag>on|off)",
    ),
    signature(
        "config",
        "tokens a request the pool holds",
        r"at the full (?P<max_model_len__tokens>\d+) tokens a request the pool holds [\d.]+ requests; at "
        r"most "
        r"(?P<max_num_seqs__count>\d+) run in a step of (?P<max_num_batched_tokens__tokens>\d+) tokens",
    ),
    signature(
        "pool_below_one_request",
        "the pool is smaller than --max-model-len",
        r"requests beyond (?P<pool__tokens>\d+) tokens will be refused",
    ),
    signature(
        "pool_below_one_request",
        "the KV pool is too small: ",
        r"the KV pool is too small: \d+ B hold",
        failed=1,
    ),
    signature(
        "pool_below_one_request", "--kv-memory is too small", r"serve: --kv-memory is too small", failed=1
    ),
    signature(
        "config_refused",
        "is in use; choose another with --port",
        r"port \d{1,5} on \S{1,60} is in use",
        kind="a port that is in use",
    ),
    signature("serving", "listening on http", r"reference_server.{0,20}listening on http", phase="serve"),
)

_SERVE = (
    signature(
        "engine_stats",
        "; prefix hits ",
        r"last (?P<interval__s>[\d.]+) s: computed (?P<prompt_tokens_per_s__rate>[\d.]+) tokens/s, generated "
        r"(?P<generation_tokens_per_s__rate>[\d.]+) tokens/s; running (?P<running__count>\d+), waiting "
        r"(?P<waiting__count>\d+); KV usage (?P<kv_usage__pct>[\d.]+)%(?: \((?P<used_blocks__blocks>\d+) "
        r"used \+ "
        r"(?P<cached_blocks__blocks>\d+) cached \+ (?P<free_blocks__blocks>\d+) free = "
        r"(?P<total_blocks__blocks>\d+) blocks\))?"
        r"; prefix hits (?:(?P<prefix_hit_rate__pct>[\d.]+)%|no queries)(?: of queried tokens)?"
        r"(?:; preempted (?P<preempted__count>\d+), swapped out \d+)?"
        r"(?:; empty (?P<tail__MiB>[\d.]+) MiB tail \+ (?P<reserved__MiB>[\d.]+) MiB reserved)?"
        r"(?:; largest free region (?P<largest_free__MiB>[\d.]+) MiB)?"
        r"(?:; failed allocations (?P<failed_allocations__count>\d+))?",
        phase="serve",
    ),
    signature(
        "preemption",
        "no KV blocks left; ",
        r"preempted \S{1,80}: no KV blocks left; (?P<recompute__tokens>\d+) tokens to compute again",
        phase="serve",
        mode="recompute",
    ),
    signature(
        "preemption",
        "no KV blocks left; ",
        r"preempted \S{1,80}: no KV blocks left; \d+ blocks swapped out",
        phase="serve",
        mode="swap",
    ),
    signature(
        "kv_no_room",
        "no room in the KV cache for",
        r"asked (?P<asked__B>\d+) B, free (?P<free__B>\d+) B, largest free region (?P<largest_free__B>\d+) B "
        r"\(running (?P<running__count>\d+), waiting (?P<waiting__count>\d+)",
        phase="serve",
    ),
    signature(
        "kv_no_room",
        "the KV cache has no room for this request",
        r"asked (?P<asked__B>\d+) B, free (?P<free__B>\d+) B, largest free region (?P<largest_free__B>\d+) B",
        phase="serve",
        failed=1,
    ),
    signature(
        "refused",
        "refused with ",
        r"needs (?P<asked__tokens>\d+) tokens of KV cache, more than the whole pool of "
        r"(?P<limit__tokens>\d+) tokens",
        phase="serve",
        reason="pool",
    ),
    signature("refused", "refused with 429", r"refused with 429", phase="serve", reason="queue"),
    signature(
        "device_no_memory",
        "out of device memory: asked ",
        r"out of device memory: asked (?P<asked__B>\d+) B, free (?P<free__B>\d+) B, largest free region "
        r"(?P<largest_free__B>\d+) B, total (?P<total__B>\d+) B, held by this process (?P<own__B>\d+) B, by "
        r"others "
        r"(?P<others__B>\d+) B; phase (?P<stage__text>\w{4,8})",
    ),
    signature("cancelled", " up: the client took nothing", r"gave \S{1,80} up: the client", phase="serve"),
    signature("aborted", " up: the client went away", r"gave \S{1,80} up: the client went", phase="serve"),
    signature("cancelled", " up: it did not finish within", r"gave \S{1,80} up: it did", phase="serve"),
    signature(
        "engine_dead", "the engine died", r"reference_server\.engine: the engine died|^the engine died"
    ),
    signature("shutdown", "stopping: finishing the requests", r"stopping: finishing"),
    signature("shutdown", "stopping at once: ", r"stopping at once"),
)

READERS: tuple[Reader, ...] = (
    table_reader("reference start", ENGINE, _START),
    table_reader("reference serve", ENGINE, _SERVE),
)
