"""vLLM while it serves: the stats line of V0 and V1, preemption, and what it says when it dies.

V0 gives the hit rate in a line of its own. V0 prints a preemption at the first and then every fiftieth
event, so the count is the number in the line, never the number of lines; V1 prints none.
"""

from __future__ import annotations

import re
from typing import Final

from kvprobe.evidence.events import Event
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, signature, table_reader, values_of

_NUMBER: Final = r"\d[\d,]{0,12}(?:\.\d{1,4})?"
_STATS: Final = (
    re.compile(rf"Avg prompt throughput: (?P<prompt_tokens_per_s__rate>{_NUMBER}) tokens/s"),
    re.compile(rf"generation throughput: (?P<generation_tokens_per_s__rate>{_NUMBER}) tokens/s"),
    re.compile(r"Running: (?P<running__count>\d+) reqs"),
    re.compile(r"Swapped: (?P<swapped__count>\d+) reqs"),
    re.compile(r"(?:Waiting|Pending): (?P<waiting__count>\d+) reqs"),
    re.compile(r"Preemptions: (?P<preemptions__count>\d+)"),
    re.compile(rf"(?:GPU|CPU) KV cache usage: (?P<kv_usage__pct>{_NUMBER})%"),
    re.compile(rf"Prefix cache hit rate: (?:GPU: )?(?P<prefix_hit_rate__pct>{_NUMBER})%"),
    re.compile(r"Engine (?P<engine_index>\d{3}):"),
)


def _stats(line: Line, around: Around) -> list[Event]:
    text = line.text
    if "throughput:" not in text or "Running:" not in text:
        return []
    if "Prefix cache hit rate" not in text:
        following = next(iter(around.after(1)), None)
        if following is not None and "Prefix cache hit rate: GPU" in following.text:
            text = f"{text} {following.text}"
    values = {}
    for pattern in _STATS:
        found = pattern.search(text)
        if found is not None:
            values.update(values_of(found))
    return [event_of(line, "engine_stats", values, engine="vllm", phase="serve")]


_ROWS: Final = (
    signature(
        "preemption",
        "is preempted by PreemptionMode",
        r"preempted by (?:PreemptionMode\.)?(?P<mode>RECOMPUTE|SWAP)[^=]{0,400}"
        r"total_(?:num_)?cumulative_preemption(?:_cnt)?=(?P<total__count>\d+)",
        phase="serve",
    ),
    signature(
        "preemption",
        "is preempted by PreemptionMode",
        r"preempted by PreemptionMode\.(?P<mode>RECOMPUTE|SWAP) mode because there is not enough KV "
        r"cache space(?![^=]"
        r"{0,400}total_\w{1,40}=\d)",
        phase="serve",
    ),
    signature(
        "lora_rank_over",
        "is greater than max_lora_rank",
        r"LoRA rank (?P<rank__count>\d+) is greater than max_lora_rank (?P<max_rank__count>\d+)",
    ),
    signature("swap_exhausted", "lack of CPU swap space", r"Aborted due to the lack of CPU swap space"),
    signature(
        "encoder_cache_exceeded",
        "pre-allocated encoder cache size",
        r"item with length (?P<length__tokens>\d+), which exceeds the pre-allocated encoder cache size "
        r"(?P<size__tokens>\d+)",
    ),
    signature("lora_loaded", '"r": ', r'^\s{0,12}"r": (?P<rank__count>\d{1,4}),?$'),
    signature("garbled_output", "!!!!!!!!!!!!", r"!{12,}"),
    signature(
        "kv_scales_default", "accuracy drop without a proper scaling", r"store kv cache.{0,200}accuracy drop"
    ),
    signature("kv_scales_default", "KV cache scaling factor 1.0", r"scaling factor 1\.0"),
    signature(
        "kv_scales_default",
        "may cause accuracy issues",
        r"(?:fp8|FP8|KV|kv).{0,200}may cause accuracy issues",
    ),
    signature("engine_dead", "Engine core initialization failed", r"Engine core init", when="start"),
    signature("engine_dead", "EngineCore failed to start", r"EngineCore failed to start", when="start"),
    signature("engine_dead", "Engine process failed to start", r"Engine process failed", when="start"),
    signature("engine_dead", "EngineCore encountered an issue", r"EngineCore encountered", when="serve"),
    signature("engine_dead", "EngineCore encountered a fatal error", r"fatal error", when="serve"),
    signature("engine_dead", "Background loop has errored already", r"Background loop has", when="serve"),
    signature("engine_dead", "AsyncEngineDeadError", r"AsyncEngineDeadError", when="serve"),
    signature("engine_dead", "Task finished unexpectedly", r"finished unexpectedly", when="serve"),
    signature("worker_died", "died unexpectedly", r"(?:[Ww]orker|VllmWorker).{0,60}died unexpectedly"),
    signature("serving", "Application startup complete", r"Application startup complete", phase="serve"),
    signature("serving", "init engine (profile, create kv cache", r"init engine \(", phase="serve"),
)

READERS: Final = (
    Reader(name="vllm_stats", engine="vllm", anchors=("Avg prompt throughput:",), read=_stats),
    table_reader("vllm_serve", "vllm", _ROWS),
)
