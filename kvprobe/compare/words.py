"""A comparison in one sentence: what is shown, or that nothing is."""

from __future__ import annotations

from collections.abc import Sequence

from kvprobe.compare.model import Row, Setting
from kvprobe.summary.units import plural

_HEADLINE = ("output tokens/s", "ttft p50", "ttft p95", "tpot p50", "gap p50", "e2e p50", "failed requests")
"""Rows that a sentence names, in this order of weight."""
NAMED = 3


def summary_sentence(rows: Sequence[Row], settings: Sequence[Setting], empty: str | None = None) -> str:
    """Names at most three rows; says `no difference shown` when no interval leaves 0 out. `empty` says which
    run has nothing to be compared."""
    by_name = {row.name: row for row in rows}
    told = [by_name[n] for n in _HEADLINE if n in by_name and by_name[n].verdict in ("higher", "lower")]
    others = [r for r in rows if r.verdict in ("higher", "lower") and r not in told]
    config = _config(settings)
    if empty is not None:
        return f"{empty}, so that nothing but failures can be compared; {config}"
    if told or others:
        named = (told or others)[:NAMED]
        more = len(told) + len(others) - len(named)
        rest = f"; {more} more below" if more else ""
        return f"B against A: {', '.join(_change(row) for row in named)}{rest}; {config}"
    # Failures have an interval from the first request on: by themselves they are no comparison of speed.
    if not any(r.ci is not None for r in rows if r.name != "failed requests"):
        return f"n too small for any interval but that of failures; {config}"
    hints = ", ".join(r.name for r in rows if r.verdict == "hint")
    weak = f" (a hint only, among so many rows: {hints})" if hints else ""
    return f"no difference shown{weak}; {config}"


def _config(settings: Sequence[Setting]) -> str:
    if not settings:
        return "no setting that was recorded differs"
    first = [s for s in settings if s.group in ("server", "engine", "cache", "target")] or list(settings)
    named = ", ".join(s.name for s in first[:NAMED])
    more = len(settings) - min(NAMED, len(first))
    rest = f" and {more} more" if more > 0 else ""
    return f"{plural(len(settings), 'setting')} changed: {named}{rest}"


def _change(row: Row) -> str:
    return f"{row.name} {change_text(row)}"


def change_text(row: Row) -> str:
    """`-53.0 % [-55.1, -50.2]` of A, or `+1.2 points [...]` for the difference of two shares."""
    if row.change is None:
        return ""
    if row.change_is == "difference" and row.unit != "ratio":
        return f"{row.change:+,.0f}"
    unit = "%" if row.change_is == "relative" else "points"
    told = f"{_signed(row.change)} {unit}"
    return told if row.ci is None else f"{told} [{_signed(row.ci.lo)}, {_signed(row.ci.hi)}]"


def _signed(share: float) -> str:
    value = 100 * share
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.1f}"
