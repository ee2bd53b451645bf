"""What client_truth.py compares and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

P99_NEEDS = 299
"""Requests that a p99 needs (one-sided 95 % bound)."""
HEADINGS = (
    "client",
    "streams",
    "processes",
    "n",
    "TTFT p50 (true) ms",
    "error",
    "TTFT p99 (true) ms",
    "error",
    "gap p50 (true) ms",
    "gap p99 (true) ms",
    "chunk late p99 ms",
    "CPU ms/request, start in",
    "start out",
    "x aiohttp, start in",
    "start out",
    "load",
)


@dataclass
class Client:
    """One request as a client saw it."""

    id: str
    sent_ns: int
    token_ns: list[int]


@dataclass
class Run:
    """One client at one number of streams, against the truth."""

    client: str
    streams: int
    processes: int
    requests: int
    failed: int
    ttft_p50_ms: float
    ttft_p50_true_ms: float
    ttft_p99_ms: float
    ttft_p99_true_ms: float
    ttft_late_p99_ms: float | None
    gap_p50_ms: float | None
    gap_p50_true_ms: float
    gap_p99_ms: float | None
    gap_p99_true_ms: float
    chunk_late_p99_ms: float | None
    cpu_ms_per_request: float
    cpu_ms_per_request_without_start: float | None
    loop_lag_p99_ms: float | None
    load_average: float

    @property
    def ttft_p50_error(self) -> float:
        return self.ttft_p50_ms / self.ttft_p50_true_ms - 1

    @property
    def ttft_p99_error(self) -> float:
        return self.ttft_p99_ms / self.ttft_p99_true_ms - 1


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation between closest ranks."""
    values = sorted(values)
    position = q * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (position - low)


def gaps_ms(streams: list[list[int]]) -> list[float]:
    """All gaps of all streams."""
    return [(b - a) / 1e6 for stamps in streams for a, b in pairwise(stamps)]


def table(runs: list[Run]) -> str:
    """Markdown; the ratios are CPU against aiohttp's at as many streams in the same pass."""
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + " --- |" * len(HEADINGS)]
    reference: dict[int, Run] = {}
    for run in runs:
        if run.client == "aiohttp":
            reference[run.streams] = run
        lines.append("| " + " | ".join(cells(run, reference.get(run.streams))) + " |")
    return "\n".join(lines)


def cells(run: Run, base: Run | None) -> list[str]:
    """One row; `base` is aiohttp's run."""
    enough = run.requests >= P99_NEEDS
    ratios = ["-", "-"]
    if base is not None and run is not base:
        ratios = [
            f"{run.cpu_ms_per_request / base.cpu_ms_per_request:.2f}",
            _ratio(run.cpu_ms_per_request_without_start, base.cpu_ms_per_request_without_start),
        ]
    return [
        run.client,
        str(run.streams),
        str(run.processes),
        f"{run.requests}" + (f" ({run.failed} failed)" if run.failed else ""),
        f"{run.ttft_p50_ms:.1f} ({run.ttft_p50_true_ms:.1f})",
        f"{run.ttft_p50_error:+.1%}",
        f"{run.ttft_p99_ms:.1f} ({run.ttft_p99_true_ms:.1f})" if enough else "n too small",
        f"{run.ttft_p99_error:+.1%}" if enough else "-",
        f"{_known(run.gap_p50_ms)} ({run.gap_p50_true_ms:.2f})",
        f"{_known(run.gap_p99_ms)} ({run.gap_p99_true_ms:.1f})",
        _known(run.chunk_late_p99_ms),
        f"{run.cpu_ms_per_request:.2f}",
        _known(run.cpu_ms_per_request_without_start),
        *ratios,
        f"{run.load_average:.1f}",
    ]


def _known(value: float | None) -> str:
    """`-` where a client does not tell."""
    return "-" if value is None else f"{value:.2f}"


def _ratio(a: float | None, b: float | None) -> str:
    return "-" if a is None or not b else f"{a / b:.2f}"
