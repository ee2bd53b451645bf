"""Checks and refusals that engines, runtimes and loaders put into one sentence of their own: what it means is
in the wording, and the rule `engine_words` has a cause for each. `what` is a word of the project."""

from __future__ import annotations

from typing import Final

from kvprobe.observe.logs.lines import Reader
from kvprobe.observe.logs.readers.signature import Signature, signature, table_reader


def _said(what: str, anchor: str, pattern: str, engine: str | None = None) -> Signature:
    return signature("engine_words", anchor, pattern, engine=engine, what=what)


_BOOKS: Final = (
    _said("absurd", "Storage size calculation overflowed", r"Storage size calculation overflowed"),
    _said("absurd", "you tried to allocate 1844", r"you tried to allocate 1844\d{16} bytes"),
    _said("estimate", "bug in memory estimation", r"is full! There is a bug in memory est", "sglang"),
    _said("books", "KV cache already freed", r"(?:Committed|committed) KV cache already freed", "sglang"),
    _said("books", "Unexpected overallocated KV cache", r"overallocated KV", "sglang"),
    _said("books", "ncorrect LRU list", r"Incorrect LRU list", "sglang"),
    _said("books", "lock_ref on node with", r"^AssertionError: \w{3}_lock_ref on node", "sglang"),
    _said("books", "already in lru list", r"Inserting node .{0,80}already in lru list", "sglang"),
)
_POOLS: Final = (
    _said("no_block", "No free blocks are available", r"Out of memory! No free blocks", "vllm"),
    _said("no_block", "NoFreeBlocksError", r"(?:^|\.)NoFreeBlocksError\b", "vllm"),
    _said("no_block", " free blocks from the pool", r"Cannot get \d+ free blocks from", "vllm"),
    _said("no_block", " blocks, only ", r"Cannot allocate \d+ blocks, only \d+", "vllm"),
    _said("no_block", "Out of available cache blocks", r"asked \d+, only \d+ free", "tgi"),
    _said("no_block", "utils.errors.OutOfPages", r"OutOfPages", "tgi"),
    _said("no_block", "Failed to allocate token prealloc", r"prealloc indices", "sglang"),
    _said("one_request", "No space left for only one request", r"for only one request", "sglang"),
    _said("one_request", "even after retracting all other requests", r"ut of memory even after", "sglang"),
    _said("one_request", "Total sequence length exceeds cache size", r"exceeds cache size", "exllama"),
    _said("one_request", "and cannot be enqueued", r"Job requires \d+ pages \(only \d+ avail", "exllama"),
    _said("one_request", "capacity of block_manager", r"tokens?\) is too long and exceeds the cap", "vllm"),
    _said("state_slot", "Can not alloc mamba cache", r"Can ?not alloc mamba cache", "sglang"),
    _said("state_slot", "Not enough space for mamba", r"Not enough space for mamba \w", "sglang"),
    _said(
        "state_slot", "available Mamba cache blocks", r"\(\d+\) exceeds available Mamba cache blocks", "vllm"
    ),
    _said("state_slot", "SGLANG_DETOKENIZER_MAX_STATES", r"Decode status not found", "sglang"),
    _said(
        "pool_below_limit",
        "`max_batch_total_tokens` must be >= `max_total_tokens`",
        r"Given: \d+ and \d+",
        "tgi",
    ),
)
_START: Final = (
    _said("warmup", "Unable to warmup model", r"Unable to warmup model", "tgi"),
    _said("warmup", "Not enough memory to run with", r"Not enough memory to run with \d+ prefill", "tgi"),
    _said("weights", "dispatched on the CPU or the disk", r"Some modules are dispatched on the CPU"),
    _said("weights", "weights offloaded to the disk", r"device_map` had weights offloaded to the disk"),
    _said("weights", "offload the whole model to the disk", r"trying to offload the whole model to"),
    _said("workspace", "Workspace is locked but", r"Workspace is locked but allocation", "vllm"),
    _said(
        "cache_room",
        "Not enough memory to allocate kv cache",
        r"enough memory to allocate kv cache",
        "lmdeploy",
    ),
    _said("swap_space", "Too large swap space", r"Too large swap space\. [\d.]+ GiB out of the", "vllm"),
)
_HOST: Final = (
    _said("object_store", "ObjectStoreFullError", r"ObjectStoreFullError"),
    _said("object_store", "redis memory usage, the amount of memory", r"is less than -?\d+% of total"),
    _said("heap", "memory allocation of ", r"^memory allocation of \d{1,18} bytes failed"),
    _said("heap", "runtime: out of memory", r"fatal error: runtime: (?:out of memory|cannot alloc)"),
    _said("heap", "MemoryError", r"^MemoryError\s*:?\s*$"),
    _said("heap", "JavaScript heap out of memory", r"Allocation failed - JavaScript heap"),
)
_SYSTEM: Final = (
    _said("system_memory", "no killable processes", r"Out of memory and no killable"),
    _said("system_memory", "compulsory panic_on_oom", r"Out of memory: compulsory panic_on_oom"),
    _said("system_memory", "low virtual memory condition", r"diagnosed a low virtual memory condition"),
    _said("system_memory", "desired CPU memory utilization", r"less than desired CPU memory util", "vllm"),
    _said("system_memory", "of CPU memory for KV", r"Cannot allocate [\d.]+ \w{2,5} of CPU memory", "vllm"),
    _said("system_memory", "Memory allocation still failed", r"OpenBLAS error: Memory allocation still"),
    _said(
        "system_memory", "java.lang.OutOfMemoryError", r"OutOfMemoryError: (?:Java heap|GC overhead|Direct)"
    ),
    _said(
        "device_gone", "Unable to determine the device handle", r"device handle for [Gg][Pp][Uu].{4,40}: Unk"
    ),
    _said("link", "SXid (", r"SXid \(PCI:\S{4,20}\): \d{4,6}, (?!Non-fatal)"),
    _said("link", "AER: Uncorrect", r"AER: Uncorrect\w{2,6} \(Fatal\) error received"),
)
_LIMITS: Final = (
    _said("resident", "ERROR_OUT_OF_HOST_MEMORY", r"(?:UR_RESULT|PI|VK|ZE_RESULT)_ERROR_OUT_OF_HOST_MEM"),
    _said("svm", "SVM mapping failed", r"SVM mapping failed, exceeds resident system memory"),
    _said("video_memory", "not enough GPU video memory", r"There is not enough GPU video memory avail"),
    _said("metal_array", "total bytes of NDArray", r"total bytes of NDArray > 2\*\*3[12]"),
    _said("metal_array", "MPSGa", r"MPSGr?aph does not support tensor dims larger than INT_MAX"),
)

READERS: Final[tuple[Reader, ...]] = (
    table_reader("engine words", None, (*_BOOKS, *_POOLS, *_START, *_HOST, *_SYSTEM, *_LIMITS)),
)
