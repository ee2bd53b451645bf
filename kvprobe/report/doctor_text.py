"""An examination on a terminal: a line a check, its fix below it."""

from __future__ import annotations

from rich.console import Console

from kvprobe.doctor.model import Examination
from kvprobe.report.ink import Ink

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "unknown": "yellow", "skipped": "dim"}


def render_examination(found: Examination, console: Console) -> None:
    """The whole page; the last line counts."""
    ink = Ink(console)
    ink.rows([("doctor", ink.text(found.target or "this machine", "bold"))])
    ink.blank()
    rows = []
    for check in found.checks:
        label = check.id.removeprefix("client_").replace("_", " ")
        rows.append((label, ink.join((f"{check.status:8}", _STYLES[check.status]), (check.text, ""))))
        if check.fix is not None:
            rows.append(("", ink.join(("    fix: ", "bold"), (check.fix, ""))))
    ink.rows(rows)
    ink.blank()
    counts = {status: sum(1 for c in found.checks if c.status == status) for status in _STYLES}
    told = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
    ink.rows([("verdict", ink.text(told, "bold green" if found.ok else "bold red"))])
