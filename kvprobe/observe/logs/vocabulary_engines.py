"""The events of the engines other than vLLM, of the host, the containers and the GPU's driver."""

from __future__ import annotations

from kvprobe.observe.logs.vocabulary import declare

declare("aborted", first=(None, "id of the first request that is named"))
declare("adapter_failed")
declare(
    "alloc_failed",
    asked=("B", "that was asked for"),
    backend=(None, "which back end refused"),
    device=(None, "as printed"),
)
declare(
    "allocation_limit",
    backend=(None, "which back end refused"),
    limit=("B", "that was the limit"),
    limit_of=(None, "which limit"),
)
declare("amd_fault")
declare("arena_no_memory", asked=("B", "that was asked for"), limit=("B", "that was the limit"))
declare("attention_block", block_size=("tokens", "of a block"))
declare(
    "block_alignment", sizes=(None, "of the groups' blocks"), unit=("tokens", "that a hit is a multiple of")
)
declare("block_bytes", bytes=("B", "of it"))
declare(
    "budget",
    asked=("B", "that was asked for"),
    failed=(None, "1 when it ends the start or the request"),
    free=("B", "that were free"),
    lacking=("B", "missing for any KV"),
    workspace=("B", "fixed buffers beside the weights"),
)
declare("buffer", device=(None, "as printed"), size=("B", "of the buffer"), what=(None, "what it was for"))
declare(
    "buffer_failed",
    asked=("B", "that was asked for"),
    device=(None, "as printed"),
    what=(None, "what it was for"),
)
declare("bus_error", shared_memory=(None, "when the line speaks of it"))
declare("cancelled", task=(None, "number of the task"))
declare(
    "cgroup_limit",
    failures=("count", "times the limit was hit"),
    limit=("B", "that was the limit"),
    used=("B", "in use"),
)
declare("child_died")
declare("collective_timeout", operation=(None, "of the collective"), ran=("s", "until it gave up"))
declare(
    "config",
    allocator=(None, "of the reference server"),
    cache_max_entry_count=("ratio", "of memory for the cache, or its blocks"),
    chunked_prefill_size=("tokens", "of a chunk"),
    cuda_graph_max_bs=("count", "largest batch that is captured"),
    disable_radix_cache=(None, "prefix reuse is off"),
    flash_attention=(None, "on, off or auto"),
    kv_unified=(None, "one cache for all slots"),
    max_prefill_tokens=("tokens", "of one prefill"),
    max_request_tokens=("tokens", "of prompt and answer of one request"),
    max_total_tokens=("tokens", "of the pool, forced by the user"),
    mem_fraction_static=("ratio", "of the card for weights and pool"),
    n_ctx=("tokens", "of the whole context"),
    preemption=(None, "of the reference server"),
    schedule_conservativeness=("ratio", "of admission"),
    trained_len=("tokens", "the model was trained for"),
    ubatch=("tokens", "of a micro-batch"),
)
declare("container_limit", limit=("B", "that was the limit"))
declare(
    "context_pool_short",
    available=("B", "of the pool"),
    needed=("B", "that was asked for"),
    pool=(None, "as printed"),
)
declare("crashed", kind=(None, "signal of the processor"))
declare("cublas_failed", backend=(None, "which back end refused"), function=(None, "in which it failed"))
declare("cuda_alloc_failed", call=(None, "CUDA call that failed"))
declare("device", free=("B", "that were free"), name=(None, "as printed"), total=("B", "in all"))
declare("device_lost")
declare(
    "device_no_memory",
    asked=("B", "that was asked for"),
    free=("B", "that were free"),
    largest_free=("B", "largest run that can be handed out"),
    others=("B", "held by others"),
    own=("B", "held by this process"),
    stage=(None, "when or where"),
    total=("B", "in all"),
)
declare("device_off_bus")
declare("disk_full")
declare("driver_mismatch")
declare("engine_check_failed", check=(None, "that failed"), file=(None, "of the check"))
declare("engine_size", weights=("B", "of the weights"))
declare("engine_words", what=(None, "the trouble that the sentence names"))
declare("engine_start", engine_name=(None, "of the engine"))
declare(
    "engine_stats",
    batch=(None, "size that was tried, or prefill or decode"),
    cached_blocks=("blocks", "held by the cache alone"),
    cached_tokens=("tokens", "taken from the cache in this prefill"),
    failed_allocations=("count", "attempts in the interval"),
    free_blocks=("blocks", "in nobody's hands"),
    interval=("s", "the line is about"),
    largest_free=("B", "largest run that can be handed out"),
    new_requests=("count", "in this prefill"),
    new_tokens=("tokens", "computed in this prefill"),
    preempted=("count", "requests preempted in the interval"),
    reserved=("B", "held and not written"),
    state_usage=("ratio", "of the state slots"),
    tail=("B", "empty at the ends of sequences"),
    total_blocks=("blocks", "in all"),
    used_blocks=("blocks", "held by requests"),
    used_tokens=("tokens", "in the pool"),
)
declare("evicted", resource=(None, "that was short"))
declare(
    "executor_failed",
    component=(None, "that could not be created"),
    free=("B", "that were free"),
    total=("B", "in all"),
)
declare("exllama_no_memory")
declare("files_exhausted")
declare("ggml_cuda_oom", backend=(None, "which back end refused"), function=(None, "in which it failed"))
declare("ggml_cuda_error", function=(None, "in which it failed"), message=(None, "of the error"))
declare("fraction_needed", least=("ratio", "of the card, by the engine's own sum"))
declare("graph_failed", inner=(None, "text of the inner error"))
declare("gpus_unequal", free=("B", "on this card"), least=("B", "on the fullest card"))
declare("gsp_timeout")
declare("guardrail_refused", asked=(None, "size as printed, perhaps none"))
declare("host_memory", free=("B", "that were free"), swap=("B", "free swap"), total=("B", "in all"))
declare("host_memory_state", limit=("B", "that was the limit"))
declare("host_rss", rss=("B", "resident memory"), subject=(None, "what the reading is of, as printed"))
declare(
    "host_too_small",
    asked=("B", "that was asked for"),
    free=("B", "that were free"),
    total=("B", "of the machine"),
)
declare(
    "killed",
    anon=("B", "anonymous memory of the victim"),
    constraint=(None, "of the kernel's line"),
    file_mapped=("B", "file pages of the victim"),
    how=(None, "who says so"),
    rss=("B", "resident memory"),
    scope=(None, "machine or cgroup"),
    shared=("B", "shared memory of the victim"),
    signal=(None, "number of the signal"),
    total=("B", "in all"),
    usage=("ratio", "of the node's memory"),
    used=("B", "in use"),
    virtual=("B", "address space of the victim"),
    workers=("count", "workers that were killed"),
)
declare("kv_fraction", fraction=("ratio", "of memory for the engine's static part, or of free memory for KV"))
declare("layout_failed", layers_on_gpu=("count", "that were asked for"))
declare("kv_full", batch=("tokens", "size that was tried, or prefill or decode"))
declare("kv_full_fatal")
declare(
    "kv_leak",
    available=("tokens", "that are available"),
    evictable=("tokens", "that only the cache holds"),
    pool=(None, "of which pool"),
    protected=("tokens", "that are locked"),
    total=("tokens", "in all"),
)
declare(
    "kv_no_room",
    asked=("B", "that was asked for"),
    failed=(None, "1 when it ends the start or the request"),
    free=("B", "that were free"),
    largest_free=("B", "largest run that can be handed out"),
    running=("count", "requests that run"),
    waiting=("count", "requests that wait"),
)
declare("kv_scale_warning")
declare(
    "kv_size",
    cells=("tokens", "of the cache"),
    layers=("count", "of the model"),
    sequences=("count", "that share it"),
    size=("B", "of the buffer"),
)
declare("kv_types", k=(None, "format of K"), v=(None, "format of V"))
declare("lmdeploy_no_room", what=(None, "what it was for"))
declare("metal_fault", kind=(None, "as Metal names it"))
declare("metal_limit", limit=("B", "that was the limit"))
declare("metal_oom")
declare("metal_working_set", limit=("B", "that was the limit"), used=("B", "in use"))
declare(
    "mlc_no_memory",
    available=("B", "that are available"),
    temporary=("B", "temporary buffer"),
    weights=("B", "of the weights"),
)
declare("mlx_buffer_limit", asked=("B", "that was asked for"), limit=("B", "that was the limit"))
declare("mlx_no_memory", asked=("B", "that was asked for"))
declare("mlx_resource_limit", limit=("count", "that was the limit"))
declare("nccl_no_memory", asked=("B", "that was asked for"), what=(None, "what it was for"))
declare("nccl_other", what=(None, "what it was for"))
declare("no_layer_fits")
declare("no_rewind", why=(None, "as printed"))
declare(
    "no_room_for_pool", fraction=("ratio", "of memory for the engine's static part, or of free memory for KV")
)
declare("not_oom_killed")
declare("nvml_unreachable")
declare(
    "offload",
    available=("B", "that are available"),
    devices=("count", "of them"),
    graph=("B", "of the compute graph"),
    kv=("B", "of the cache"),
    layers=("count", "of the model"),
    layers_on_gpu=("count", "on the devices"),
    required=("B", "needed in all"),
    required_partial=("B", "needed on the devices"),
    weights=("B", "of the weights"),
)
declare("oom_invoked", process=(None, "its name"))
declare("oom_largest_task", process=(None, "its name"), rss=("B", "resident memory"))
declare("perplexity", perplexity=(None, "measured"))
declare("pinned_failed", asked=("B", "that was asked for"))
declare("pool_alloc_asked", asked=("tokens", "that was asked for"))
declare("pool_alloc_failed", stage=(None, "when or where"))
declare("pool_alloc_left", left=("tokens", "that were left"))
declare(
    "pool_below_one_request",
    failed=(None, "1 when it ends the start or the request"),
    pool=("tokens", "of which pool"),
)
declare("pool_end", free_after=("B", "free after that step"))
declare("pool_free", free=("B", "that were free"), total=("B", "in all"))
declare(
    "pool_ready",
    free_after=("B", "free after that step"),
    max_model_len=("tokens", "of one request"),
    max_running=("count", "requests at once"),
    tokens=("tokens", "that it holds"),
)
declare("pool_short", failed=(None, "1 when it ends the start or the request"))
declare("preemption", recompute=("tokens", "to be computed again"))
declare("prefix_off", why=(None, "as printed"))
declare("prefix_unsupported", why=(None, "as printed"))
declare("probe_failed", probe=(None, "which probe failed"))
declare(
    "profiled_tokens", asked=("tokens", "that was asked for"), profiled=("tokens", "that fit by the profile")
)
declare("prompt_cache_full")
declare("prompt_held", similarity=("ratio", "of a new prompt that its slot already held"))
declare("prompt_kept", kept=("tokens", "that were kept"), task=(None, "number of the task"))
declare("prompt_started", prompt=("tokens", "length of the prompt"))
declare("recovered")
declare(
    "refused",
    asked=("tokens", "that was asked for"),
    limit=("tokens", "that was the limit"),
    reason=(None, "why, as printed or as the wording tells"),
)
declare(
    "retraction",
    ratio_after=("ratio", "of new tokens reserved, after"),
    ratio_before=("ratio", "of new tokens reserved, before"),
)
declare("router_policy", policy=(None, "of the router"))
declare("runner_died", reason=(None, "why, as printed or as the wording tells"))
declare("shm_full")
declare(
    "signal",
    exit_code=(None, "of the process"),
    how=(None, "who says so"),
    reason=(None, "why, as printed or as the wording tells"),
    signal=(None, "number of the signal"),
)
declare("slots_exhausted")
declare("start_failed", stage=(None, "of the start that failed"))
declare("state_slots", slots=("count", "of states"))
declare("threads_exhausted")
declare("trt_alloc_failed", asked=("B", "that was asked for"), free=("B", "that were free"))
declare("trt_stage", stage=(None, "when or where"))
declare(
    "context_clamped",
    input=("tokens", "that were asked for as the context"),
    limit=("tokens", "that the model was trained for, and that are used"),
)
declare(
    "truncated",
    dropped=("tokens", "that were dropped"),
    input=("tokens", "length of the prompt or context"),
    kept=("tokens", "that were kept"),
    limit=("tokens", "that was the limit"),
    messages=("count", "messages that were dropped"),
    new=("tokens", "that stayed of the prompt"),
)
declare("turbomind_oom", at=(None, "line of that file"), file=(None, "source file that is named"))
declare("vram_not_recovered")
declare("warmup_no_memory", prefill=("tokens", "of the warm-up pass"), tokens=("tokens", "that it holds"))
declare("watchdog_timeout", limit=("s", "without a step"))
declare("weights_loaded", free_after=("B", "free after that step"))
declare("worker_lost")
declare("xid", caused_by=(None, "number of the Xid before it"), device=(None, "as printed"))
declare(
    "offload_lookup",
    hits=("tokens", "found in the cache on the host"),
    load=("tokens", "that the GPU did not hold itself"),
    total=("tokens", "of the prompt"),
)
declare("oom_words", host=(None, "true where the words speak of host memory"))
declare("worker_timeout")
declare("host_pool_refused", asked=("B", "that was asked for"), free=("B", "that were free"))
declare("nvmap_refused")
declare(
    "prefill_guarded",
    asked=("B", "at the peak, by the engine's estimate"),
    limit=("B", "the ceiling"),
    used=("B", "in use before"),
)
