"""A comparison on a terminal: settings first, then the numbers, with what chance could make of them."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvprobe.compare.model import Comparison, Row, Side
from kvprobe.compare.words import change_text
from kvprobe.report.ink import Ink
from kvprobe.summary.units import figures, percent, seconds, size, whole

SETTING_CHARS = 60
HINT = "outside chance for that row alone; among so many rows one such is expected now and then"
_VERDICTS = {
    "no_difference_shown": "no difference shown",
    "n_too_small": "n too small",
    "not_measured": "not measured",
    "no_interval": "one number a run",
}
_STYLES = {"better": "bold green", "worse": "bold red", "changed": "bold", "hint": "yellow"}


def render_comparison(found: Comparison, console: Console) -> None:
    """The whole page."""
    ink = Ink(console)
    invalid = [letter for letter, side in (("A", found.a), ("B", found.b)) if side.valid is False]
    if invalid:
        ink.line(f"INVALID ({' and '.join(invalid)}): do not quote these numbers", "bold red")
    ink.rows([("compare", ink.text(found.summary, "bold")), *(_side(ink, s, x) for s, x in _sides(found))])
    same = "the same was sent" if found.same_workload else "whether the same was sent is not certain"
    ink.rows([("workload", ink.text(f"{found.a.workload or 'a run'}: {same}"))])
    ink.blank()
    _settings(ink, found)
    ink.blank()
    console.print(_table(ink, found.rows))
    ink.blank()
    if any(row.verdict == "hint" for row in found.rows):
        ink.rows([("hint", ink.text(HINT))])
    ink.rows([("note" if i == 0 else "", ink.text(w)) for i, w in enumerate(found.warnings)])


def _sides(found: Comparison) -> list[tuple[str, Side]]:
    return [("A", found.a), ("B", found.b)]


def _side(ink: Ink, letter: str, side: Side) -> tuple[str, Text]:
    who = " ".join(w for w in (side.engine, side.engine_version) if w) or "an unknown engine"
    done = f"{whole(side.requests_ok)} ok, {whole(side.requests_failed)} failed"
    told = f"{who}, model {side.model or 'not known'}; {done}; {side.primary}"
    return letter, ink.text(f"{side.run_dir} ({told})")


def _settings(ink: Ink, found: Comparison) -> None:
    if not found.settings:
        ink.rows([("settings", ink.text("nothing that was recorded differs"))])
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in ("differs", "A", "B"):
        table.add_column(heading, overflow="fold")
    for s in found.settings:
        table.add_row(ink.text(f"{s.group}: {s.name}"), ink.text(_value(s.a)), ink.text(_value(s.b)))
    ink.console.print(table)


def _value(value: Any) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SETTING_CHARS else text[: SETTING_CHARS - 3] + "..."


def _table(ink: Ink, rows: list[Row]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("number", no_wrap=True)
    for heading in ("A", "B", "change [95 %]"):
        table.add_column(heading, no_wrap=True, justify="right")
    table.add_column("meaning")
    for row in rows:
        meaning, style = _meaning(row)
        cells = [ink.text(row.name), ink.text(number(row.a, row.unit)), ink.text(number(row.b, row.unit))]
        table.add_row(*cells, ink.text(_change(row)), ink.text(meaning, style))
    return table


def number(value: float | None, unit: str) -> str:
    """A value in the unit that a person reads; `-` when it is not known."""
    if value is None:
        return "-"
    match unit:
        case "s":
            return seconds(value)
        case "ratio":
            return percent(value)
        case "B":
            return size(value)
        case "count":
            return whole(value)
    return f"{figures(value)} {unit}"


def _change(row: Row) -> str:
    if row.unit == "B" and row.change is not None:
        return f"{'+' if row.change >= 0 else ''}{size(row.change)}"
    return change_text(row)


def _meaning(row: Row) -> tuple[str, str]:
    if row.verdict in ("higher", "lower"):
        if row.better == "neither":
            return f"B is {row.verdict}", _STYLES["changed"]
        kind = "better" if row.verdict == row.better else "worse"
        return f"B is {kind}", _STYLES[kind]
    if row.verdict == "hint":
        return "a hint only", _STYLES["hint"]
    if row.verdict in ("n_too_small", "not_measured") and row.why:
        return row.why, "dim"
    return _VERDICTS[row.verdict], "dim"
