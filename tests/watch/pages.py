"""Pages of a vLLM that a test can set, and a window filled with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvprobe.observe.dialects import read_page
from kvprobe.watch.figures import engines, figures
from kvprobe.watch.model import Reading
from kvprobe.watch.window import Window
from kvprobe.watch.words import reading

NAMES = {
    "running": "num_requests_running",
    "waiting": "num_requests_waiting",
    "kv": "kv_cache_usage_perc",
    "preempted": "num_preemptions_total",
    "made": "generation_tokens_total",
    "hits": "prefix_cache_hits_total",
    "queries": "prefix_cache_queries_total",
}
S = 1_000_000_000


def vllm(engine: str = "0", ttft: Sequence[tuple[str, float]] = (), **values: float | str) -> str:
    """Lines of one engine."""
    labels = f'engine="{engine}",model_name="m"'
    lines = [f"vllm:{NAMES[name]}{{{labels}}} {value}" for name, value in values.items()]
    for edge, count in ttft:
        lines.append(f'vllm:time_to_first_token_seconds_bucket{{{labels},le="{edge}"}} {count}')
    return "".join(f"{line}\n" for line in lines)


def window(pages: Iterable[str]) -> Window:
    """One look a second."""
    made = Window()
    for second, text in enumerate(pages):
        made.add(second * S, read_page(text))
    return made


def says(pages: Iterable[str]) -> Reading:
    """The reading at the end of these pages."""
    looks = window(pages)
    return reading(looks, figures(looks, reached=True), engines(looks.last))


def numbers(pages: Iterable[str]) -> dict[str, Any]:
    return dict(figures(window(pages), reached=True))
