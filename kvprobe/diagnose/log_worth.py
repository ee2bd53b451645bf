"""What printed numbers are worth: a token's cost, a hit rate's window, replicas' rates, TGI's budget."""

from __future__ import annotations

import re
from typing import Any, Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Observation, Quantity
from kvprobe.diagnose.replicas import replica_rates, with_affinity
from kvprobe.diagnose.rules.logs.prefix import rates
from kvprobe.evidence.events import Event
from kvprobe.summary.units import percent, size, whole

ASSUMED_ACTIVATIONS_BYTES: Final = 2 * 2**30
"""Of a start that does not say; the text names it as an assumption."""
_VLLM_UTILISATION: Final = 0.9
"""vLLM's default up to 0.19 (0.92 since), where the log shows no setting; named as an assumption too."""
_WINDOW_REQUESTS: Final = 1000
"""vLLM V1's log line averages over so many requests, weighted by tokens (`CachingMetrics`)."""
_READINGS: Final = 3
_LINEAR: Final = frozenset({"full", "mla", "mla_indexer", "varying", "shared"})
"""Layouts whose pool is bytes / bytes per token; windows and states are counted per group of layers."""
_BATCH: Final = re.compile(r"\bbatch_size=(\d{1,6})\b")


def token_cost(view: LogView) -> list[Observation]:
    """With `--model`: bytes of a token, and how many of them and of full requests the pool holds."""
    kv: dict[str, Any] = (view.prediction or {}).get("kv") or {}
    per_token = kv.get("bytes_per_token_per_gpu")
    if not per_token:
        return []
    facts = {"bytes_per_token_per_gpu": Quantity(per_token, "B")}
    text = f"A token costs {size(per_token)} of KV cache on each GPU"
    tokens, how = _tokens(view, per_token) if kv.get("layout") in _LINEAR else (None, "")
    if tokens:
        facts["pool_tokens"] = Quantity(round(tokens), "tokens")
        text += f"; the pool holds {whole(tokens)} tokens ({how})"
        length = _last(view, "max_model_len", "config", "pool_size")
        if length:
            facts["full_requests"] = Quantity(round(tokens / length, 2), "ratio")
            text += f" = {tokens / length:.1f} x {whole(length)}"
    return [Observation(id="token_cost", text=f"{text}.", facts=facts)]


def _tokens(view: LogView, per_token: float) -> tuple[float | None, str]:
    """The pool's tokens and how they are known; null where even an assumption cannot tell."""
    if printed := _last(view, "tokens", "pool_size"):
        return printed, "printed"
    if room := _last(view, "bytes", "available_kv") or _last(view, "kv", "budget"):
        return (room / per_token, f"{size(room)} by the log") if room > 0 else (None, "")
    total = _last(view, "total", "budget", "smi_memory", "torch_oom")
    weights = _last(view, "weights", "weights_loaded", "budget")
    if not total or not weights or view.engine != "vllm":
        return None, ""
    share = _last(view, "gpu_memory_utilization", "config")
    said = f"{share or _VLLM_UTILISATION:g}{'' if share else ' assumed'}"
    room = total * (share or _VLLM_UTILISATION) - weights - ASSUMED_ACTIVATIONS_BYTES
    how = f"{size(total)} x {said} - {size(weights)} of weights - {size(ASSUMED_ACTIVATIONS_BYTES)}"
    return (room / per_token if room > 0 else None), f"about: {how} assumed for activations"


def _last(view: LogView, name: str, *events: str) -> Any:
    told = [e.get(name) for e in view.all(*events) if isinstance(e.get(name), int | float)]
    return told[-1] if told else None


