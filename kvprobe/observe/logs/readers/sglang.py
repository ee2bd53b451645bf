"""SGLang: sizing at start, the batch lines, retraction, and its own checks that fail.

Its advice is opposite for the two out-of-memory situations (more `--mem-fraction-static` at start, less
while serving), so the phase lines matter as much as the errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, signature, table_reader, values_of

ENGINE = "sglang"

_START = (
    signature(
        "host_pool_refused",
        "Not enough host memory",
        r"Not enough host memory .{0,20}?\. ?(?:Requesting|Need) (?P<asked__size>[\d.]+ ?GB),? "
        r"(?:but only )?have (?P<free__size>[\d.]+ ?GB)",
    ),
    signature("phase", "Load weight begin", r"Load weight begin", phase="load"),
    signature(
        "weights_loaded",
        "Load weight end",
        r"Load weight end\..{0,160}?avail mem=(?P<free_after__GiB>-?[\d.]+) GB"
        r"(?:, mem usage=(?P<weights__GiB>-?[\d.]+) GB)?",
        phase="profile",
    ),
    signature(
        "profiled_tokens",
        "larger than the profiled value",
        r"max_total_tokens=(?P<asked__tokens>-?\d+) is larger than the profiled value "
        r"(?P<profiled__tokens>-?\d+)",
    ),
    signature(
        "pool_size",
        "Cache is allocated. #tokens",
        r"KV Cache is allocated\. #tokens: (?P<tokens__tokens>\d+)",
    ),
    signature(
        "state_slots",
        "Mamba Cache is allocated",
        r"Mamba Cache is allocated\. max_mamba_cache_size: (?P<slots__count>\d+)",
    ),
    signature("pool_end", "Memory pool end", r"Memory pool end\. avail mem=(?P<free_after__GiB>-?[\d.]+) GB"),
    signature("phase", "Capture cuda graph begin", r"Capture cuda graph begin", phase="capture"),
    signature("phase", "Capture draft cuda graph begin", r"Capture draft", phase="capture"),
    signature("phase", "Capture cuda graph end", r"Capture cuda graph end", phase="warmup"),
    signature(
        "phase", "max_total_num_tokens=", r"\bmax_total_num_tokens=\d+, chunked_prefill", phase="warmup"
    ),
    signature("serving", "The server is fired up and ready to roll", r"fired up", phase="serve"),
    signature(
        "no_room_for_pool",
        "Please try to increase --mem-fraction-static",
        r"Not enough memory\. Please try to increase --mem-fraction-static"
        r"(?:.{0,40}?mem_fraction_static=(?P<fraction__ratio>[\d.]+))?",
        phase="profile",
    ),
    signature(
        "no_room_for_pool",
        "leave no GPU memory for the KV cache",
        r"eights leave no GPU memory for the KV cache"
        r"(?:.{0,40}?mem[-_]fraction[-_]static[= ](?P<fraction__ratio>[\d.]*\d))?",
        phase="profile",
    ),
    signature(
        "fraction_needed",
        "mem-fraction-static to at least",
        r"mem-fraction-static to at least (?P<least__ratio>[\d.]*\d)",
    ),
    signature(
        "graph_failed",
        "Capture cuda graph failed",
        r"Capture cuda graph failed:? ?(?P<inner__text>.{0,300})",
        phase="capture",
    ),
    signature(
        "graph_failed",
        "Capture CUDA graph failed",
        r"Capture CUDA graph failed:? ?(?P<inner__text>.{0,300})",
        phase="capture",
    ),
)

_SERVE = (
    signature(
        "retraction",
        "#retracted_reqs",
        r"#retracted_reqs: (?P<requests__count>\d+)"
        r"(?:, #new_token_ratio: (?P<ratio_before__ratio>[\d.]+) -> (?P<ratio_after__ratio>[\d.]+))?",
        phase="serve",
    ),
    signature(
        "pool_alloc_failed",
        "out of memory. Try to lower your batch size",
        r"(?P<stage__text>Prefill|Decode) out of memory\. Try to lower your batch size",
        phase="serve",
    ),
    signature(
        "pool_alloc_asked",
        "Try to allocate ",
        r"Try to allocate (?P<asked__tokens>\d+) tokens?\.",
    ),
    signature(
        "pool_alloc_left",
        "ble tokens: ",
        r"Ava[a-z]{2,5}ble tokens: (?P<left__tokens>\d+)",
    ),
    signature(
        "slots_exhausted",
        "alloc_req_slots runs out of memory",
        r"alloc_req_slots runs out of memory",
        phase="serve",
    ),
    signature(
        "slots_exhausted",
        "req_pool_indices.cpu()",
        r"req_pool_indices\w* = req_pool_indices\.cpu\(\)",
        phase="serve",
    ),
    signature(
        "refused",
        "exceeds the maximum allowed length",
        r"Input length \((?P<asked__tokens>\d+) tokens\) exceeds the maximum allowed length "
        r"\((?P<limit__tokens>\d+)",
        phase="serve",
        reason="context",
    ),
    signature(
        "refused",
        "longer than the model's context length",
        r"(?:input|request).{0,40}?\((?P<asked__tokens>\d+) tokens\).{0,60}?context length "
        r"\((?P<limit__tokens>\d+)",
        phase="serve",
        reason="context",
    ),
    signature(
        "refused", "The request queue is full", r"The request queue is full", phase="serve", reason="queue"
    ),
    signature(
        "gpus_unequal",
        "The memory capacity is unbalanced",
        r"capacity is unbalanced(?:.{0,80}?pre_model_load_memory=(?P<least__GiB>[\d.]+), "
        r"local_gpu_memory=(?P<free__GiB>[\d.]+))?",
        phase="load",
    ),
    signature("child_died", "eceived sigquit from a child proc", r"eceived sigquit"),
    signature(
        "watchdog_timeout",
        "atchdog timeout (self.watchdog_timeout",
        r"atchdog timeout \(self\.watchdog_timeout=(?P<limit__s>[\d.]+)",
        phase="serve",
    ),
    signature("child_died", "SIGQUIT received", r"SIGQUIT received"),
    signature(
        "prefix_off",
        "adix cache is disabled",
        r"[Rr]adix cache is disabled(?P<why__text>.{0,160})",
    ),
    signature(
        "prefix_off",
        "isabling radix cache",
        r"isabling radix cache(?P<why__text>.{0,160})",
    ),
    signature(
        "kv_scale_warning",
        "default scaling factors of 1.0",
        r"default scaling factors of 1\.0",
    ),
)

_KV_SIZES = re.compile(
    r"#tokens: (?P<tokens__tokens>\d+)(?:, K size: (?P<k__GiB>[\d.]+) GB, V size: (?P<v__GiB>[\d.]+) GB"
    r"|, KV size: (?P<kv__GiB>[\d.]+) GB)?"
)


def _pool_bytes(line: Line, around: Around) -> Iterable[Event]:
    """Bytes of the pool (K and V, one rank)."""
    found = _KV_SIZES.search(line.text)
    if found is None:
        return
    values = values_of(found)
    parts = [values.pop(n).value for n in ("k", "v", "kv") if n in values]
    if parts:
        values["bytes"] = Value(sum(parts), "B")
    yield event_of(line, "pool_size", values, engine=ENGINE, phase="profile")


_READY = re.compile(
    r"max_total_num_tokens=(?P<tokens__tokens>\d+)"
    r"(?:.{0,200}?max_running_requests=(?P<max_running__count>\d+))?"
    r"(?:.{0,80}?context_len=(?P<max_model_len__tokens>\d+))?"
    r"(?:.{0,80}?available_gpu_mem=(?P<free_after__GiB>[\d.]+) GB)?"
)


def _ready(line: Line, around: Around) -> Iterable[Event]:
    """The line with all of it, just before the server starts."""
    found = _READY.search(line.text)
    if found is not None and "leak" not in line.text:
        yield event_of(line, "pool_ready", values_of(found), engine=ENGINE, phase="warmup")


_ARGS: tuple[tuple[str, str, str], ...] = (
    ("mem_fraction_static", "mem_fraction_static", "ratio"),
    ("max_running_requests", "max_num_seqs", "count"),
    ("context_length", "max_model_len", "tokens"),
    ("page_size", "block_size", "tokens"),
    ("chunked_prefill_size", "chunked_prefill_size", "tokens"),
    ("max_prefill_tokens", "max_prefill_tokens", "tokens"),
    ("max_total_tokens", "max_total_tokens", "tokens"),
    ("tp_size", "tensor_parallel_size", "count"),
    ("cuda_graph_max_bs", "cuda_graph_max_bs", "count"),
    ("kv_cache_dtype", "kv_cache_dtype", "text"),
    ("quantization", "quantization", "text"),
    ("dtype", "dtype", "text"),
    ("disable_radix_cache", "disable_radix_cache", "flag"),
    ("speculative_algorithm", "speculative", "text"),
    ("schedule_conservativeness", "schedule_conservativeness", "ratio"),
)
_ARG_PATTERNS = tuple(
    (
        name,
        unit,
        re.compile(rf"\b{key}=['\"]?([\w.+-]{{1,80}})"),
        re.compile(rf"--{key.replace('_', '-').replace('tp-size', 'tp(?:-size)?')}[ =]+([\w.+-]{{1,80}})"),
    )
    for key, name, unit in _ARGS
)
_MODEL = re.compile(r"(?:\bmodel_path=['\"]?|--model(?:-path)?[ =]['\"]?)([\w~/.][\w./~:+-]{1,200})")


def _args(line: Line, around: Around) -> Iterable[Event]:
    """`server_args=ServerArgs(...)` or the command line with which it was started."""
    values: dict[str, Value] = {}
    for name, unit, keyword, option in _ARG_PATTERNS:
        found = keyword.search(line.text) or option.search(line.text)
        value = _typed(found[1], unit) if found is not None and found[1] not in {"None", "null"} else None
        if value is not None:
            values[name] = value
    model = _MODEL.search(line.text)
    if model is not None:
        values["model"] = Value(model[1])
    if "--disable-radix-cache" in line.text:
        values["disable_radix_cache"] = Value(True)
    yield event_of(line, "config", values, engine=ENGINE)
    yield event_of(line, "engine_start", {"engine": Value(ENGINE)}, engine=ENGINE)


def _typed(text: str, unit: str) -> Value | None:
    if unit == "text":
        return Value(text)
    if unit == "flag":
        return Value(text.lower() == "true")
    try:
        value = float(text)
    except ValueError:
        return None
    return Value(value if unit == "ratio" else int(value), unit)


READERS: tuple[Reader, ...] = (
    table_reader("sglang start", ENGINE, tuple(r for r in _START if r.event != "pool_size")),
    table_reader("sglang serve", ENGINE, _SERVE),
    Reader(name="sglang pool", engine=ENGINE, anchors=("Cache is allocated. #tokens",), read=_pool_bytes),
    Reader(name="sglang ready", engine=ENGINE, anchors=("max_total_num_tokens=",), read=_ready),
    Reader(
        name="sglang arguments",
        engine=ENGINE,
        anchors=("server_args=", "ServerArgs(", "sglang.launch_server", "sglang serve "),
        read=_args,
    ),
)
