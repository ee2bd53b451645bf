"""The words that a threshold or an abort rule may use: metric names, what they measure, their units.

Kept free of heavy imports: workload files are checked with these tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["seconds", "ratio", "count", "per_s", "tokens_per_s"]
Form = Literal["distribution", "gauge", "scalar"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One thing that can be judged. `distribution`s and `gauge`s need a statistic; `scalar`s have none.

    `live` says that an abort rule can be judged on it while the load runs.
    """

    name: str
    kind: Kind
    form: Form
    what: str
    live: bool = False
    higher_is_better: bool = False


_ALL = (
    Metric("ttft", "seconds", "distribution", "from sent to the first token", live=True),
    Metric("ttfo", "seconds", "distribution", "from sent to the first visible token", live=True),
    Metric("tpot", "seconds", "distribution", "time per output token after the first", live=True),
    Metric("gap", "seconds", "distribution", "between two chunks of a stream"),
    Metric("e2e", "seconds", "distribution", "from sent to the last token", live=True),
    Metric(
        "response_latency", "seconds", "distribution", "from the schedule's instant to the last token", True
    ),
    Metric(
        "response_ttft", "seconds", "distribution", "from the schedule's instant to the first token", True
    ),
    Metric("dispatch_delay", "seconds", "distribution", "from the schedule's instant to sent", live=True),
    Metric("error_rate", "ratio", "scalar", "failed requests of those sent", live=True),
    Metric("kv_usage", "ratio", "gauge", "share of the KV pool in use, as the server exports it", live=True),
    Metric("running", "count", "gauge", "requests that the server runs", live=True),
    Metric("waiting", "count", "gauge", "requests that wait at the server", live=True),
    Metric("prefix_hit_rate", "ratio", "scalar", "prompt tokens that came from the prefix cache"),
    Metric("preemptions", "count", "scalar", "requests that the server preempted during the load"),
    Metric("output_tokens_per_s", "tokens_per_s", "scalar", "output tokens a second, by the server's usage"),
    Metric("requests_per_s", "per_s", "scalar", "requests a second that ended well"),
    Metric("goodput", "per_s", "scalar", "requests a second that met every limit of `slo`"),
    Metric("slo_attainment", "ratio", "scalar", "share of the sent requests that met every limit of `slo`"),
    Metric("requests_ok", "count", "scalar", "requests that ended well"),
    Metric("requests_failed", "count", "scalar", "requests that failed"),
    Metric("requests_unsent", "count", "scalar", "requests that the schedule wanted and that were not sent"),
    Metric("max_active", "count", "scalar", "most requests in flight at once, by their overlap"),
)
METRICS: dict[str, Metric] = {m.name: m for m in _ALL}

ALIASES = {
    "itl": "gap",
    "inter_token_latency": "gap",
    "inter_chunk_latency": "gap",
    "time_to_first_token": "ttft",
    "time_per_output_token": "tpot",
    "latency": "e2e",
    "errors": "error_rate",
    "failure_rate": "error_rate",
    "kv_cache_usage": "kv_usage",
    "queue": "waiting",
    "throughput": "output_tokens_per_s",
    "output_throughput": "output_tokens_per_s",
    "hit_rate": "prefix_hit_rate",
    "goodput_share": "slo_attainment",
    **{f"{m.name}_s": m.name for m in _ALL if m.kind == "seconds"},
}
"""Other words for the same thing; `_s` is how the JSON document writes a latency."""

NEEDS_SLO = frozenset({"goodput", "slo_attainment"})

FIRST_TOKEN_WAITS = frozenset({"ttft", "ttfo", "response_ttft"})
WHOLE_WAITS = frozenset({"e2e", "response_latency"})
"""Latencies of which the time waited so far is a lower bound: until the first token, until the end."""

SECONDS_UNITS = {
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "\u03bcs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
}
PER_S_UNITS = ("/s", "req/s", "requests/s")
MAX_LATENCY_S = 24 * 3600.0
"""Longer than any request may last."""
MINUTES_AT_MOST = 60.0
"""`800m` is 13 hours, and was meant to be milliseconds."""
TOKENS_UNITS = ("/s", "tok/s", "token/s", "tokens/s")

UNIT_OF: dict[Kind, str | None] = {
    "seconds": "s",
    "ratio": "ratio",
    "count": "count",
    "per_s": "requests/s",
    "tokens_per_s": "tokens/s",
}
