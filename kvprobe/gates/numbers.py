"""A gate's numbers for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvprobe.gates.metrics import METRICS, Kind
from kvprobe.summary import units

if TYPE_CHECKING:
    from kvprobe.gates.judge import GateResult

_WORDS = {
    "pass": "pass",
    "fail": "FAIL",
    "n_too_small": "FAIL (n too small)",
    "not_measured": "FAIL (not measured)",
}


def verdict_word(result: GateResult) -> str:
    """`pass`, or what kind of failure."""
    return _WORDS[result.verdict]


def sentence(result: GateResult) -> str:
    """`ttft.p95 < 800ms: 912 ms [880 ms to 960 ms], n 240`"""
    if result.value is None:
        return result.threshold
    kind = METRICS[result.metric.partition(".")[0]].kind
    told = f"{result.threshold}: {shown(result.value, kind)}"
    if result.ci is not None:
        told += f" [{_end(result.ci.lo, kind)} to {_end(result.ci.hi, kind)}]"
    return f"{told}, n {result.n:,}"


def _end(value: float | None, kind: Kind) -> str:
    return "?" if value is None else shown(value, kind)


def shown(value: float, kind: Kind) -> str:
    """`812 ms`, `3.4 %`, `17`, `5.20/s`, `231 tok/s`."""
    match kind:
        case "seconds":
            return units.seconds(value)
        case "ratio":
            return units.percent(value)
        case "per_s":
            return f"{units.figures(value)}/s"
        case "tokens_per_s":
            return f"{units.figures(value)} tok/s"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.2f}"
