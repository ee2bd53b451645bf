"""Options that were given and change nothing in this plan: said aloud, for silence would be taken for use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvprobe.plan.claims import PlanWarning
from kvprobe.plan.request import PlanRequest
from kvprobe.plan.solve import Solution

NO_ENGINE = "the plain formula"
_PLAIN = (None, "llama.cpp", "transformers")
_SHARED = ("vllm", "sglang", "trtllm", "lmdeploy")
Given = Callable[[PlanRequest], object]
Used = Callable[[PlanRequest], bool]


def _of(*engines: str | None) -> Used:
    return lambda request: request.engine in engines


def _inside_overhead(*engines: str | None) -> Used:
    """Terms that --overhead stands for where it is given; vLLM takes both."""
    return lambda r: r.engine in engines and (r.overhead is None or r.engine in ("vllm", "sglang"))


def _after_load(request: PlanRequest) -> bool:
    return request.free_memory is not None and request.engine in ("sglang", "trtllm", "lmdeploy")


def _caches_prefixes(request: PlanRequest) -> bool:
    return request.options.prefix_caching is not False


_BUDGET: tuple[tuple[str, Given, Used, str], ...] = (
    (
        "--margin",
        lambda r: r.margin,
        lambda r: r.engine not in _SHARED and (r.engine != "reference" or r.utilisation is None),
        "lower the engine's own share instead",
    ),
    (
        "--gpu-memory-utilization",
        lambda r: r.utilisation,
        _of("vllm", "reference"),
        "it is a setting of vLLM: name the engine with --engine vllm",
    ),
    (
        "--mem-fraction-static",
        lambda r: r.mem_fraction_static,
        _of("sglang"),
        "it is a setting of SGLang: name the engine with --engine sglang",
    ),
    (
        "--kv-fraction",
        lambda r: r.kv_fraction,
        _of("trtllm", "lmdeploy"),
        "it is a setting of TensorRT-LLM and LMDeploy",
    ),
    (
        "--overhead",
        lambda r: r.overhead,
        lambda r: r.engine != "sglang" and (r.engine not in _SHARED or not _after_load(r)),
        "SGLang keeps work space outside its static share; free memory after load holds it already",
    ),
    (
        "--non-torch",
        lambda r: r.non_torch,
        lambda r: _inside_overhead(*_PLAIN, *_SHARED, "reference")(r) and not _after_load(r),
        "--overhead or --free-memory already holds it",
    ),
    (
        "--activation-peak",
        lambda r: r.activation_peak,
        _inside_overhead(*_PLAIN, "vllm", "reference"),
        "it is a term of vLLM's budget, and of --overhead where that is not given",
    ),
    (
        "--graphs",
        lambda r: r.graphs,
        lambda r: r.engine == "vllm" and r.at_least(0, 20),
        "CUDA graphs are a term of vLLM's budget from 0.20 on",
    ),
    (
        "--free-memory",
        lambda r: r.free_memory,
        _of(*_SHARED),
        "it is a term of the engines that divide what is free after load",
    ),
)
"""Option, what was given, whether the budget takes it, what to do."""

_ENGINE: tuple[tuple[str, Given, tuple[str, ...]], ...] = (
    ("--swap-space", lambda r: r.options.swap_space_bytes, ("vllm",)),
    ("--mamba-cache-mode", lambda r: r.options.mamba_cache_mode, ("vllm",)),
    ("--swa-full-tokens-ratio", lambda r: r.options.swa_full_tokens_ratio, ("sglang",)),
    ("--mamba-full-memory-ratio", lambda r: r.options.mamba_full_memory_ratio, ("sglang",)),
    ("--max-running-requests", lambda r: r.options.max_running_requests, ("sglang",)),
    ("--ctx", lambda r: r.options.ctx, ("llama.cpp",)),
    ("--parallel", lambda r: r.options.parallel, ("llama.cpp",)),
    ("--ubatch", lambda r: r.options.ubatch, ("llama.cpp",)),
    (
        "--kv-unified or --no-kv-unified",
        lambda r: None if r.options.kv_unified is None else True,
        ("llama.cpp",),
    ),
    ("--swa-full", lambda r: r.options.swa_full or None, ("llama.cpp",)),
    (
        "--max-num-batched-tokens",
        lambda r: r.options.max_num_batched_tokens,
        ("vllm", "sglang", "trtllm", "reference"),
    ),
    (
        "--prefix-caching",
        lambda r: None if r.options.prefix_caching is None or r.shared_prefix_tokens else True,
        ("vllm", "sglang", "lmdeploy", "reference"),
    ),
)
"""Option, what was given, the engines that have such a setting."""

_PAIRED: tuple[tuple[str, Given, Given, str], ...] = (
    ("--engine-version", lambda r: r.engine_version, lambda r: r.engine, "--engine"),
    ("--running", lambda r: r.running or None, lambda r: r.engine, "--engine"),
    (
        "--output-tokens-per-s",
        lambda r: r.output_tokens_per_s,
        lambda r: r.price_per_hour,
        "--price-per-hour",
    ),
    ("--shared-prefix", lambda r: r.shared_prefix_tokens or None, _caches_prefixes, "--prefix-caching on"),
)
"""Option, what was given, what it goes with, the name of that."""


def unused(solution: Solution) -> Iterator[PlanWarning]:
    """One warning for each group of options that this plan has no place for."""
    request = solution.request
    for option, given, used, fix in _BUDGET:
        if given(request) is None:
            continue
        if request.available_kv is not None:
            yield _warning(f"{option} has no part in this budget", "--available-kv overrides it")
        elif not used(request):
            yield _warning(f"{option} has no part in this budget", fix)
    yield from _of_other_engines(request)
    for option, given, partner, name in _PAIRED:
        if given(request) is not None and not partner(request):
            yield _warning(f"{option} changes nothing by itself", f"it goes with {name}")


def _of_other_engines(request: PlanRequest) -> Iterator[PlanWarning]:
    found: dict[tuple[str, ...], list[str]] = {}
    for option, given, engines in _ENGINE:
        if given(request) is not None and request.engine not in engines:
            found.setdefault(engines, []).append(option)
    if request.options.block_size is not None and request.engine in ("llama.cpp", "transformers"):
        found.setdefault(("engines with blocks",), []).append("--block-size")
    for engines, options in found.items():
        has = "have" if len(options) > 1 else "has"
        text = f"{', '.join(options)} {has} no part in a plan for {request.engine or NO_ENGINE}"
        yield _warning(text, f"for {', '.join(engines)}")


def _warning(text: str, fix: str) -> PlanWarning:
    return PlanWarning(code="not_used", text=text, fix=fix)
