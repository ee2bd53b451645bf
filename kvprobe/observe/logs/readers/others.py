"""Engines with one or two lines of their own (MLC-LLM, ExLlama, LightLLM), and look-alikes of memory."""

from __future__ import annotations

from kvprobe.observe.logs.lines import Reader
from kvprobe.observe.logs.readers.signature import signature, table_reader

_ROWS = (
    signature(
        "mlc_no_memory",
        "Insufficient GPU memory error",
        r"available single GPU memory is (?P<available__MiB>[\d.]+) MB, which is less than the sum of model "
        r"weight "
        r"size \((?P<weights__MiB>[\d.]+) MB\) and temporary buffer size \((?P<temporary__MiB>[\d.]+) MB",
        engine="mlc",
    ),
    signature(
        "mlc_no_memory",
        "The model weight size may be larger than GPU memory",
        r"The model weight size may be larger",
        engine="mlc",
    ),
    signature(
        "budget",
        "Estimated total single GPU memory usage",
        r"memory usage: [\d.]+ MB \(Parameters: (?P<weights__MiB>[\d.]+) MB\. KVCache: (?P<kv__MiB>[\d.]+) "
        r"MB\. "
        r"Temporary buffer: (?P<activation_peak__MiB>[\d.]+) MB",
        engine="mlc",
    ),
    signature(
        "mlc_no_memory",
        "Cannot estimate KV cache capacity",
        r"The model weight size (?P<weights__B>[\d.]{1,20})",
        engine="mlc",
    ),
    signature(
        "guardrail_refused",
        "insufficient system resources",
        r"insufficient system resources(?:.{0,80}?requires approximately "
        r"(?P<asked__text>\S{1,12} ?\w{1,9}) of)?",
        engine="lmstudio",
        phase="load",
    ),
    signature(
        "arena_no_memory",
        "Failed to allocate memory for requested buffer",
        r"requested buffer of size (?P<asked__B>\d{1,18})",
    ),
    signature(
        "arena_no_memory",
        "smaller than requested bytes of",
        r"Available memory of (?P<limit__B>\d{1,18}) is smaller than requested bytes of "
        r"(?P<asked__B>\d{1,18})",
    ),
    signature("arena_no_memory", "OOM when allocating tensor", r"OOM when allocating tensor with shape"),
    signature("cuda_oom", "CUDA failed with error", r"CUDA failed with error out of memory", where="runtime"),
    signature(
        "exllama_no_memory",
        "Insufficient VRAM",
        r"Insufficient VRAM (?:in split )?for model and cache",
        engine="exllama",
        phase="load",
    ),
    signature("phase", "Uvicorn running on", r"Uvicorn running on http", phase="serve"),
    signature(
        "disk_full",
        "No space left on device",
        r"(?:\[Errno 28\]|os error 28|OSError|IOError).{0,20}No space left on device",
    ),
    signature("threads_exhausted", "can't start new thread", r"RuntimeError: can't start new thread"),
    signature(
        "files_exhausted",
        "Too many open files",
        r"(?<!like `OSError: )(?:\[Errno 24\]|os error 24|errno ?24).{0,20}Too many open files",
    ),
    signature("kv_scale_warning", "KV cache scaling factor", r"scaling factor 1\.0 for fp8"),
    signature("kv_scale_warning", "scaling factor", r"without a scaling factor|k/v_scale.{0,40}default"),
    signature(
        "perplexity",
        "Final estimate: PPL",
        r"Final estimate: PPL(?:\([Q]\))? ?= ?(?P<perplexity__num>[\d.]+)",
    ),
    signature(
        "kv_types",
        " MiB, V (",
        r"K \((?P<k__text>\w{2,6})\): +[\d.]+ MiB, V \((?P<v__text>\w{2,6})\)",
        engine="llama.cpp",
    ),
    signature(
        "aborted",
        "Aborted request",
        r"Aborted request(?:\(s\))? (?P<first__text>[\w.-]{1,80})",
        engine="vllm",
    ),
    signature(
        "attention_block",
        "Setting attention block size to",
        r"Setting attention block size to (?P<block_size__tokens>\d+) tokens",
        engine="vllm",
    ),
    *(
        signature(
            "router_policy",
            anchor,
            r"[Pp]olicy[:= \"']{1,4}(?P<policy__text>round_?robin|RoundRobin|[Rr]andom|cache_aware)",
        )
        for anchor in ("policy: ", "policy=", "Policy: ", "policy':", 'policy":')
    ),
    signature(
        "prefix_unsupported",
        "prefix caching",
        r"(?:does not support|not supported|[Dd]isabl\w{1,4}|is not compatible).{0,60}prefix caching"
        r"|prefix caching.{0,80}(?:not supported|disabled|is unsupported|not yet "
        r"supported|unavailable)(?P<why__text>.{0,100})",
    ),
)

READERS: tuple[Reader, ...] = (table_reader("other engines", None, _ROWS),)
