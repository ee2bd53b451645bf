"""Which flags each engine has, from which version on and until which.

vLLM: `engine/arg_utils.py` and `config/cache.py` of the published releases 0.6.6.post1 to 0.33.0. SGLang:
`srt/server_args.py` of 0.4.6, 0.5.3, 0.5.5, 0.5.6 and 0.5.10; `since` is the oldest of these that has the
flag, so a version between two of them counts as the older one. llama.cpp: builds, by pull request.
TensorRT-LLM: `trtllm-serve` of 0.18.2 and later. LMDeploy: `lmdeploy serve api_server` of 0.9.0.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvprobe.plan.engines.versions import Release, Version

_START: Release = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag. `since` is the first release that has it, `until` the first that has it no more; `build`
    the same as a build number for llama.cpp. `switch` flags take no value."""

    name: str
    since: Release = _START
    until: Release | None = None
    build: int | None = None
    switch: bool = False
    values: tuple[tuple[str, Release], ...] = ()
    source: str = ""

    def missing_in(self, version: Version, value: str | None) -> str | None:
        """Why this version cannot take the flag (or that value of it); null when it can."""
        if self.build is not None and version.build is not None and version.build < self.build:
            return f"--{self.name} came with build b{self.build}; this is b{version.build}"
        if version.release < self.since:
            return f"--{self.name} came with {_dotted(self.since)}"
        if self.until is not None and version.release >= self.until:
            return f"--{self.name} was removed in {_dotted(self.until)}"
        if self.values and value is not None:
            since = dict(self.values).get(value)
            if since is None:
                return (
                    f"--{self.name} takes no `{value}` (known: {', '.join(name for name, _ in self.values)})"
                )
            if version.release < since:
                return f"--{self.name} {value} came with {_dotted(since)}"
        return None


def _dotted(release: Release) -> str:
    return ".".join(str(part) for part in release)


_VLLM_KV: tuple[tuple[str, Release], ...] = (
    ("auto", _START),
    ("fp8", _START),
    ("fp8_e4m3", _START),
    ("fp8_e5m2", _START),
    ("bfloat16", (0, 11, 0)),
    ("fp8_ds_mla", (0, 11, 1)),
    ("float16", (0, 18, 0)),
    ("int8_per_token_head", (0, 20, 0)),
    ("fp8_per_token_head", (0, 20, 0)),
    ("nvfp4", (0, 20, 0)),
)
_ARGS = "arg_utils.py of the releases"

