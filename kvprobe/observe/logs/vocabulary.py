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


def declare(name: str, **values: Meaning) -> None:
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