def hit_rate_window(view: LogView) -> list[Observation]:
    """vLLM V1's printed rate covers recent requests only; counters of a metrics page cover all."""
    told = [e for e in rates(view) if e.line and e.engine == "vllm" and e.get("swapped") is None]
    counted = _counters(view)
    shown = bool(told) and 0 < told[-1].get("prefix_hit_rate") < 1
    if not shown or (len(told) < _READINGS and not counted):
        return []
    rate = told[-1].get("prefix_hit_rate")
    facts = {"printed_hit_rate": Quantity(rate, "ratio"), "window": Quantity(_WINDOW_REQUESTS, "requests")}
    text = (
        f"The printed hit rate ({percent(rate)} in the last line) is a token-weighted window over the last "
        f"{_WINDOW_REQUESTS:,} requests, not a figure of your run"
    )
    if counted is not None:
        queried, hit, over = counted
        facts |= {"queried": Quantity(queried, "tokens"), "hit": Quantity(hit, "tokens")}
        text += f"; counters {over}: {whole(hit)} of {whole(queried)} tokens = {percent(hit / queried)}"
    else:
        text += "; two saved /metrics pages, before and after, give the counters' delta"
    text += (
        ". The last token of a prompt is always recomputed, and hits end on a whole block: 100 % is out of "
        "reach."
    )
    return [Observation(id="hit_rate_is_a_window", text=text, facts=facts)]


def _counters(view: LogView) -> tuple[float, float, str] | None:
    """Tokens asked and hit: between the first and the last page where they grew, else since the start."""
    pages = [e for e in view.all("engine_stats") if not e.line and e.get("prefix_queries")]
    pages.sort(key=lambda e: float(e.get("prefix_queries")))
    if not pages:
        return None
    first, last = pages[0], pages[-1]
    queried = last.get("prefix_queries") - first.get("prefix_queries")
    hit = last.get("prefix_hits") - first.get("prefix_hits")
    if queried > 0 and 0 <= hit <= queried:
        between = f"from {first.source} to {last.source}" if first.source != last.source else "while looking"
        return queried, hit, f"{between} (pages of one server)" if first.source != last.source else between
    return last.get("prefix_queries"), last.get("prefix_hits"), "since the server's start"


def replicas(view: LogView) -> list[Observation]:
    """Several servers' rates: what one cache for all would give, if a router spreads equal prefixes."""
    told = replica_rates(view)
    ideal = with_affinity(told)
    if ideal is None or view.all("router_policy"):  # with a router's word it is a finding
        return []
    each = ", ".join(f"{name} {percent(rate)}" for name, rate in list(told.items())[:8])
    mean = ideal / len(told)
    text = (
        f"Hit rates of {len(told)} servers: {each}; {percent(mean)} on average. If a router deals equal "
        f"prefixes to them in turn, that is about 1/{len(told)} of what it could be: affinity (one prefix, "
        f"one server) would give up to {percent(ideal)}. The router's policy is not in these logs."
    )
    facts = {"replicas": Quantity(len(told), "count"), "hit_rate_mean": Quantity(round(mean, 4), "ratio")}
    facts["hit_rate_with_affinity"] = Quantity(round(ideal, 4), "ratio")
    return [Observation(id="replica_hit_rates", text=text, facts=facts)]


def tgi_budget(view: LogView) -> list[Observation]:
    """TGI's token budget by the longest request is a bound, not a batch that the warm-up tried."""
    tokens = _last(view, "tokens", "pool_size")
    length = _last(view, "max_request_tokens", "config")
    if view.engine != "tgi" or not tokens or not length:
        return []
    bound = int(tokens // length)
    text = (
        f"{whole(tokens)} / {whole(length)} = {whole(bound)} requests is the bound of the token budget, "
        "not a batch that the warm-up tested"
    )
    facts = {"budget_requests": Quantity(bound, "requests")}
    batch = max((n for e in view.all("torch_oom", "phase") if (n := _batch(e))), default=None)
    if batch is not None and view.all("torch_oom"):
        facts["failed_batch"] = Quantity(batch, "requests")
        text += f"; memory ran out at a batch of {whole(batch)}"
    return [Observation(id="token_budget_is_a_bound", text=f"{text}.", facts=facts)]


def _batch(event: Event) -> int | None:
    found = _BATCH.search(event.text)
    return int(found[1]) if found else None


def observe_worth(view: LogView) -> list[Observation]:
    return [*token_cost(view), *hit_rate_window(view), *replicas(view), *tgi_budget(view)]
