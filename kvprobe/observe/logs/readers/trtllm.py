"""TensorRT-LLM and Triton with its backend: C++ runtime, executor and TensorRT itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import GIB, event_of, signature, table_reader

ENGINE = "trtllm"

_ROWS = (
    signature(
        "engine_start",
        "TensorRT-LLM version",
        r"TensorRT-LLM version:? (?P<version__text>[\w.]{3,30})",
    ),
    signature(
        "pool_size",
        "for max tokens in paged KV cache",
        r"Allocated (?P<bytes__GiB>[\d.]+) GiB for max tokens in paged KV cache \((?P<tokens__tokens>\d+)",
    ),
    signature(
        "pool_size",
        "bytes for k/v cache",
        r"Allocate (?P<bytes__B>\d+) bytes for k/v cache",
    ),
    signature(
        "pool_size",
        "tokens in paged KV cache",
        r"Using (?P<tokens__tokens>\d+) (?:total )?tokens in paged KV cache",
    ),
    signature(
        "pool_size",
        "Max tokens in paged KV cache",
        r"Max tokens in paged KV cache: (?P<tokens__tokens>\d+)\. Allocating (?P<bytes__B>\d+) bytes",
    ),
    signature(
        "pool_free",
        "when calculating max tokens in paged kv cache",
        r"total: (?P<total__GiB>[\d.]+) GiB, available: (?P<free__GiB>[\d.]+) GiB",
    ),
    signature(
        "engine_size", "Loaded engine size", r"Loaded engine size: (?P<weights__MiB>\d+) MiB", phase="load"
    ),
    signature(
        "kv_fraction",
        "kv_cache_free_gpu_mem",
        r"kv_cache_free_gpu_mem(?:ory)?_fraction.{0,40}?(?P<fraction__ratio>0?\.\d+|1\.0)",
    ),
    signature(
        "pool_below_one_request",
        "must be large enough to process at least 1 sequence",
        r"maxTokensInPagedKvCache(?: \((?P<pool__tokens>\d+)\))? must be large enough",
    ),
    signature(
        "pool_below_one_request", "Impossible to fit", r"Impossible to fit (?:in )?any sequence in kvCache"
    ),
    signature(
        "cuda_alloc_failed",
        "CUDA runtime error in ",
        r"CUDA runtime error in "
        r"(?P<call__text>[^:]{0,4}::cudaMalloc\w*|cudaMalloc\w*|\S{0,40}?[mM]alloc\w*).{0,120}?out of memory",
    ),
    signature(
        "trt_alloc_failed",
        "Requested amount of GPU memory",
        r"Requested amount of GPU memory \((?P<asked__B>\d+) bytes\) could not be allocated",
    ),
    signature(
        "trt_alloc_failed",
        "OutOfMemory (",
        r"OutOfMemory \((?:Requested size was (?P<asked__B>\d+) bytes|no further information)",
    ),
    signature(
        "trt_alloc_failed",
        "bytes of scratch space",
        r"requires (?P<asked__B>\d+) bytes of scratch space, but only (?P<free__B>\d+) is available",
    ),
    signature("trt_stage", "bytes of scratch space", r"scratch space", stage="context"),
    signature(
        "pool_short",
        "No free blocks left",
        r"new blocks(?: for window size \d+)?\. No free blocks left",
        phase="serve",
        failed=1,
    ),
    signature(
        "engine_check_failed",
        "Assertion failed: ",
        r"\[TensorRT-LLM\]\[ERROR\] Assertion failed: "
        r"(?!Can't allocate|Impossible to fit|Input length|Prompt length|.{0,80}(?:memory|large enough))"
        r"(?P<check__text>.{3,160}?) \(/?\S{0,160}?(?P<file__text>\w{1,60}\.(?:cpp|cc|cu|h|hpp)):\d",
    ),
    signature(
        "refused",
        "exceeds maximum input length",
        r"Prompt length \((?P<asked__tokens>\d+)\) exceeds maximum input length \((?P<limit__tokens>\d+)",
        phase="serve",
        reason="context",
    ),
    signature(
        "refused",
        "must be less than max sequence length",
        r"Input length \((?P<asked__tokens>\d+)\) .{0,120}less than max sequence length "
        r"\((?P<limit__tokens>\d+)",
        phase="serve",
        reason="context",
    ),
    signature(
        "refused",
        "should not exceed max_",
        r"prompt length \((?P<asked__tokens>\d+)(?:\.0)?\).{0,80}should not exceed max_\w{3,20} "
        r"\((?P<limit__tokens>\d+)",
        phase="serve",
        reason="context",
    ),
    signature("trt_stage", "createExecutionContext", r"createExecutionContext", stage="context"),
    signature(
        "trt_stage", "IExecutionContext creation", r"failed.{0,60}IExecutionContext creation", stage="context"
    ),
    signature("trt_stage", "deserializeCudaEngine", r"deserializeCudaEngine", stage="weights"),
    signature("trt_stage", "Failed to deserialize cuda engine", r"deserialize", stage="weights"),
    signature(
        "trt_stage",
        "tensorrt_llm::",
        r"(?:RuntimeBuffers::(?:prepare|reshape|setFromInputs|postContext|prepareStep)|::prepareBuffers|"
        r"::execute(?:Step|Batch|Context|Async)|::forward(?:Async|Sync|Step)?\(|decoderStep|GenericLlm\w{0,20}Step)",
        stage="step",
    ),
    signature("trt_stage", "Building engine", r"Building engine|Build TensorRT engine", stage="build"),
)

_COMPONENT = re.compile(r"component could not be created: (.{2,60})")
_PAIR = re.compile(r"(Total GPU memory|Free GPU memory before[a-z ]{0,40}) \(GiB\): ([\d.]+)")


def _executor(line: Line, around: Around) -> Iterable[Event]:
    """`Executor creation failed …`: the component and the free memory stand in the lines after it."""
    values: dict[str, Value] = {}
    for text in (line.text, *(a.text for a in around.after(8))):
        component = _COMPONENT.search(text)
        if component is not None and "component" not in values:
            values["component"] = Value(component[1].strip())
        for name, number in _PAIR.findall(text):
            key = "total" if name.startswith("Total") else "free"
            values.setdefault(key, Value(round(float(number) * GIB), "B"))
    yield event_of(line, "executor_failed", values, engine=ENGINE)


READERS: tuple[Reader, ...] = (
    table_reader("trtllm", ENGINE, _ROWS),
    Reader(
        name="trtllm executor",
        engine=ENGINE,
        anchors=("Executor creation failed due to insufficient GPU memory",),
        read=_executor,
    ),
)
