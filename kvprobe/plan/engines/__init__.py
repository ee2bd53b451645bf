"""The allocators of the engines, each by its own logic. `pool_for` is the door."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches

from kvprobe.errors import Problem, UsageError
from kvprobe.model.spec import ModelSpec
from kvprobe.plan.engines.blocks import lmdeploy_pool, reference_pool, trtllm_pool
from kvprobe.plan.engines.cached import Cached, as_cached
from kvprobe.plan.engines.llama_cpp import llama_cpp_pool
from kvprobe.plan.engines.settings import Setting, setting
from kvprobe.plan.engines.sglang import sglang_pool
from kvprobe.plan.engines.transformers import transformers_pool
from kvprobe.plan.engines.versions import Version, has, parse_version
from kvprobe.plan.engines.vllm import v1_pool
from kvprobe.plan.engines.vllm_v0 import v0_pool
from kvprobe.plan.pool import ByteRange, EngineOptions, Pool

__all__ = ["ENGINES", "Cached", "as_cached", "has", "parse_version", "pool_for", "uses_v0"]


def uses_v0(version: Version, options: EngineOptions) -> bool:
    """Is it the V0 engine? Said so, or too old for V1, or asked to swap, which only V0 does."""
    if version.generation is not None:
        return version.generation == 0
    if not has(version, "v1"):
        return True
    return options.swap_space_bytes is not None and has(version, "v0")


def _vllm(asked: Setting, available: ByteRange) -> Pool:
    return (v0_pool if uses_v0(asked.version, asked.options) else v1_pool)(asked, available)


_ALLOCATORS: dict[str, Callable[[Setting, ByteRange], Pool]] = {
    "vllm": _vllm,
    "sglang": sglang_pool,
    "trtllm": trtllm_pool,
    "lmdeploy": lmdeploy_pool,
    "transformers": transformers_pool,
    "reference": reference_pool,
}
ENGINES: tuple[str, ...] = ("vllm", "sglang", "llama.cpp", "trtllm", "lmdeploy", "transformers", "reference")


def pool_for(
    engine: str, version: str | None, spec: ModelSpec, options: EngineOptions, available: ByteRange | None
) -> Pool:
    """The pool that `engine` makes of `available` bytes on every GPU for this model.

    Only llama.cpp does without `available`: its context decides what it allocates. Raises UsageError
    for an engine that is not known, for options that no engine could run, and for layouts whose
    allocator is not known.
    """
    if engine not in ENGINES:
        near = get_close_matches(engine, ENGINES, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise _problem("unknown_engine", f"{engine!r} is no engine that kvprobe knows", hint + _known())
    if spec.affine is not None:
        raise _problem(
            "affine_layout",
            f"how {engine} divides its memory for {spec.name} is not known: no constant cost per token",
            "plan it without --engine, or measure the engine's own log",
        )
    understood = parse_version(engine, version)
    cached = as_cached(engine, version, spec, options)
    asked = setting(understood, cached.spec, cached.options)
    if engine == "llama.cpp":
        pool = llama_cpp_pool(asked, available)
    elif available is None:
        raise _problem(
            "no_memory", f"{engine} divides the memory that it finds", "say how much: --available-kv 10GiB"
        )
    else:
        pool = _ALLOCATORS[engine](asked, available)
    assumed = () if understood.assumption is None else (understood.assumption,)
    return replace(pool, assumptions=(*assumed, *cached.notes, *pool.assumptions))


def _known() -> str:
    return "known: " + ", ".join(ENGINES)


def _problem(code: str, message: str, fix: str) -> UsageError:
    return UsageError(Problem(code=code, message=message, fix=fix))
