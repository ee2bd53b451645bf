"""What a log prints that is no fault but is often misread: the pool in tokens, and what it is worth.

`Maximum concurrency` is the count of requests of the full context limit. Where the tokens of the pool and
that count contradict each other, the model keeps several kinds of cache and the token line is not what a
user can fill.
"""

from __future__ import annotations

from typing import Any

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.log_worth import observe_worth
from kvprobe.diagnose.model import Observation, Quantity
from kvprobe.evidence.events import Event
from kvprobe.summary.units import percent, size, whole

_PRINTED_STEP = 0.01
"""`4.61x` stands for 4.605 to 4.615."""
_AGREE = 0.02
"""Block rounding and a null block move the tokens by less."""


def observe(view: LogView) -> list[Observation]:
    """Of the last pool that each source tells, and of the model that was given beside it."""
    found: list[Observation] = []
    pools = {e.source: e for e in view.all("pool_size") if e.get("tokens")}
    for pool in pools.values():
        found += _concurrency(pool)
    available = view.last("available_kv", "budget")
    for pool in pools.values():
        found += _against_model(view, pool, available)
    return [*found, *observe_worth(view)]


def _concurrency(pool: Event) -> list[Observation]:
    tokens, times, length = pool.get("tokens"), pool.get("concurrency"), pool.get("max_model_len")
    if not times or not length:
        return []
    meant = times * length
    facts = {
        "tokens": Quantity(tokens, "tokens"),
        "concurrency": Quantity(times, "ratio"),
        "max_model_len": Quantity(length, "tokens"),
        "concurrency_tokens": Quantity(round(meant), "tokens"),
    }
    slack = _PRINTED_STEP / 2 * length + _AGREE * tokens
    if abs(meant - tokens) <= slack:
        text = (
            f"Maximum concurrency {times:g}x is {times:g} requests of {whole(length)} tokens each, "
            f"the longest there can be: {whole(tokens)} tokens in all. Of shorter requests more fit. "
            f"[{_place(pool)}]"
        )
        return [Observation(id="concurrency_is_worst_case", text=text, facts=facts)]
    text = (
        f"The log contradicts itself: {whole(tokens)} tokens, but {times:g}x of {whole(length)} is "
        f"{whole(meant)}. So blocks are counted per group (hybrid or sliding-window layers), and the token "
        "line is not the capacity that requests can use; the concurrency is computed from bytes. "
        f"[{_place(pool)}]"
    )
    return [Observation(id="token_line_is_not_capacity", text=text, facts=facts)]


def _against_model(view: LogView, pool: Event, available: Event | None) -> list[Observation]:
    """The printed pool against the planner's, else bytes by tokens against what a token should cost."""
    prediction = view.prediction or {}
    planned = (prediction.get("pool") or {}).get("log_line_tokens_range")
    if planned:
        return [_against_plan(pool, *planned)]
    kv: dict[str, Any] = prediction.get("kv") or {}
    per_token = kv.get("bytes_per_token_per_gpu")
    room = pool.get("bytes") or (_room(available) if available is not None else None)
    if not per_token or not room or room <= 0:
        return []
    measured = room / pool.get("tokens")
    facts = {
        "predicted_bytes_per_token": Quantity(per_token, "B"),
        "printed_bytes_per_token": Quantity(round(measured), "B"),
    }
    said = f"{whole(measured)} B a token by the log ({size(room)} / {whole(pool.get('tokens'))} tokens)"
    if abs(measured / per_token - 1) <= _AGREE:
        text = (
            f"The model's configuration agrees with the log: {whole(per_token)} B a token predicted, {said}."
        )
        return [Observation(id="model_agrees", text=text, facts=facts)]
    told = f"{whole(per_token)} B a token predicted ({kv.get('layout')}, cache {kv.get('dtype_k')}), {said}"
    return [_disagreement(told, measured / per_token - 1, facts)]


def _against_plan(pool: Event, low: int, high: int) -> Observation:
    tokens = pool.get("tokens")
    facts = {
        "predicted_tokens_low": Quantity(low, "tokens"),
        "predicted_tokens_high": Quantity(high, "tokens"),
        "printed_tokens": Quantity(tokens, "tokens"),
    }
    span = f"{whole(low)} to {whole(high)} tokens" if low != high else f"{whole(low)} tokens"
    said = f"{span} predicted for the bytes that the log names, {whole(tokens)} printed [{_place(pool)}]"
    if low <= tokens <= high:
        text = f"The model's configuration agrees with the log: {said}."
        return Observation(id="model_agrees", text=text, facts=facts)
    return _disagreement(said, tokens / max(1, high if tokens > high else low) - 1, facts)


def _disagreement(said: str, off: float, facts: dict[str, Quantity]) -> Observation:
    text = (
        f"The model's configuration and the log disagree by {percent(abs(off))}: {said}. Either it is "
        "another model, another cache type or parallel split, or the engine pads its blocks or counts apart."
    )
    return Observation(id="model_disagrees", text=text, facts=facts)


def _room(event: Event) -> Any:
    return event.get("bytes") or event.get("kv")


def _place(event: Event) -> str:
    return f"{event.source}:{event.line}" if event.line else event.source
