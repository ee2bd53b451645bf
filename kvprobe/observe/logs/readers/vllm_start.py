"""How vLLM was started: version, model, and the settings that decide about memory.

Settings come as an args namespace, a dictionary of non-default arguments, the engine's config line, a
shell command or a Python call; all are read with one pattern per setting. Advice ("try increasing
`gpu_memory_utilization`") carries no number behind the name and gives nothing.
"""

from __future__ import annotations

import re
from typing import Final

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.readers.signature import event_of, signature, table_reader

_SEP: Final = r"['\"]?(?:\s{0,2}[=:]\s{0,2}|\s{1,4})['\"]?"
_NUMBERS: Final = {
    "gpu_memory_utilization": ("ratio", r"gpu[-_]memory[-_]utilization"),
    "max_model_len": ("tokens", r"(?<!derived )(?:max[-_]model[-_]len|max_seq_len)"),
    "max_num_batched_tokens": ("tokens", r"max[-_]num[-_]batched[-_]tokens"),
    "max_num_seqs": ("count", r"max[-_]num[-_]seqs"),
    "tensor_parallel_size": ("count", r"tensor[-_]parallel[-_]size|(?:^|\s)-tp"),
    "pipeline_parallel_size": ("count", r"pipeline[-_]parallel[-_]size|(?:^|\s)-pp"),
    "block_size": ("tokens", r"[\s,'\"(-]block[-_]size"),
    "cpu_offload_gb": ("count", r"cpu[-_]offload[-_]gb"),
    "swap_space_gib": ("count", r"swap[-_]space"),
    "max_lora_rank": ("count", r"max[-_]lora[-_]rank"),
    "num_gpu_blocks_override": ("blocks", r"num[-_]gpu[-_]blocks[-_]override"),
    "kv_cache_memory_bytes": ("B", r"kv[-_]cache[-_]memory(?:[-_]bytes)?"),
}
_TEXTS: Final = {
    "kv_cache_dtype": r"kv[-_]cache[-_]dtype",
    "dtype": r"(?:(?<![a-z_-])|(?<=\s--))dtype",
    "quantization": r"(?:(?<![a-z_-])|(?<=\s--))quantization|\s-q(?= )",
    "load_format": r"load[-_]format",
}
_PATTERNS: Final = {
    **{
        k: re.compile(rf"(?:{p}){_SEP}(\d{{1,15}}(?:\.\d{{1,6}})?)(?![\d.]*[A-Za-z]\w)")
        for k, (_, p) in _NUMBERS.items()
    },
    **{k: re.compile(rf"(?:{p}){_SEP}(?:torch\.)?([A-Za-z][\w.-]{{0,40}})") for k, p in _TEXTS.items()},
}
_MODEL: Final = re.compile(
    r"(?:(?<![a-z_-])model['\"]?\s{0,2}[=:]\s{0,2}['\"]?|--model[ =]|vllm serve ['\"]?|--model-path[ =])"
    r"([A-Za-z0-9_./~-][\w./~:+-]{1,200})"
)
_FLAGS: Final = {
    "enforce_eager": re.compile(r"--enforce-eager|enforce_eager['\"]?\s{0,2}[=:]\s{0,2}True"),
    "enable_prefix_caching": re.compile(
        r"--enable-prefix-caching|enable_prefix_caching['\"]?\s{0,2}[=:]\s{0,2}True"
    ),
    "prefix_caching_off": re.compile(
        r"--no-enable-prefix-caching|enable_prefix_caching['\"]?\s{0,2}[=:]\s{0,2}False"
    ),
    "enable_lora": re.compile(r"--enable-lora|enable_lora['\"]?\s{0,2}[=:]\s{0,2}True|max[-_]lora[-_]rank"),
    "speculative": re.compile(
        r"--speculative-(?:config|model)|speculative_(?:config|model)['\"]?\s{0,2}[=:]\s{0,2}(?!None)\S|num_speculative_tokens"
    ),
    "limit_mm_per_prompt": re.compile(r"limit[-_]mm[-_]per[-_]prompt['\"]?\s{0,2}[=:\s]\s{0,2}['\"]?[{a-z]"),
}
_ANCHORS: Final = (
    "gpu_memory_utilization",
    "gpu-memory-utilization",
    "max_model_len",
    "max-model-len",
    "max_seq_len=",
    "max_num_batched_tokens",
    "max-num-batched-tokens",
    "max_num_seqs",
    "max-num-seqs",
    "tensor_parallel_size",
    "tensor-parallel-size",
    "enable_prefix_caching",
    "enable-prefix-caching",
    "kv_cache_dtype",
    "kv-cache-dtype",
    "vllm serve ",
    "limit_mm_per_prompt",
    "limit-mm-per-prompt",
    "enforce_eager",
    "enforce-eager",
    "max_lora_rank",
    "max-lora-rank",
)


def _config(line: Line, around: Around) -> list[Event]:
    text = line.text
    values: dict[str, Value] = {}
    for name, pattern in _PATTERNS.items():
        found = pattern.search(text)
        if found is not None:
            values[name] = _value(name, found[1])
    for name, pattern in _FLAGS.items():
        if pattern.search(text):
            values[name] = Value(True)
    model = _MODEL.search(text)
    if model is not None and values:
        values["model"] = Value(model[1].rstrip("',\""))
    if not values or _advice(text, values):
        return []
    own = "vllm" in text or "gpu_memory_utilization" in values
    return [event_of(line, "config", values, engine="vllm" if own else None)]


def _advice(text: str, values: dict[str, Value]) -> bool:
    """Sentences of errors and warnings carry numbers of the refusal, not settings."""
    return any(w in text for w in ("is larger than the", "is greater than the derived", "total_gpu_memory ("))


def _value(name: str, text: str) -> Value:
    if name in _TEXTS:
        return Value(text)
    unit = _NUMBERS[name][0]
    return Value(float(text) if unit == "ratio" or "." in text else int(text), unit)


_ROWS: Final = (
    signature(
        "engine_start",
        "Initializing a",
        r"Initializing an? (?:V1 )?LLM engine(?: \(v?(?P<version>[\w.+-]{1,40})\))?",
        engine="vllm",
        phase="load",
    ),
    signature(
        "engine_start",
        "vLLM API server version",
        r"vLLM API server version (?P<version>[\w.+-]{1,40})",
        engine="vllm",
    ),
)

READERS: Final = (
    Reader(name="vllm_config", engine=None, anchors=_ANCHORS, read=_config),
    table_reader("vllm_start", None, _ROWS),
)
