"""Prediction beside measurement: what `kvprobe plan` says of this model against what the server reported.

Needs the model's configuration (the server's /v1/models tells it, or names a directory of this machine
that holds it) and, for the pool, the bytes that the engine gave to its cache. What is not known is null,
with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvprobe.errors import KvprobeError
from kvprobe.evidence.rundata import RunData
from kvprobe.summary import activity
from kvprobe.summary.jsonable import jsonable
from kvprobe.summary.memory import Memory, cache_config, memory, whole
from kvprobe.summary.units import percent
from kvprobe.summary.units import whole as shown

TOLERANCE = 0.02
"""Relative error above which prediction and report contradict each other."""
NO_MODEL = "the server does not tell the model's configuration, and names no directory of this machine"
BY_HAND = "the number of blocks was set by hand (num_gpu_blocks_override), not taken from memory"
NO_BYTES = "neither the metrics page nor a log says how many bytes the cache has"
NOT_REPORTED = "not reported by the server"
AUTO = "auto"
_ENGINES = ("reference", "vllm", "sglang", "llama.cpp", "trtllm", "lmdeploy")


class Compared(msgspec.Struct, kw_only=True):
    """One quantity; `error` is predicted / reported - 1 (ratio)."""

    predicted: float | None = None
    reported: float | None = None
    error: float | None = None
    source: str | None = None
    """Where the reported value stands."""
    reason: str | None = None
    """Why one of the two, and so the error, is null."""


class Prediction(msgspec.Struct, kw_only=True):
    """Bytes a token (one GPU), tokens in the pool, requests of the full context at once."""

    model: str | None
    engine: str | None
    bytes_per_token: Compared
    pool_tokens: Compared
    max_concurrency: Compared
    warnings: list[str] = msgspec.field(default_factory=list)
    """Of each quantity that is off by more than `TOLERANCE`."""
    assumed: bool = False
    """The cache's dtype was not told and taken to be that of the model's files."""

    def to_json(self) -> dict[str, Any]:
        document = jsonable(self)
        assert isinstance(document, dict)
        return document


def predict(run: RunData, told: Mapping[str, Any] | None = None) -> Prediction:
    """`told` are the facts of the server's log (`log_answer.facts_of`), where one was read."""
    config, held = cache_config(run), memory(run)
    log = _log_values(told or {})
    engine = _engine(run)
    plan, why = _plan(run, config, held, log, engine)
    kv, pool = (plan or {}).get("kv", {}), (plan or {}).get("pool", {})
    per_token = compared(
        kv.get("bytes_per_token_per_gpu"), *_reported_bytes_per_token(run, config, log), why=why
    )
    by_hand = BY_HAND if _overridden(config, log) else None
    if by_hand is not None:
        pool = {}
    no_pool = why or by_hand or (None if pool.get("tokens") else NO_BYTES)
    tokens = compared(pool.get("tokens"), *_reported_tokens(held, log), why=no_pool)
    most = compared(pool.get("max_concurrency"), *_reported_concurrency(run, config, held, log), why=no_pool)
    found = Prediction(
        model=_model_name(run),
        engine=engine,
        bytes_per_token=per_token,
        pool_tokens=tokens,
        max_concurrency=most,
    )
    auto = plan is not None and _cache_dtype(config, log) == AUTO
    found.assumed = auto
    assuming = ", assuming that the cache has the dtype of the model's files" if auto else ""
    for name, pair in (("bytes per token", per_token), ("pool tokens", tokens), ("concurrency", most)):
        if pair.error is not None and abs(pair.error) > TOLERANCE:
            found.warnings.append(
                f"{name}: predicted {shown(pair.predicted or 0)}, the server reports "
                f"{shown(pair.reported or 0)} ({percent(pair.error)} off{assuming})"
            )
    return found


def compared(
    predicted: float | None, reported: float | None, source: str | None, *, why: str | None = None
) -> Compared:
    """Two values side by side; `why` says why there is no prediction."""
    pair = Compared(predicted=predicted, reported=reported, source=source)
    if predicted is None:
        pair.reason = why or "not predicted for this layout"
    elif reported is None:
        pair.reason = NOT_REPORTED
    elif reported > 0:
        pair.error = predicted / reported - 1.0
    return pair


def model_config(run: RunData) -> dict[str, Any] | None:
    """The model's config.json as the run's facts hold it."""
    found = [f.value for f in run.facts if f.name == "model_config" and isinstance(f.value, dict)]
    return found[-1] if found else None


def _model_name(run: RunData) -> str | None:
    for fact in reversed(run.facts):
        if fact.name == "target" and isinstance(fact.value, dict):
            name = fact.value.get("model")
            return name if isinstance(name, str) else None
    return None


def _engine(run: RunData) -> str | None:
    for fact in reversed(run.facts):
        if fact.name == "engine" and isinstance(fact.value, dict):
            name = fact.value.get("name")
            return name if name in _ENGINES else None
    return None