_VLLM = (
    Flag(name="max-model-len", source=_ARGS),
    Flag(name="max-num-seqs", source=_ARGS),
    Flag(name="max-num-batched-tokens", source=_ARGS),
    Flag(name="gpu-memory-utilization", source=_ARGS),
    Flag(name="kv-cache-dtype", values=_VLLM_KV, source="CacheDType of config/cache.py"),
    Flag(name="tensor-parallel-size", source=_ARGS),
    Flag(name="pipeline-parallel-size", source=_ARGS),
    Flag(name="enable-prefix-caching", switch=True, source=_ARGS),
    Flag(name="no-enable-prefix-caching", switch=True, source=_ARGS),
    Flag(name="block-size", source=_ARGS),
    Flag(name="swap-space", until=(0, 18, 0), source=_ARGS),
    Flag(name="mamba-cache-mode", since=(0, 15, 0), source=_ARGS),
    Flag(name="kv-cache-memory-bytes", since=(0, 10, 2), source=_ARGS),
    Flag(name="max-num-queued-reqs", since=(0, 29, 0), source=_ARGS),
    Flag(name="max-num-queued-tokens", since=(0, 29, 0), source=_ARGS),
)
_SGLANG_KV: tuple[tuple[str, Release], ...] = (
    ("auto", _START),
    ("fp8_e5m2", _START),
    ("fp8_e4m3", _START),
    ("bf16", (0, 5, 10)),
    ("bfloat16", (0, 5, 10)),
)
_SERVER_ARGS = "server_args.py of the releases"
_SGLANG = (
    Flag(name="context-length", source=_SERVER_ARGS),
    Flag(name="max-running-requests", source=_SERVER_ARGS),
    Flag(name="chunked-prefill-size", source=_SERVER_ARGS),
    Flag(name="mem-fraction-static", source=_SERVER_ARGS),
    Flag(name="kv-cache-dtype", values=_SGLANG_KV, source=_SERVER_ARGS),
    Flag(name="tensor-parallel-size", source=_SERVER_ARGS),
    Flag(name="pipeline-parallel-size", since=(0, 5, 3), source=_SERVER_ARGS),
    Flag(name="page-size", source=_SERVER_ARGS),
    Flag(name="disable-radix-cache", switch=True, source=_SERVER_ARGS),
    Flag(name="swa-full-tokens-ratio", since=(0, 5, 3), source=_SERVER_ARGS),
    Flag(name="mamba-full-memory-ratio", since=(0, 5, 5), source=_SERVER_ARGS),
    Flag(name="max-queued-requests", since=(0, 5, 3), source=_SERVER_ARGS),
)
_LLAMA = (
    Flag(name="ctx-size", source="common/arg.cpp"),
    Flag(name="parallel", source="common/arg.cpp"),
    Flag(name="ubatch-size", source="common/arg.cpp"),
    Flag(name="cache-type-k", source="common/arg.cpp"),
    Flag(name="cache-type-v", source="common/arg.cpp"),
    Flag(name="kv-unified", build=6000, switch=True, source="llama.cpp after PR 14363"),
    Flag(name="no-kv-unified", build=7400, switch=True, source="common/arg.cpp after PR 16736"),
    Flag(name="swa-full", build=5434, switch=True, source="llama.cpp PR 13194"),
)
_TRT = (
    Flag(name="max_seq_len", source="trtllm-serve"),
    Flag(name="max_batch_size", source="trtllm-serve"),
    Flag(name="max_num_tokens", source="trtllm-serve"),
    Flag(name="kv_cache_free_gpu_memory_fraction", source="trtllm-serve"),
    Flag(name="tp_size", source="trtllm-serve"),
    Flag(name="pp_size", source="trtllm-serve"),
)
_LMDEPLOY = (
    Flag(name="session-len", source="lmdeploy serve api_server"),
    Flag(name="max-batch-size", source="lmdeploy serve api_server"),
    Flag(name="cache-max-entry-count", source="lmdeploy serve api_server"),
    Flag(name="cache-block-seq-len", source="lmdeploy serve api_server"),
    Flag(name="tp", source="lmdeploy serve api_server"),
    Flag(name="quant-policy", source="lmdeploy serve api_server: 4 or 8 bits of KV"),
    Flag(name="enable-prefix-caching", switch=True, source="lmdeploy serve api_server"),
)
_REFERENCE = (
    Flag(name="max-model-len", source="kvprobe serve"),
    Flag(name="max-num-seqs", source="kvprobe serve"),
    Flag(name="max-num-batched-tokens", source="kvprobe serve"),
    Flag(name="kv-memory", source="kvprobe serve"),
    Flag(name="kv-dtype", source="kvprobe serve"),
    Flag(name="block-size", source="kvprobe serve"),
    Flag(name="no-prefix-caching", switch=True, source="kvprobe serve"),
)

FLAGS: dict[str, dict[str, Flag]] = {
    engine: {flag.name: flag for flag in flags}
    for engine, flags in (
        ("vllm", _VLLM),
        ("sglang", _SGLANG),
        ("llama.cpp", _LLAMA),
        ("trtllm", _TRT),
        ("lmdeploy", _LMDEPLOY),
        ("reference", _REFERENCE),
    )
}
ENTRY: dict[str, str] = {
    "vllm": "vllm serve MODEL",
    "sglang": "python -m sglang.launch_server --model-path MODEL",
    "llama.cpp": "llama-server -m MODEL.gguf",
    "trtllm": "trtllm-serve MODEL",
    "lmdeploy": "lmdeploy serve api_server MODEL",
    "reference": "kvprobe serve --model MODEL",
}
ALIASES: dict[str, dict[str, str]] = {
    "sglang": {
        "tp": "tensor-parallel-size",
        "tp-size": "tensor-parallel-size",
        "pp-size": "pipeline-parallel-size",
    },
    "vllm": {"tp": "tensor-parallel-size", "pp": "pipeline-parallel-size"},
    "llama.cpp": {
        "c": "ctx-size",
        "np": "parallel",
        "ub": "ubatch-size",
        "ctk": "cache-type-k",
        "ctv": "cache-type-v",
        "kvu": "kv-unified",
        "no-kvu": "no-kv-unified",
    },
}
"""Other spellings that a running command line may have."""
