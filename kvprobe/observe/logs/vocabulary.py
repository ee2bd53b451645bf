"""What events can say: name -> value names with unit and meaning.

Readers emit nothing that is not declared here (a test holds them to it); rules may rely on these
names. Units are those of `kvprobe.evidence.events.Value`; `text` stands for a value without a unit.
A section per family: `declare` adds to what an earlier section said of the same event.
"""

from __future__ import annotations

from typing import Final

Meaning = tuple[str | None, str]
"""Unit (null for texts and lists) and what the value is."""

EVENTS: Final[dict[str, dict[str, Meaning]]] = {}


def declare(name: str, /, **values: Meaning) -> None:
    """Add the values of an event; a value that another section declared must have the same unit."""
    known = EVENTS.setdefault(name, {})
    for value, (unit, meaning) in values.items():
        if value in known and known[value][0] != unit:
            raise ValueError(f"{name}.{value} is declared with two units")
        known.setdefault(value, (unit, meaning))


# --- what the intake itself adds -----------------------------------------------------------------
declare("exception", type=(None, "class of the exception"), message=(None, "its message"))

# --- common to all engines -----------------------------------------------------------------------
declare(
    "torch_oom",
    requested=("B", "rounded segment that was asked for"),
    total=("B", "memory of the device"),
    free=("B", "free on the device"),
    allocated=("B", "live in PyTorch's allocator"),
    reserved=("B", "reserved by PyTorch, allocated included"),
    reserved_unallocated=("B", "reserved by PyTorch and not allocated"),
    own_process=("B", "of this process, by the driver"),
    others=("B", "of other processes, each (a list)"),
    private_pools=("B", "idle in private (CUDA graph) pools"),
    allowed=("B", "limit of the process's fraction"),
    device=(None, "index of the device"),
    backend=(None, "cuda, hip, xpu or mps"),
)
declare(
    "engine_stats",
    running=("count", "requests that run"),
    waiting=("count", "requests that wait"),
    swapped=("count", "requests swapped out"),
    kv_usage=("ratio", "of the KV pool in use"),
    full_usage=("ratio", "of the full-attention pool"),
    swa_usage=("ratio", "of the sliding-window pool"),
    prefix_hit_rate=("ratio", "as the line has it"),
    prefix_queries=("tokens", "looked up since the start, by a metrics page"),
    prefix_hits=("tokens", "of them found"),
    prompt_tokens_per_s=("tokens/s", "prefill throughput"),
    generation_tokens_per_s=("tokens/s", "decode throughput"),
    preemptions=("count", "as the line has it"),
)
declare(
    "pool_size",
    tokens=("tokens", "that the pool holds, as printed"),
    blocks=("blocks", "of the pool"),
    block_size=("tokens", "of a block"),
    bytes=("B", "of the pool"),
    bytes_per_token=("B", "of one token"),
    concurrency=("ratio", "requests of max_model_len that fit, as printed"),
    max_model_len=("tokens", "the printed concurrency is for"),
)
declare(
    "budget",
    total=("B", "memory of the device"),
    utilisation=("ratio", "of it that the engine may use"),
    weights=("B", "model weights"),
    non_torch=("B", "outside PyTorch's allocator"),
    activation_peak=("B", "peak of the profiling pass"),
    graphs=("B", "CUDA graphs"),
    kv=("B", "what is left for the cache; may be negative"),
)
declare("engine_start", engine=(None, "name"), version=(None, "version"))
declare("phase")
declare("weights_loaded", weights=("B", "of the model's weights"), seconds=("s", "it took"))
declare("preemption", total=("count", "so far"), mode=(None, "recompute or swap"))
declare("retraction", requests=("count", "that were retracted"))
declare("refused")
declare("killed", pid=(None, "of the victim"), process=(None, "its name"), exit_code=(None, "of the process"))
declare("xid", code=(None, "number"), pid=(None, "of the process"), process=(None, "its name"))
declare("shutdown")

