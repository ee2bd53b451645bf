"""The sweeps of a replay on a terminal: one thing changed in steps, and the smallest pool that does."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from kvprobe.plan.simulate.replay import Replay, Smallest, Sweep, SweepRow
from kvprobe.report.ink import Ink
from kvprobe.summary.units import percent, seconds, size

_SWEEP = (
    "",
    "blocks",
    "refused",
    "at once",
    "peak",
    "hits",
    "preempted",
    "queue p95",
    "TTFT p50",
    "p95",
    "e2e p95",
)


def sweep_rows(ink: Ink, sweep: Sweep, found: Replay) -> None:
    ink.blank()
    ink.rows([("sweep", ink.text(sweep.name, "bold"))])
    table = plain_table(_SWEEP)
    for row in sweep.rows:
        style = "bold" if row.value == sweep.knee else ""
        table.add_row(*(ink.text(cell, style) for cell in _sweep_cells(row, found)))
    ink.console.print(table)
    ink.rows([("knee", ink.text(f"{sweep.knee or 'none'}: {sweep.why}"))])


def _sweep_cells(row: SweepRow, found: Replay) -> list[str]:
    def time(value: float | None) -> str:
        return "-" if value is None else seconds(value)

    return [
        row.value,
        f"{row.usable_blocks:,}",
        f"{row.refused:,}",
        f"{row.running_mean:.1f}",
        percent(row.peak_ratio),
        "-" if row.hit_rate is None else percent(row.hit_rate),
        percent(row.preempted_share),
        time(row.queue_p95_s),
        time(row.ttft_p50_s),
        time(row.ttft_p95_s),
        time(row.e2e_p95_s),
    ]


def smallest_text(found: Smallest) -> str:
    if found.usable_blocks is None:
        return f"for {found.limit}: none; {found.why}"
    memory = f" = {size(found.bytes)}" if found.bytes is not None else ""
    return (
        f"for {found.limit}: {found.usable_blocks:,} blocks = {found.tokens:,} tokens{memory}, {found.why} "
        f"({found.tried} pools tried)"
    )


def plain_table(columns: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right", no_wrap=number == 0)
    return table
