"""llama.cpp while it serves: full caches, refused and cut prompts, what was reused of a prompt."""

from __future__ import annotations

from kvprobe.observe.logs.lines import Reader
from kvprobe.observe.logs.readers.signature import signature, table_reader

ENGINE = "llama.cpp"

_SERVE = (
    signature(
        "kv_full",
        "failed to find free space in the KV cache",
        r"failed to find free space in the KV cache, retrying with (?:a )?smaller .{0,300}?n_batch ?= ?"
        r"(?P<batch__tokens>\d+)",
        phase="serve",
    ),
    signature(
        "kv_full",
        "failed to find a memory slot for batch",
        r"memory slot for batch of size (?P<batch__tokens>\d+)",
        phase="serve",
    ),
    signature(
        "kv_full",
        "find_slot: n_tokens",
        r"n_tokens ?= ?(?P<batch__tokens>\d+) > (?:size|n_ctx) ?=",
        phase="serve",
    ),
    signature(
        "kv_full_fatal",
        "could not find a KV slot for the batch",
        r"could not find a KV slot for the batch",
        phase="serve",
    ),
    signature(
        "kv_full_fatal",
        "ontext size has been exceeded",
        r"ontext size has been exceeded",
        phase="serve",
    ),
    signature(
        "kv_full_fatal",
        "failed to decode the batch",
        r"n_batch ?= ?1\b.{0,40}ret ?= ?1\b|KV cache is full",
        phase="serve",
    ),
    signature(
        "kv_full_fatal",
        "failed to decode, ret = 1",
        r"llama_decode: failed to decode, ret = 1$",
        phase="serve",
    ),
    signature(
        "refused",
        "prompt is too long",
        r"prompt is too long \((?P<asked__tokens>\d+) tokens, max (?P<limit__tokens>\d+)",
        phase="serve",
        reason="context",
    ),
    signature(
        "refused",
        "the available context size",
        r"(?:request|input) \((?P<asked__tokens>\d+) tokens\) (?:exceeds|is larger than) the available "
        r"context "
        r"size \((?P<limit__tokens>\d+)",
        phase="serve",
        reason="context",
    ),
    signature(
        "refused",
        "n_prompt_tokens",
        r"[\"']n_prompt_tokens[\"']: ?(?P<asked__tokens>\d+), ?[\"']n_ctx[\"']: ?(?P<limit__tokens>\d+)",
        phase="serve",
        reason="context",
    ),
    signature(
        "refused",
        "exceed context window of",
        r"Requested tokens \((?P<asked__tokens>\d+)\) exceed context window of (?P<limit__tokens>\d+)",
        phase="serve",
        reason="context",
    ),
    signature(
        "refused",
        "request exceeds the available context size",
        r"the request exceeds the available context size(?!;)",
        phase="serve",
        reason="context",
    ),
    signature(
        "refused",
        "context shift is disabled",
        r"error: .{0,80}context shift is disabled",
        phase="serve",
        reason="context",
    ),
    signature("refused", "no slot available", r"no slot available", phase="serve", reason="slots"),
    signature(
        "truncated",
        "truncated = 1",
        r"stop processing: (?:n_tokens|n_past) = (?P<input__tokens>\d+), truncated = 1",
        phase="serve",
    ),
    signature(
        "truncated",
        "nput truncated",
        r"nput truncated(?:.{0,20}?n_ctx ?= ?(?P<limit__tokens>\d+))?"
        r"(?:.{0,40}?n_erase=(?P<dropped__tokens>\d+))?",
        phase="serve",
    ),
    signature(
        "truncated",
        "context shift",
        r"slot (?:context|is out of.{0,20}context) ?shift|context shift, n_keep = (?P<kept__tokens>\d+)"
        r", n_left = (?P<limit__tokens>\d+), n_discard = (?P<dropped__tokens>\d+)",
        phase="serve",
    ),
    signature(
        "no_rewind",
        "forcing full prompt re-processing",
        r"forcing full prompt re-processing due to lack of cache data(?P<why__text>.{0,80})",
        phase="serve",
    ),
    signature(
        "no_rewind",
        "cache_reuse is not supported",
        r"cache_reuse is not supported by (?:this context|multimodal)(?P<why__text>.{0,80})",
    ),
    signature(
        "prompt_started",
        "new prompt, ",
        r"new prompt, n_ctx_slot = \d+, n_keep = \d+,(?: task\.n_tokens =| n_prompt_tokens =) "
        r"(?P<prompt__tokens>\d+)",
        phase="serve",
    ),
    signature(
        "prompt_kept",
        "kv cache rm [",
        r"task (?P<task__int>\d+).{0,12}kv cache rm \[(?P<kept__tokens>\d+), end\)",
        phase="serve",
    ),
    signature(
        "prompt_kept",
        "memory_seq_rm [",
        r"task (?P<task__int>\d+).{0,40}memory_seq_rm \[(?P<kept__tokens>\d+), end\)",
        phase="serve",
    ),
    signature(
        "prompt_held",
        "selected slot by",
        r"selected slot by (?:LCP|lcs) similarity, (?:lcs_len = \d+, )?"
        r"(?:f_sim_best|sim_best|max_similarity|similarity) = (?P<similarity__ratio>[\d.]+)",
        phase="serve",
    ),
    signature(
        "prompt_cache_full",
        "cache size limit reached",
        r"cache (?:size|token) limit .{0,20}reached|cache size limit reached, removing oldest",
        phase="serve",
    ),
    signature(
        "cancelled", "cancel task, id_task", r"cancel task, id_task = (?P<task__int>\d+)", phase="serve"
    ),
)

READERS: tuple[Reader, ...] = (table_reader("llama.cpp serving", ENGINE, _SERVE),)
