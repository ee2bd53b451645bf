"""Series that several engines name alike."""

from __future__ import annotations

from kvprobe.observe.dialects.model import Series

PROCESS = (
    # The Python and Go clients of Prometheus add these to a page by themselves.
    Series("engine.process_rss_bytes", ("process_resident_memory_bytes",), absolute=True),
    Series("engine.process_open_fds", ("process_open_fds",), absolute=True),
    Series(
        "engine.process_start_time_s",
        ("process_start_time_seconds",),
        over_label_sets="max",
        absolute=True,
    ),
)

TTFT = Series("engine.ttft_seconds", ("time_to_first_token_seconds",), "histogram")
E2E = Series("engine.e2e_seconds", ("e2e_request_latency_seconds",), "histogram")
PROMPT_TOKENS = Series("engine.prompt_tokens_total", ("prompt_tokens",), "counter")
GENERATION_TOKENS = Series("engine.generation_tokens_total", ("generation_tokens",), "counter")
QUEUE = Series("engine.queue_seconds", ("request_queue_time_seconds",), "histogram")


def finished(*names: str) -> Series:
    """Finished requests by reason, where the engine tells the reason."""
    labels = {"finished_reason": "reason"}
    return Series("engine.requests_finished_total", names, "counter", labels=labels)


def usage(*names: str) -> Series:
    """The share of the KV pool in use, 0 to 1."""
    return Series("engine.kv_usage_ratio", names, over_label_sets="mean")


def counters(**names: str) -> tuple[Series, ...]:
    """Counters under their own names: canonical suffix -> the engine's name."""
    return tuple(Series(f"engine.{ours}_total", (theirs,), "counter") for ours, theirs in names.items())


def gauges(**names: str) -> tuple[Series, ...]:
    """Gauges that add up over engines: canonical suffix -> the engine's name."""
    return tuple(Series(f"engine.{ours}", (theirs,)) for ours, theirs in names.items())


def histograms(**names: str) -> tuple[Series, ...]:
    """Histograms: canonical suffix -> the engine's name."""
    return tuple(Series(f"engine.{ours}", (theirs,), "histogram") for ours, theirs in names.items())
