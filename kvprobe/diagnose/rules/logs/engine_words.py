"""Sentences by which an engine, a runtime or a loader names its own trouble: one cause for each."""

from __future__ import annotations

from typing import Final, NamedTuple

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence, Evidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate
from kvprobe.diagnose.rules.logs.words import lived_on


class _Meaning(NamedTuple):
    cause: str
    confidence: Confidence
    why: str
    check: str
    remedy: tuple[str, ...]
    doubt: str


_UPGRADE: Final = ("upgrade, or go back to the last version without it", "switch the suspect feature off")
_FEATURE: Final = "which feature is on: speculation, overlap scheduling, hierarchical cache, aborts"
_MEANINGS: Final[dict[str, _Meaning]] = {
    "estimate": _Meaning(
        "engine_accounting_bug",
        "likely",
        "The engine let in more requests than its own estimate said would fit, and calls that its bug",
        _FEATURE,
        (*_UPGRADE, "until then fewer requests at once (`--max-running-requests`)"),
        "a pool that is far too small for one request",
    ),
    "books": _Meaning(
        "engine_accounting_bug",
        "likely",
        "A check of the engine's own KV books failed",
        _FEATURE,
        _UPGRADE,
        "an out-of-memory before this line",
    ),
    "absurd": _Meaning(
        "engine_accounting_bug",
        "likely",
        "The size that was asked for is no tensor's: a length or an index overflowed before it",
        "the shape that the innermost frame of the traceback computes",
        ("upgrade, or go back one version", "mend what computed the size; no memory setting helps"),
        "a plausible size in the same message",
    ),
    "no_block": _Meaning(
        "kv_pool_pressure",
        "suspected",
        "The KV pool had no free block for a step that was begun: more tokens are alive than it holds",
        "blocks of the pool against the sum of live tokens at that moment",
        ("fewer requests at once", "a larger pool, or KV in 8 bits", "upgrade: the scheduler should wait"),
        "free blocks at that moment: then the block manager's books are wrong",
    ),
    "one_request": _Meaning(
        "logical_kv_too_large",
        "suspected",
        "A single request needs more KV than the whole pool has",
        "tokens of the pool (start of the log) against prompt plus answer of the longest request",
        ("a larger pool: a higher memory fraction, KV in 8 bits, more GPUs", "a lower context limit"),
        "a pool that would hold the request: then pages are lost",
    ),
    "state_slot": _Meaning(
        "request_slot_limit",
        "suspected",
        "No slot for a further request was left: a number of slots, not bytes, ran out",
        "slots (request slots, recurrent states, detokeniser states) against requests in flight",
        ("raise that limit", "fewer requests at once (`--max-running-requests`)"),
        "few requests in flight: then slots are not given back",
    ),
    "pool_below_limit": _Meaning(
        "max_model_len_exceeds_pool",
        "suspected",
        "The tokens that the pool can hold are fewer than one request may have",
        "whether the total was set by hand or measured at warm-up",
        ("a lower --max-total-tokens", "a larger pool: quantise, or more shards"),
        "a total that was set by hand: then it is only that setting",
    ),
    "warmup": _Meaning(
        "startup_activation_peak",
        "suspected",
        "The warm-up pass did not fit beside the weights; the message has no sizes",
        "free memory after loading, against --max-batch-prefill-tokens",
        ("a lower --max-batch-prefill-tokens", "quantise, or more shards"),
        "the same with a few hundred prefill tokens: then the weights",
    ),
    "weights": _Meaning(
        "weights_plus_fixed_too_large",
        "suspected",
        "The loader had to place layers of the model outside the GPU: the weights do not fit the memory it "
        "counted as free",
        "free GPU memory at that moment, and the size of the checkpoint in this precision",
        ("a smaller model or fewer bits", "more GPUs", "max_memory, if the card was not empty"),
        "another process on the card at that moment",
    ),
    "cache_room": _Meaning(
        "weights_plus_fixed_too_large",
        "suspected",
        "Nothing was left for the KV cache after the weights",
        "free memory of the card before the start, and the size of the weights",
        ("quantise, or more GPUs", "a higher share for the cache"),
        "another process on the card, or a low share for the cache",
    ),
    "swap_space": _Meaning(
        "host_memory_exhausted",
        "likely",
        "The swap space for KV is larger than the host can give",
        "host memory (or the container's limit) against swap space times the number of GPUs",
        ("a lower --swap-space (0 is allowed)", "more host memory"),
        "a host with several times that memory",
    ),
    "object_store": _Meaning(
        "host_memory_exhausted",
        "likely",
        "Ray's object store (shared memory of the host) has no room",
        "`df -h /dev/shm`, object_store_memory, and what holds references to large objects",
        ("a larger /dev/shm and object_store_memory", "smaller objects, released earlier"),
        "a store that is nearly empty",
    ),
    "heap": _Meaning(
        "host_memory_exhausted",
        "suspected",
        "The program's own allocator got no host memory",
        "free host memory, the container's limit, and `ulimit -v`",
        ("more host memory or swap", "a smaller model, fewer workers"),
        "a size that is absurd: then the request is the bug",
    ),
    "system_memory": _Meaning(
        "host_memory_exhausted",
        "likely",
        "The system or a program says that host memory is used up",
        "free host memory and swap at that moment, and who holds it",
        ("more host memory or swap", "a smaller model, cache or batch; fewer workers"),
        "plenty of free host memory: then a limit of the process or the container",
    ),
    "workspace": _Meaning(
        "fixed_workspace_missized",
        "likely",
        "A workspace of fixed size is too small for this step; the device's memory is not the limit",
        "known issues of this version about that workspace",
        ("upgrade", "fewer tokens in a step (`--max-num-batched-tokens`)"),
        "an out-of-memory before this line",
    ),
    "link": _Meaning(
        "gpu_hw_fault",
        "suspected",
        "A link (PCIe or NVLink) reports a fatal error",
        "the device at that address, and Xid lines around that time",
        ("reset or reseat the device; have it replaced if it returns",),
        "an address that is no GPU or switch of this server",
    ),
    "device_gone": _Meaning(
        "gpu_hw_fault",
        "suspected",
        "The driver's tools no longer reach this GPU: as a rule it fell off the bus or waits for a reset",
        "`dmesg` for Xid lines (79, 74, 119) of that address",
        ("reset the GPU or restart the machine", "have it, its riser or its power looked at if it returns"),
        "the same message for every GPU: then the driver or its access rights",
    ),
    "svm": _Meaning(
        "driver_limit_not_capacity",
        "suspected",
        "The driver refused to map more host memory for the GPU: a limit of its own",
        "ttm.pages_limit and amdgpu.gttsize against what is asked",
        ("raise that limit", "a smaller model or cache"),
        "no free host memory at that moment",
    ),
    "resident": _Meaning(
        "driver_limit_not_capacity",
        "suspected",
        "The driver could not make a buffer resident; it says host memory, but as a rule means a limit of "
        "its own or a model that exceeds the device",
        "free host memory at that moment, and the model's size against the device's memory",
        (
            "fewer layers on the device",
            "relaxed allocation limits (UR_L0_ENABLE_RELAXED_ALLOCATION_LIMITS=1)",
        ),
        "no free host memory at that moment: then that",
    ),
    "video_memory": _Meaning(
        "capacity_exhausted",
        "suspected",
        "The GPU's memory did not suffice for one more tensor",
        "the memory of the card before the start, and who holds it",
        ("a smaller model, batch or picture", "close other programs that use the card"),
        "much free memory at that moment: then a limit of one allocation",
    ),
    "metal_array": _Meaning(
        "driver_limit_not_capacity",
        "likely",
        "One tensor is larger than Metal's graph can address: a limit of the framework, not of memory",
        "the shape that was asked for (batch, sequence length, heads)",
        ("shorter prompts or a smaller batch", "upgrade macOS and PyTorch", "attention in slices"),
        "the same error with small tensors",
    ),
}


def said(view: LogView) -> list[LogCandidate]:
    """One candidate for each of the things that the log says and the engine did not outlive."""
    found: dict[str, LogCandidate] = {}
    for event in view.all("engine_words"):
        what = str(event.get("what"))
        meaning = _MEANINGS[what]
        if what in found or (what != "one_request" and lived_on(view, event)):
            continue
        same = [e for e in view.all("engine_words") if e.get("what") == what]
        found[what] = candidate(
            meaning.cause,
            meaning.confidence,
            f"{meaning.why}.",
            [Evidence(source=e.source, line=e.line, text=e.text, facts={}) for e in same[:2]],
            fatal=True,
            at=event,
            phase=event.phase,
            check_first=[meaning.check],
            remedy=list(meaning.remedy),
            would_change_my_mind=[meaning.doubt],
        )
    return list(found.values())


RULES: tuple[LogRule, ...] = (said,)
