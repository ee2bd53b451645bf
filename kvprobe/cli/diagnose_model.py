"""What `kvprobe.plan` says of `--model`, with the settings that the log itself tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from kvprobe.errors import KvprobeError

if TYPE_CHECKING:
    from kvprobe.evidence.events import Event
    from kvprobe.model.spec import ModelSpec

_ENGINES: Final = {
    "vllm": "vllm",
    "sglang": "sglang",
    "trtllm": "trtllm",
    "tensorrt-llm": "trtllm",
    "lmdeploy": "lmdeploy",
    "reference": "reference",
}
"""Engines whose pool follows from the bytes that the log prints; llama.cpp's follows from its slots."""
_SETTINGS: Final = {
    "max_model_len": "max_model_len",
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "kv_cache_dtype": "kv_dtype",
    "max_num_seqs": "max_num_seqs",
    "max_num_batched_tokens": "max_num_batched_tokens",
    "block_size": "block_size",
}
_GIB: Final = 2**30


def prediction(
    engine: str | None, version: str | None, events: Sequence[Event], path: str, spec: ModelSpec
) -> dict[str, Any]:
    """`kv` (what a token costs) always; `pool` as well where the log says how many bytes there were."""
    told = {ours: value for theirs, ours in _SETTINGS.items() if (value := _last(events, "config", theirs))}
    return _planned(engine, version, events, path, told) or _cost(spec, told)


def _planned(
    engine: str | None, version: str | None, events: Sequence[Event], path: str, told: dict[str, Any]
) -> dict[str, Any] | None:
    """The whole plan; null where the log tells too little, or something that the planner refuses."""
    available = _last(events, "available_kv", "bytes") or _last(events, "budget", "kv")
    if engine not in _ENGINES or not available or available <= 0:
        return None
    from kvprobe.plan.api import plan

    settings = {name: str(value) for name, value in told.items()}
    try:
        # Engines print GiB with two decimals: as a text, the amount keeps that rounding.
        size = f"{available / _GIB:.2f}GiB"
        found = plan(path, engine=_ENGINES[engine], engine_version=version, available_kv=size, **settings)
    except KvprobeError:
        return None
    return {
        "model": found["model"]["name"],
        **{k: found[k] for k in ("kv", "pool", "tp", "pp") if k in found},
    }


def _cost(spec: ModelSpec, told: dict[str, Any]) -> dict[str, Any]:
    from kvprobe.model.dtypes import kv_dtype
    from kvprobe.model.layouts import growing_bytes_per_token, layout_name, parts

    tp, pp = _count(told.get("tp")), _count(told.get("pp"))
    name = str(told.get("kv_dtype", "auto"))
    try:
        dtype = kv_dtype(name, model_dtype=spec.dtype)
    except KvprobeError:
        dtype = kv_dtype("auto", model_dtype=spec.dtype)
    try:
        exact = growing_bytes_per_token(parts(spec, dtype, dtype, tp=tp, pp=pp))
    except KvprobeError:  # a split that this model does not allow: then the log is of another one
        tp = pp = 1
        exact = growing_bytes_per_token(parts(spec, dtype, dtype, tp=tp, pp=pp))
    per_token = int(exact) if exact == int(exact) else float(exact)
    kv = {"bytes_per_token_per_gpu": per_token or None, "layout": layout_name(spec), "dtype_k": dtype.name}
    return {"model": spec.name, "kv": kv, "tp": tp, "pp": pp}


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 1 else 1


def _last(events: Sequence[Event], name: str, value: str) -> Any:
    found = (e.get(value) for e in reversed(events) if e.name == name and e.provenance != "quoted")
    return next((v for v in found if v is not None), None)