def _log_values(told: Mapping[str, Any]) -> dict[str, Any]:
    """Event -> its plain values, from the facts of a log."""
    return {
        event: {k: v.get("value") for k, v in fact.get("values", {}).items() if isinstance(v, dict)}
        for event, fact in told.items()
        if isinstance(fact, dict)
    }


def _plan(
    run: RunData, config: Mapping[str, Any], held: Memory, log: Mapping[str, Any], engine: str | None
) -> tuple[dict[str, Any] | None, str | None]:
    """What `plan` says with the engine's own settings; or why it cannot."""
    model = model_config(run)
    if model is None:
        return None, NO_MODEL
    from kvprobe.plan.api import plan

    settings = _settings(run, config, log)
    if engine == "reference" and settings["kv_dtype"] == "int8":
        settings["kv_dtype"] = "int8_per_token_head"  # it keeps a scale for each token and head
    pool_bytes = held.kv_pool_bytes or _number(log, "available_kv", "bytes") or _number(log, "budget", "kv")
    try:
        if pool_bytes and engine is not None:
            return plan(model, engine=engine, available_kv=f"{int(pool_bytes)}B", **settings), None
        settings.pop("max_model_len", None)
        found = plan(model, gpu="80GiB", **settings)  # what a token costs depends on no device
        return {"kv": found["kv"]}, None
    except KvprobeError as error:
        return None, f"the planner refuses this model or its settings: {error}"


def _overridden(config: Mapping[str, Any], log: Mapping[str, Any]) -> bool:
    """Did somebody set the number of blocks? Then no memory decides it, and there is nothing to predict."""
    told = log.get("config", {}).get("num_gpu_blocks_override")
    return bool(whole(config.get("num_gpu_blocks_override")) or type(told) is int)


def _settings(run: RunData, config: Mapping[str, Any], log: Mapping[str, Any]) -> dict[str, str]:
    settings: dict[str, str] = {}
    block = whole(config.get("block_size"))
    if block:
        settings["block_size"] = str(block)
    settings["kv_dtype"] = _cache_dtype(config, log)
    length = _max_model_len(run, config)
    if length:
        settings["max_model_len"] = str(length)
    for theirs, ours in (("tensor_parallel_size", "tp"), ("pipeline_parallel_size", "pp")):
        value = log.get("config", {}).get(theirs)
        if type(value) is int and value > 1:
            settings[ours] = str(value)
    return settings


def _cache_dtype(config: Mapping[str, Any], log: Mapping[str, Any]) -> str:
    """As the engine states it. `auto` is the dtype in which it runs the model, which only its log tells."""
    from kvprobe.model.dtypes import kv_dtype

    told = log.get("config", {})
    stated = [config.get("cache_dtype"), told.get("kv_cache_dtype"), told.get("dtype")]
    for name in (str(s) for s in stated if s):
        if name == "auto":
            continue
        try:
            kv_dtype(name, model_dtype="bfloat16")
        except KvprobeError:
            continue
        return name
    return AUTO


def _max_model_len(run: RunData, config: Mapping[str, Any]) -> int | None:
    if (told := whole(config.get("max_model_len"))) is not None:
        return told
    for fact in reversed(run.facts):
        if fact.name == "target" and isinstance(fact.value, dict):
            value = fact.value.get("max_model_len_tokens")
            return value if type(value) is int else None
    return None


def _number(log: Mapping[str, Any], event: str, name: str) -> float | None:
    value = log.get(event, {}).get(name)
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _reported_bytes_per_token(
    run: RunData, config: Mapping[str, Any], log: Mapping[str, Any]
) -> tuple[float | None, str | None]:
    if (told := whole(config.get("kv_bytes_per_token"))) is not None:
        return float(told), "cache_config_info kv_bytes_per_token"
    if (gauge := activity.largest(run.samples, "engine.kv_bytes_per_token")) is not None:
        return gauge, "engine.kv_bytes_per_token"
    if (logged := _number(log, "pool_size", "bytes_per_token")) is not None:
        return logged, "the server's log"
    return None, None


def _reported_tokens(held: Memory, log: Mapping[str, Any]) -> tuple[float | None, str | None]:
    if held.kv_pool_tokens is not None:
        return float(held.kv_pool_tokens), "cache_config_info"
    logged = _number(log, "pool_size", "tokens")
    return logged, "the server's log" if logged is not None else None


def _reported_concurrency(
    run: RunData, config: Mapping[str, Any], held: Memory, log: Mapping[str, Any]
) -> tuple[float | None, str | None]:
    logged = _number(log, "pool_size", "concurrency")
    if logged is not None:
        return logged, "the server's log"
    length = _max_model_len(run, config)
    if held.kv_pool_tokens is None or not length:
        return None, None
    return held.kv_pool_tokens / length, "cache_config_info: pool tokens / max_model_len"
