"""llama.cpp and what is built on it (Ollama's runner, LM Studio, KoboldCpp, ik_llama.cpp, llama-cpp-python).

All memory is allocated at start in three kinds of buffer: weights, KV cache, compute. A failed allocation
names only a size; the lines after it tell which kind it was, so each is an event of its own and the rules
put them together.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, signature, size_bytes, table_reader

ENGINE = "llama.cpp"
_NUM = r"[\d.]+"

_SIZES = (
    signature(
        "config",
        "n_ctx  ",
        r"\bn_ctx +=[ ]+(?P<n_ctx__tokens>\d+)",
    ),
    signature("config", "n_ctx_per_seq", r"\bn_ctx_per_seq +=[ ]+(?P<max_model_len__tokens>\d+)"),
    signature("config", "n_ctx_seq", r"\bn_ctx_seq +=[ ]+(?P<max_model_len__tokens>\d+)"),
    signature("config", "n_ctx_train", r"\bn_ctx_train +=[ ]+(?P<trained_len__tokens>\d+)"),
    signature("config", "n_seq_max", r"\bn_seq_max +=[ ]+(?P<max_num_seqs__count>\d+)"),
    signature("config", "n_ubatch", r"\bn_ubatch +=[ ]+(?P<ubatch__tokens>\d+)"),
    signature("config", "flash_attn", r"\bflash_attn +=[ ]+(?P<flash_attention__text>\w+)"),
    signature(
        "config",
        "n_ctx_slot = ",
        r"n_slots = (?P<max_num_seqs__count>\d+), n_ctx_slot = (?P<max_model_len__tokens>\d+)"
        r"(?:, kv_unified = '(?P<kv_unified__flag>\w+)')?",
    ),
    signature("config", "new slot", r"new slot,? n_ctx(?:_slot)? = (?P<max_model_len__tokens>\d+)"),
    signature("phase", "loading model tensors", r"loading model tensors", phase="load"),
    signature("phase", "constructing llama_context", r"constructing llama_context", phase="profile"),
    signature("phase", "warming up the model with an empty run", r"warming up the model", phase="warmup"),
    signature("serving", "server is listening on", r"server is listening on", phase="serve"),
    signature(
        "serving", "listening on http", r"(?:llama_server|main).{0,20}listening on http", phase="serve"
    ),
    signature("serving", "HTTP server listening", r"HTTP server listening", phase="serve"),
    signature("serving", "model loaded", r"(?:main|llama_server): model loaded", phase="serve"),
    signature(
        "buffer",
        "buffer size",
        r"(?P<device__text>[A-Za-z_]{2,20}\d{0,2}) (?P<what__text>model|KV|compute|output|RS) buffer size +="
        rf" +(?P<size__MiB>{_NUM}) MiB",
    ),
    signature(
        "buffer",
        "llm_load_tensors:",
        rf"llm_load_tensors: +(?P<device__text>[A-Za-z_]{{2,20}}\d{{0,2}}) buffer "
        rf"size += +(?P<size__MiB>{_NUM}) MiB",
        what="model",
    ),
    signature(
        "kv_size",
        "KV self size",
        rf"KV self size += +(?P<size__MiB>{_NUM}) MiB",
    ),
    signature(
        "kv_size",
        " cells, ",
        rf"size = +(?P<size__MiB>{_NUM}) MiB \( *(?P<cells__tokens>\d+) cells, +(?P<layers__count>\d+) "
        rf"layers,"
        r" +(?P<sequences__count>\d+)/",
    ),
    signature(
        "device",
        "MiB free",
        rf"(?P<name__text>(?:CUDA|ROCm|Vulkan|SYCL|Metal|CPU|MTL)\d{{0,2}})\b.{{0,90}}?"
        rf"(?:(?P<total__MiB>{_NUM}) MiB, )?(?P<free__MiB>{_NUM}) MiB free",
    ),
)

_FAILURES = (
    signature(
        "alloc_failed",
        "cudaMalloc failed: out of memory",
        rf"allocating (?P<asked__MiB>{_NUM}) MiB on device (?P<device__int>\d+): cudaMalloc failed",
        backend="cuda",
    ),
    signature(
        "alloc_failed",
        "cpu_buffer_type_alloc_buffer: failed to allocate",
        r"cpu_buffer_type_alloc_buffer: failed to allocate buffer of size (?P<asked__B>\d+)",
        backend="cpu",
    ),
    signature(
        "alloc_failed",
        "Device memory allocation of size",
        r"Device memory allocation of size (?P<asked__B>\d+) failed",
        backend="vulkan",
    ),
    signature(
        "alloc_failed",
        "insufficient memory (attempted",
        rf"insufficient memory \(attempted to allocate +(?P<asked__MiB>{_NUM}) MB",
        backend="cpu",
    ),
    signature(
        "context_pool_short",
        "memory pool (needed",
        r"not enough space in the (?P<pool__text>[\w' ]{4,30}?) memory pool \(needed (?P<needed__B>\d+), "
        r"available (?P<available__B>\d+)",
    ),
    signature(
        "alloc_failed",
        "metal_buffer_type_alloc_buffer: error",
        rf"error: failed to allocate buffer, size = +(?P<asked__MiB>{_NUM}) MiB",
        backend="metal",
    ),
    signature(
        "alloc_failed",
        "Bytes of memory on device",
        r"can't allocate (?P<asked__B>\d+) Bytes of memory on device",
        backend="sycl",
    ),
    signature(
        "alloc_failed",
        "OpenCL error",
        r"CL_(?:MEM_OBJECT_ALLOCATION_FAILURE|OUT_OF_RESOURCES|INVALID_BUFFER_SIZE)",
        backend="opencl",
    ),
    signature(
        "allocation_limit",
        "Requested buffer size exceeds device",
        r"Requested buffer size exceeds device (?P<limit_of__text>[a-z ]{4,30}?) limit",
        backend="vulkan",
    ),
    signature(
        "allocation_limit",
        "maxBufferLength",
        rf"buffer is larger than maxBufferLength|larger than maxBufferLength \((?P<limit__MiB>{_NUM})",
        backend="metal",
    ),
    signature(
        "buffer_failed",
        "alloc_tensor_range: failed to allocate",
        r"failed to allocate (?P<device__text>[\w ]{2,24}) buffer of size (?P<asked__B>\d+)",
        what="tensors",
    ),
    signature(
        "buffer_failed",
        "ggml_gallocr_reserve_n",
        r"failed to allocate (?P<device__text>[\w ]{2,24}) buffer of size (?P<asked__B>\d+)",
        what="compute",
    ),
    signature("buffer_failed", "failed to allocate compute", r"compute (?:pp |tg )?buffers", what="compute"),
    signature("buffer_failed", "failed to allocate buffer for kv cache", r"kv cache", what="kv"),
    signature("buffer_failed", "failed to allocate buffer for rs cache", r"rs cache", what="kv"),
    signature("buffer_failed", "failed for self-attention cache", r"self-attention cache", what="kv"),
    signature(
        "buffer_failed",
        ": unable to allocate ",
        r"(?:error loading model|Error|error): unable to allocate (?P<device__text>[\w ]{2,24}) buffer",
        what="weights",
    ),
    signature(
        "buffer_failed",
        "ErrorOutOfDeviceMemory",
        r"error loading model: vk::Device::\w{4,30}: ErrorOutOfDeviceMemory",
        what="weights",
    ),
    signature(
        "alloc_failed",
        "ggml_metal_add_buffer: error",
        rf"failed to allocate '\w{{1,20}}' buffer, size = +(?P<asked__MiB>{_NUM}) MB",
        backend="metal",
    ),
    signature(
        "allocation_limit", "is larger than buffer maximum of", r"larger than buffer maximum", backend="metal"
    ),
    signature("buffer_failed", "unable to allocate backend buffer", r"unable to allocate", what="weights"),
    signature("recovered", "retrying without pipeline parallelism", r"retrying without pipeline"),
    signature(
        "pinned_failed", "of pinned memory", rf"failed to allocate (?P<asked__MiB>{_NUM}) MiB of pinned"
    ),
    signature(
        "metal_oom",
        "kIOGPUCommandBufferCallbackErrorOutOfMemory",
        r"kIOGPUCommandBufferCallbackErrorOutOfMemory",
    ),
    signature(
        "metal_limit",
        "recommendedMaxWorkingSetSize",
        rf"recommendedMaxWorkingSetSize += +(?P<limit__MiB>{_NUM}) MB",
    ),
    signature("device_lost", "DeviceLost", r"vk::DeviceLostError|ErrorDeviceLost"),
    signature("device_lost", "ERROR_DEVICE_LOST", r"\b(?:UR_RESULT|PI|VK)_ERROR_DEVICE_LOST"),
)

_RUNTIME = re.compile(
    r"(?:CUDA|ROCm|HIP|MUSA) error(?: 2 at \S+)?: (out of memory|the resource allocation "
    r"failed)"
)
_OTHER = re.compile(
    r"(?:CUDA|ROCm|HIP|MUSA) error: (?P<message>(?!out of memory|the resource alloc)[a-zA-Z].{3,120})"
)
_WHERE = re.compile(r"in function (\w+) at")


def _runtime(line: Line, around: Around) -> Iterable[Event]:
    """`CUDA error: out of memory` of ggml: the next line tells in which function."""
    found = _RUNTIME.search(line.text)
    if found is None:
        yield from _other_error(line, around)
        return
    after = " ".join(a.text for a in around.after(3))
    where = _WHERE.search(after)
    function = where[1] if where else None
    if function is None and not re.search(r"ggml|cuMem|cublas", line.text + after):
        return
    values = {"backend": Value("cuda")}
    if function is not None:
        values["function"] = Value(function)
    name = "cublas_failed" if "cublas" in after or "cublas" in line.text else "ggml_cuda_oom"
    yield event_of(line, name, values, engine=ENGINE)


def _other_error(line: Line, around: Around) -> Iterable[Event]:
    """`CUDA error: …` of ggml for another reason than memory: the next line says `in function … at`."""
    found = _OTHER.search(line.text)
    where = next((w for a in around.after(2) if (w := _WHERE.search(a.text))), None)
    if found is not None and where is not None:
        values = {"message": Value(found["message"].strip()), "function": Value(where[1])}
        yield event_of(line, "ggml_cuda_error", values, engine=ENGINE)


_METAL_SET = re.compile(r"\( *([\d.]+) */ *([\d.]+)\)")


def _metal_set(line: Line, around: Around) -> Iterable[Event]:
    """`allocated buffer, size = 400.00 MiB, ( 5655.70 / 5461.34)`: in use against the working set."""
    found = _METAL_SET.search(line.text)
    if found is None:
        return
    used, limit = size_bytes(found[1] + " MiB"), size_bytes(found[2] + " MiB")
    if used is not None and limit is not None:
        values = {"used": Value(used, "B"), "limit": Value(limit, "B")}
        yield event_of(line, "metal_working_set", values, engine=ENGINE)


READERS: tuple[Reader, ...] = (
    table_reader("llama.cpp sizes", ENGINE, _SIZES),
    table_reader("llama.cpp failures", ENGINE, _FAILURES),
    Reader(
        name="llama.cpp runtime",
        engine=ENGINE,
        anchors=("CUDA error", "ROCm error", "MUSA error"),
        read=_runtime,
    ),
    Reader(name="llama.cpp metal", engine=ENGINE, anchors=("allocated buffer, size",), read=_metal_set),
)
