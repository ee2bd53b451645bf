"""vLLM's lines about memory: weights, budget, KV pool, graphs, and the refusals to start.

V0 prints the whole budget in one line, V1 only what is left. The same words, "No available memory for the
cache blocks", follow from several causes; the rules decide which.
"""

from __future__ import annotations

from typing import Final

from kvprobe.observe.logs.readers.signature import signature, table_reader

_GB: Final = r"-?[\d.]+ ?[KMGT]i?B"
_V0_BUDGET: Final = (
    signature(
        "budget",
        "total_gpu_memory (",
        rf"total_gpu_memory \((?P<total__size>{_GB})\) ?x ?gpu_memory_utilization "
        r"\((?P<utilisation__ratio>[\d.]+)\)"
        rf" ?= ?(?P<limit__size>{_GB})",
    ),
    signature(
        "budget",
        "non_torch_memory takes",
        rf"weights take (?P<weights__size>{_GB}); ?non_torch_memory takes "
        rf"(?P<non_torch__size>{_GB}); ?PyTorch"
        rf" activation peak memory takes (?P<activation_peak__size>{_GB})"
        rf"(?:; the rest of the memory reserved for KV Cache is (?P<kv__GiB>-?[\d.]+) ?GiB)?",
    ),
    signature(
        "budget",
        "Memory profiling results:",
        rf"total_gpu_memory=(?P<total__size>{_GB})(?: initial_memory_usage=(?P<initial_use__size>{_GB}))?"
        rf"(?: peak_torch_memory=(?P<peak_torch__size>{_GB}))?(?: "
        r"memory_usage_post_profile=(?P<after_use__size>"
        rf"{_GB}))?(?: non_torch_memory=(?P<non_torch__size>{_GB}))?(?: "
        r"kv_cache_size=(?P<kv__GiB>-?[\d.]+)GiB)?"
        r"(?: gpu_memory_utilization=(?P<utilisation__ratio>[\d.]+))?",
    ),
    signature(
        "budget",
        "Total non KV cache memory:",
        r"Total non KV cache memory: (?P<non_kv__GiB>[\d.]+) ?GiB; torch peak memory increase: "
        r"(?P<activation_peak"
        r"__GiB>-?[\d.]+) ?GiB; non-torch forward increase memory: (?P<non_torch__GiB>-?[\d.]+) "
        r"?GiB; weights memory"
        r": (?P<weights__GiB>[\d.]+) ?GiB",
    ),
    signature(
        "budget",
        "Initial free memory:",
        r"Initial free memory:? (?P<free_at_start__GiB>[\d.]+) ?GiB[;,] Requested memory: "
        r"(?P<utilisation__ratio>"
        r"[\d.]+) ?\(util\), (?P<limit__GiB>[\d.]+) ?GiB",
    ),
    signature(
        "budget",
        "Desired GPU memory utilization is",
        r"Free memory on device[^(]{0,20}\((?P<free_at_start__GiB>[\d.]+)/(?P<total__GiB>[\d.]+) "
        r"GiB\) on startup\. "
        r"Desired GPU memory utilization is \((?P<utilisation__ratio>[\d.]+), (?P<limit__GiB>[\d.]+) "
        r"GiB\)\. Actual "
        r"usage is (?P<weights__GiB>[\d.]+) GiB for (?:weight|consumed)[^,]{0,20}, "
        r"(?P<activation_peak__GiB>-?[\d.]+)"
        r" GiB for peak activation, (?P<non_torch__GiB>-?[\d.]+) GiB for non-torch memory, and "
        r"(?P<graphs__GiB>"
        r"-?[\d.]+) GiB for CUDAGraph memory",
    ),
)
_WEIGHTS: Final = (
    signature(
        "weights_loaded",
        "oading model weights took",
        rf"oading model weights took (?P<weights__size>{_GB})",
        phase="profile",
    ),
    signature(
        "weights_loaded",
        "model weights took",
        rf"(?<!oading )model weights took (?P<weights__size>{_GB})",
        phase="profile",
    ),
    signature(
        "weights_loaded",
        "Model loading took",
        rf"Model loading took (?P<weights__size>{_GB})(?: memory)?(?: and (?P<seconds__s>[\d.]+) seconds)?",
        phase="profile",
    ),
    signature("phase", "Failed to create", r"Failed to create \w{1,40} linear weights", phase="load"),
    signature("phase", "Starting to load model", r"Starting to load model", phase="load"),
    signature("phase", "Loading safetensors checkpoint shards", r"Loading safetensors", phase="load"),
    signature("phase", "Loading pt checkpoint shards", r"Loading pt checkpoint", phase="load"),
)
_LEFT: Final = (
    signature(
        "available_kv",
        "vailable KV cache memory",
        r"[Aa]vailable KV cache memory: (?P<bytes__GiB>-?[\d.]+) GiB",
    ),
    signature(
        "blocks_override",
        "Overriding num_gpu_blocks=",
        r"num_gpu_blocks=(?P<profiled__blocks>\d+) with num_gpu_blocks_override=(?P<blocks__blocks>\d+)",
    ),
)
_GRAPHS: Final = (
    signature("phase", "Capturing the model for CUDA graphs", r"Capturing the model", phase="capture"),
    signature("phase", "Capturing cudagraphs for decoding", r"Capturing cudagraphs", phase="capture"),
    signature("phase", "Capturing CUDA graph", r"Capturing CUDA graph", phase="capture"),
    signature(
        "graph_memory",
        "Graph capturing finished",
        rf"Graph capturing finished in (?P<seconds__s>[\d.]+) secs?(?:, took (?P<bytes__size>{_GB}))?",
        phase="warmup",
    ),
    signature(
        "graph_estimate",
        "CUDA graph memory",
        rf"Estimated CUDA graph memory: (?P<bytes__size>{_GB})",
    ),
)
_REFUSALS: Final = (
    signature("no_cache_blocks", "No available memory for the cache blocks", r"No available memory for"),
    signature(
        "len_exceeds_pool",
        "is larger than the maximum number of tokens",
        r"max(?:_model_len| seq len|imum sequence length)?\s?\(?(?P<max_model_len__tokens>\d+)\)? is "
        r"larger than the maximum"
        r" number of tokens that can be stored in (?:the )?KV cache \((?P<pool__tokens>\d+)\)",
    ),
    signature(
        "len_exceeds_pool",
        "To serve at least one request with the model",
        r"max(?:imum)? seq len \((?P<max_model_len__tokens>\d+)\), \(?(?P<needed__GiB>[\d.]+) ?GiB "
        r"KV c(?:ache is needed, "
        r"which is larger than the available KV cache memory \((?P<available__GiB>-?[\d.]+) ?GiB\)"
        r"(?:[^B]{0,8}Based on the available memory, the estimated maximum model length is "
        r"(?P<estimate__tokens>\d+))?)?",
    ),
    signature(
        "free_below_desired",
        "on startup is less than desired",
        r"\((?P<free__GiB>[\d.]+)/(?P<total__GiB>[\d.]+) ?GiB\) on startup is less than desired GPU "
        r"memory utilization"
        r" \((?P<utilisation__ratio>[\d.]+), (?P<desired__GiB>[\d.]+) ?GiB\)",
    ),
    signature(
        "profiling_assert",
        "Error in memory profiling",
        r"[Ii]nitial free memory:? (?P<initial__size>[\d.]+(?: ?GiB)?),? current free memory:? "
        r"(?P<current__size>"
        r"[\d.]+(?: ?GiB)?)",
    ),
    signature("profiling_assert", "Error in memory profiling", r"Error in memory profiling\. (?:This|$)"),
    signature(
        "sampler_warmup_oom",
        "when warming up ",
        r"warming up (?:sampler|pooler)(?: \(task=\w{1,20}\))? with (?P<requests__count>\d+) dummy requests",
        phase="warmup",
    ),
    signature(
        "load_oom_hint", "Failed to load model - not enough GPU memory", r"Failed to load", phase="load"
    ),
    signature(
        "mm_profile_too_short",
        "multi-modal embeddings in the worst case",
        r"= ?(?P<profile__tokens>\d+)\) is too short to hold the multi-modal embeddings in the worst case "
        r"\((?P<worst__tokens>\d+) tokens",
    ),
    signature(
        "mm_budget",
        "ncoder cache will be initialized with a budget",
        r"budget of (?P<budget__tokens>[\d,]+) tokens, and profiled with (?P<items__count>\d+) "
        r"(?P<modality>\w+) items",
        phase="profile",
    ),
    signature("phase", "Starting profile run for multi-modal", r"Starting profile run", phase="profile"),
)

READERS: Final = (
    table_reader("vllm_memory", "vllm", (*_V0_BUDGET, *_WEIGHTS, *_LEFT, *_GRAPHS, *_REFUSALS)),
)
