"""Requests that kept every limit of the workload's `slo`: goodput and attainment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kvprobe.evidence.records import RequestRecord
from kvprobe.load.workload_values import parse_duration
from kvprobe.summary import latency
from kvprobe.summary.rates import is_unsent

_VALUES: dict[str, Callable[[RequestRecord], float | None]] = {
    "ttft": latency.ttft_s,
    "ttfo": latency.ttfo_s,
    "tpot": latency.tpot_s,
    "e2e": latency.e2e_s,
    "response_latency": latency.response_latency_s,
    "response_ttft": latency.response_ttft_s,
}


class Attainment(msgspec.Struct, kw_only=True):
    """`good` of `sent` requests kept all limits; null `reason` means that this could be judged."""

    good: int
    sent: int
    reason: str | None = None


def read_slo(workload: Mapping[str, Any]) -> dict[str, float]:
    """Limits in seconds by latency; empty where the workload states none (or nothing readable)."""
    stated = workload.get("slo")
    if not isinstance(stated, Mapping):
        return {}
    found = {}
    for name, value in stated.items():
        if name in _VALUES and isinstance(value, str):
            try:
                found[str(name)] = parse_duration(value)
            except ValueError:  # a run directory that something else wrote
                continue
    return found


def attainment(measured: Sequence[RequestRecord], slo: Mapping[str, float]) -> Attainment:
    """A failed request never kept its limits. An answer of one token has no time per token to exceed;
    one whose tokens nobody counted leaves the question open."""
    sent = [r for r in measured if not is_unsent(r)]
    ok = [r for r in sent if r.failure is None]
    unknown = sum(1 for r in ok if "tpot" in slo and r.completion_tokens is None)
    out = Attainment(good=sum(1 for r in ok if _kept(r, slo)), sent=len(sent))
    if not sent:
        out.reason = "no request was sent"
    elif unknown:
        out.reason = f"the server sent no usage for {unknown} of {len(ok)} requests: their TPOT is not known"
    return out


def _kept(record: RequestRecord, slo: Mapping[str, float]) -> bool:
    for name, limit_s in slo.items():
        value = _VALUES[name](record)
        if value is None:
            if name == "tpot" and record.completion_tokens == 1:
                continue
            return False
        if value > limit_s:
            return False
    return True
