"""Evidence of made-up runs, in the real structs: records, samples and facts with known truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kvprobe.evidence.facts import Fact
from kvprobe.evidence.records import FailureKind, RequestRecord
from kvprobe.evidence.rundata import RunData, Status
from kvprobe.evidence.samples import Sample

MS = 1_000_000
S = 1_000_000_000
T0 = 1_000 * S


def record(
    index: int,
    *,
    sent_ms: float = 0.0,
    ttft_ms: float = 100.0,
    gap_ms: float | Sequence[float] = 10.0,
    tokens: int = 32,
    prompt: int = 640,
    cached: int | None = 0,
    prefix: str | None = None,
    late_ms: float = 0.0,
    **fields: Any,
) -> RequestRecord:
    """A request that ended well, unless `fields` say otherwise."""
    sent = T0 + int(sent_ms * MS)
    gaps = [int(g * MS) for g in (gap_ms if isinstance(gap_ms, Sequence) else [gap_ms] * (tokens - 1))]
    first = sent + int(ttft_ms * MS)
    last = first + sum(gaps)
    base: dict[str, Any] = {
        "request_id": f"r{index}",
        "kind": "made_up",
        "intended_ns": sent - int(late_ms * MS),
        "sent_ns": sent,
        "first_byte_ns": first,
        "first_chunk_ns": first,
        "first_token_ns": first,
        "first_visible_ns": first,
        "last_token_ns": last,
        "end_ns": last + MS,
        "gaps_ns": gaps,
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "cached_tokens": cached,
        "asked_prompt_tokens": prompt,
        "asked_completion_tokens": tokens,
        "prefix_id": prefix,
        "plan_index": index,
        "content_chunks": len(gaps) + 1,
        "receives": len(gaps) + 1,
        "finish_reason": "length",
        "status_code": 200,
    }
    return RequestRecord(**(base | fields))


def failed(
    index: int, kind: FailureKind, *, sent_ms: float = 0.0, after_ms: float = 50.0, **fields: Any
) -> RequestRecord:
    """A request that failed before its first token."""
    sent = T0 + int(sent_ms * MS)
    base: dict[str, Any] = {
        "request_id": f"f{index}",
        "kind": "made_up",
        "intended_ns": sent,
        "sent_ns": sent,
        "end_ns": sent + int(after_ms * MS),
        "failure": kind,
        "plan_index": index,
        "asked_prompt_tokens": 640,
        "asked_completion_tokens": 32,
    }
    return RequestRecord(**(base | fields))


@dataclass
class Made:
    """A run under construction; `build()` gives the evidence."""

    records: list[RequestRecord] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    workload: dict[str, Any] = field(default_factory=lambda: {"name": "made_up"})
    environment: dict[str, Any] = field(default_factory=lambda: {"cpu_usable": 2})
    status: Status = "complete"
    opened: list[Any] = field(default_factory=list)
    bad_lines: int = 0

    def fact(self, name: str, value: Any, **rest: Any) -> Made:
        self.facts.append(Fact(name=name, value=value, source="test", **rest))
        return self

    def gauge(
        self, metric: str, values: Sequence[float | None], *, every_ms: float = 500.0, **labels: str
    ) -> Made:
        for i, value in enumerate(values):
            self.samples.append(
                Sample(t_ns=T0 + int(i * every_ms * MS), metric=metric, labels=labels, value=value)
            )
        return self

    def counter(self, metric: str, start: float, end: float) -> Made:
        """Two readings, at the marks."""
        return self.gauge(metric, [start, end], every_ms=self.span_ms())

    def marks(self) -> Made:
        end = T0 + int(self.span_ms() * MS)
        self.samples.append(Sample(t_ns=T0, metric="mark.load_start", value=1.0))
        self.samples.append(Sample(t_ns=end, metric="mark.load_end", value=1.0))
        return self

    def span_ms(self) -> float:
        return max(((r.end_ns or r.intended_ns) - T0) / MS for r in self.records) if self.records else 1_000.0

    def build(self) -> RunData:
        return RunData(
            path=Path("runs/20261130T165102Z-made_up-1a2b3c4d"),
            status=self.status,
            records=sorted(self.records, key=lambda r: r.sent_ns or 0),
            opened=self.opened,
            samples=sorted(self.samples, key=lambda s: s.t_ns),
            facts=self.facts,
            workload=self.workload,
            environment=self.environment,
            bad_lines=self.bad_lines,
        )


def healthy(
    *,
    families: int = 24,
    each: int = 8,
    cached: int | None = 544,
    cold_ttft_ms: float = 400.0,
    warm_ttft_ms: float = 60.0,
    cold_gap_ms: float = 10.0,
    seed: int = 7,
    users: int = 4,
) -> Made:
    """A healthy server under a load whose prompts share prefixes by family; `cached=None`: no usage of it.

    Four users, families interleaved, the first request of each family cold.
    """
    rng = np.random.default_rng(seed)
    made = Made()
    clock_ms = [0.0] * users
    order = [
        f
        for start in range(0, families, 8)
        for _ in range(each)
        for f in range(start, min(start + 8, families))
    ]
    ready: set[int] = set()
    for index, family in enumerate(order):
        user = int(np.argmin(clock_ms))
        cold = family not in ready
        ready.add(family)
        ttft = float((cold_ttft_ms if cold else warm_ttft_ms) * rng.lognormal(0.0, 0.1))
        gaps = list((cold_gap_ms if cold else 10.0) * rng.lognormal(0.0, 0.15, 31))
        row = record(
            index,
            sent_ms=clock_ms[user],
            ttft_ms=ttft,
            gap_ms=gaps,
            prefix=f"family-{family}",
            cached=None if cached is None else (0 if cold else cached),
        )
        made.records.append(row)
        clock_ms[user] = ((row.end_ns or 0) - T0) / MS + 1.0
    _server(made, families, each, cached)
    return made


def _server(made: Made, families: int, each: int, cached: int | None) -> None:
    requests = families * each
    hits = (cached or 0) * (requests - families)
    ratio = hits / (640 * requests)
    made.marks()
    made.counter("engine.prefix_queries_tokens_total", 0.0, 640.0 * requests)
    made.counter("engine.prefix_hits_tokens_total", 0.0, float(hits))
    made.counter("engine.prompt_tokens_total", 0.0, 640.0 * requests)
    made.counter("engine.preemptions_total", 0.0, 0.0)
    steps = max(10, int(made.span_ms() / 500))
    made.gauge("engine.kv_usage_ratio", [float(0.1 + 0.1 * np.sin(i / 5) ** 2) for i in range(steps)])
    made.gauge("engine.requests_waiting", [0.0] * steps)
    made.gauge("engine.requests_running_max", [0.0] + [4.0] * (steps - 1))
    made.gauge("scrape.ok", [1.0] * steps)
    made.gauge("client.loop_lag_s", [0.002] * (2 * steps), every_ms=250.0, worker="0", window="max")
    made.gauge("client.cpu_ratio", [0.2] * (2 * steps), every_ms=250.0, worker="0")
    made.gauge("server.rss_bytes", [4.2e8] * steps)
    made.fact("prefix_hit_rate_aimed", ratio).fact("prefix_hit_rate_ceiling", ratio)
    made.fact("cache_config", {"block_size": "16", "num_gpu_blocks": "4096", "enable_prefix_caching": "True"})
    made.fact("engine", {"name": "reference", "version": "0.1.0"})
    made.fact("nvml", "no NVML device")
    made.fact("target", {"base_url": "http://127.0.0.1:4711", "model": "tiny", "bundled": True})
    made.fact("calibration", {"source": "tokenize", "check_relative_error": 0.002})