# --- GPU frameworks and vLLM ---------------------------------------------------------------------
declare(
    "torch_oom",
    others_list=(None, "of each other process: pid and bytes"),
    mps_allocated=("B", "in Metal's heap"),
    mps_other=("B", "of this process outside Metal's heap"),
    pool_allocated=("B", "live in the driver's pool (cudaMallocAsync)"),
)
declare(
    "frame",
    function=(None, "of a traceback's frame"),
    file=(None, "of the frame"),
    site=(None, "what that function does: load, profile, capture, serve, logits, …"),
    library=(None, "transformers, accelerate, peft, … when the frame is theirs"),
)
declare(
    "cuda_oom",
    backend=(None, "of the framework that says so"),
    where=(None, "torch, runtime, driver, triton, cumem, pinned or init"),
    requested=("B", "where the line has it"),
)
declare("nvml_assert")
declare(
    "library_alloc_failed",
    library=(None, "cuBLAS, cuDNN, …"),
    unclear=(None, "a status that has other reasons too"),
)
declare("gpu_fault", kind=(None, "illegal memory access, ECC, …"))
declare(
    "gpu_unusable",
    kind=(None, "why this build does not run on this GPU"),
    needed=("B", "shared memory a kernel needs"),
    limit=("B", "shared memory a block has"),
)
declare(
    "workspace_overflow",
    buffer=(None, "its name"),
    needed=("B", "that was asked of it"),
    available=("B", "that it had left"),
)
declare("cpu_oom", requested=("B", "of host memory"))
declare("accelerator_oom", requested=("B", "of device memory"), backend=(None, "xla"))
declare("xpu_block_limit", limit=("B", "of a single allocation"), unsized=(None, "an error without a size"))
declare("smi_memory", used=("B", "of the device, by nvidia-smi"), total=("B", "of the device, by nvidia-smi"))
declare(
    "smi_process",
    device=(None, "index of the device"),
    pid=(None, "of the process"),
    kind=(None, "C or G"),
    process=(None, "its name"),
    used=("B", "of the device"),
)
declare(
    "budget",
    limit=("B", "total x utilisation"),
    initial_use=("B", "in use before the model was loaded"),
    peak_torch=("B", "weights and activations together"),
    after_use=("B", "in use after profiling"),
    non_kv=("B", "all that is not KV cache"),
    free_at_start=("B", "free when the engine started"),
)
declare("pool_size", device=(None, "GPU, CPU, …"), cpu_blocks=("blocks", "of the swap space"))
declare("available_kv", bytes=("B", "left for the cache; may be negative"))
declare("blocks_override", profiled=("blocks", "that memory would hold"), blocks=("blocks", "that are used"))
declare("graph_memory", seconds=("s", "capture took"), bytes=("B", "the graphs take"))
declare("graph_estimate", bytes=("B", "reserved for graphs"))
declare("no_cache_blocks")
declare(
    "len_exceeds_pool",
    max_model_len=("tokens", "one request may have"),
    pool=("tokens", "the cache holds"),
    needed=("B", "of cache for one request"),
    available=("B", "for the cache"),
    estimate=("tokens", "that would fit, by the engine"),
)
declare(
    "free_below_desired",
    free=("B", "free on the device"),
    total=("B", "of the device"),
    utilisation=("ratio", "that was asked"),
    desired=("B", "total x utilisation"),
)
declare(
    "profiling_assert",
    initial=("B", "free before profiling (V1 prints GiB without a unit)"),
    current=("B", "free after profiling"),
)
declare("sampler_warmup_oom", requests=("count", "dummy requests of the warm-up"))
declare("load_oom_hint")
declare(
    "mm_profile_too_short",
    profile=("tokens", "the profiling pass has"),
    worst=("tokens", "the largest inputs would need"),
)
declare(
    "mm_budget",
    budget=("tokens", "of the encoder cache"),
    items=("count", "that are profiled"),
    modality=(None, "of them"),
)
declare("engine_stats", engine_index=(None, "of the data-parallel rank"))
declare("lora_rank_over", rank=("count", "of the adapter"), max_rank=("count", "that is configured"))
declare("gpu_name", name=(None, "of the GPU"))
declare("context_refused", asked=("tokens", "of the request"), limit=("tokens", "of the context"))
declare("swap_exhausted")
declare("encoder_cache_exceeded", length=("tokens", "of an image or video"), size=("tokens", "of the cache"))
declare("lora_loaded", rank=("count", "of the adapter"))
declare("kv_scales_default")
declare("garbled_output")
declare("engine_dead", when=(None, "start or serve"))
declare("worker_died")
declare("serving")
declare("engine_start", model=(None, "path or name"))
declare(
    "config_refused",
    kind=(None, "what was refused"),
    asked=("tokens", "context that was asked"),
    limit=("tokens", "context of the model"),
)
declare(
    "config",
    gpu_memory_utilization=("ratio", "of the card for the engine"),
    max_model_len=("tokens", "of one request"),
    max_num_batched_tokens=("tokens", "of one step"),
    max_num_seqs=("count", "requests at once"),
    tensor_parallel_size=("count", "GPUs a layer is split over"),
    pipeline_parallel_size=("count", "stages"),
    block_size=("tokens", "of a block"),
    cpu_offload_gb=("count", "GiB of weights in host memory"),
    swap_space_gib=("count", "GiB of host memory for swapped blocks"),
    max_lora_rank=("count", "that LoRA buffers are sized for"),
    num_gpu_blocks_override=("blocks", "forced by the user"),
    kv_cache_memory_bytes=("B", "forced by the user"),
    kv_cache_dtype=(None, "of the cache"),
    dtype=(None, "of the model"),
    quantization=(None, "of the weights"),
    load_format=(None, "of the files"),
    model=(None, "path or name"),
    enforce_eager=(None, "no graphs"),
    enable_prefix_caching=(None, "switched on by name"),
    prefix_caching_off=(None, "switched off by name"),
    enable_lora=(None, "adapters are served"),
    speculative=(None, "a draft model or method is set"),
    limit_mm_per_prompt=(None, "images or videos are limited by name"),
)


# A section in a file of its own: it needs `declare` from here, so it comes last.
from kvprobe.observe.logs import vocabulary_engines  # noqa: E402, F401
