"""The live page: a panel a target, with the KV water level between its two lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from kvprobe.diagnose.rules.pool import IDLE, RED_LINE
from kvprobe.report.content import clipped
from kvprobe.report.ink import Ink
from kvprobe.summary.units import percent
from kvprobe.watch import shown
from kvprobe.watch.model import LABEL_CHARS, TargetView, WatchDocument

PANEL_COLUMNS = 62
"""Narrower panels stand under each other."""
MOST_ENGINES = 32
"""Shown by themselves, data-parallel ones; all are in JSON."""
_LABEL = 10
_FEWEST_CELLS = 6
_COLOURS = {
    "pressure": "bold red",
    "full_and_queueing_once": "yellow",
    "queueing_below_the_red_line": "yellow",
    "queueing_at_low_use": "yellow",
    "queueing_use_unknown": "yellow",
    "restarted": "yellow",
    "unreachable": "bold red",
    "idle": "cyan",
}

Histories = Sequence[Sequence[tuple[float, float]]]


def page(console: Console, document: WatchDocument, histories: Histories, *, live: bool) -> RenderableType:
    """Everything at one instant, for a console of any width."""
    ink = Ink(console)
    many = len(document.targets)
    side_by_side = max(1, min(many, console.width // PANEL_COLUMNS))
    width = console.width // side_by_side
    panels = [
        _panel(ink, view, history, width) for view, history in zip(document.targets, histories, strict=True)
    ]
    grid = Table.grid(expand=False)
    for _ in range(side_by_side):
        grid.add_column(width=width)
    for first in range(0, many, side_by_side):
        grid.add_row(*panels[first : first + side_by_side])
    return Group(grid, *_foot(ink, document, live=live))


def _foot(ink: Ink, document: WatchDocument, *, live: bool) -> list[RenderableType]:
    rows: list[RenderableType] = []
    if document.together is not None:
        rows.append(ink.text(shown.together(document.together), "bold"))
    rows += [ink.text(shown.gpu(gpu)) for gpu in document.gpus or ()]
    if document.gpus is None and document.gpu_note is not None:
        rows.append(ink.text(f"GPU: {document.gpu_note}", "dim"))
    words = f"{document.t_utc[11:19]} UTC"
    words += f", every {document.interval_s:g} s; Ctrl-C ends" if live else ""
    return [*rows, ink.text(words, "dim")]


def _panel(ink: Ink, view: TargetView, history: Sequence[tuple[float, float]], width: int) -> Panel:
    inside = max(20, width - 4)
    style = _COLOURS.get(view.reading.id, "green")
    rows: list[tuple[str, RenderableType]] = [("reading", ink.text(view.reading.text, style))]
    if view.reachable:
        rows += _rows(ink, view, history, inside - _LABEL - 1)
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(width=_LABEL, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, body in rows:
        grid.add_row(ink.text(label, "bold"), body)
    title = ink.text(f"{shown.engine(view)}  {view.url}", limit=inside - 4)
    return Panel(grid, title=title, title_align="left", border_style=style, width=width, box=_box(ink))


def _box(ink: Ink) -> box.Box:
    return box.ROUNDED if ink.unicode else box.ASCII


def _rows(
    ink: Ink, view: TargetView, history: Sequence[tuple[float, float]], width: int
) -> list[tuple[str, RenderableType]]:
    n = view.numbers
    rows: list[tuple[str, RenderableType]] = []
    usage = n["kv_usage"]
    if usage.value is None:
        rows.append(("KV use", ink.text(shown.missing(usage), "dim")))
    else:
        rows += [("KV use", level(ink, usage.value, width)), ("", scale(ink, width))]
    if len(history) > 1:
        rows.append(("history", ink.sparkline(history, min(width, len(history)))))
    if view.engines:
        rows.append(("engines", ink.text(_engines(view))))
    if n["slots"].value is not None:
        fullest = shown.share(n["slot_usage_max"])
        slots = f"{shown.count(n['slots_busy'])} of {shown.count(n['slots'])} busy, the fullest {fullest}"
        rows.append(("slots", ink.text(slots)))
    rows += [
        ("requests", ink.text(_requests(view))),
        ("preempted", ink.text(shown.preemptions(n["preemptions_per_s"]))),
        ("hit rate", ink.text(shown.hit_rate(n["prefix_hit_rate"]))),
        ("TTFT", ink.text(shown.percentiles(n, "ttft"))),
        ("token gap", ink.text(shown.percentiles(n, "itl"))),
        ("tokens", ink.text(_tokens(view))),
        ("memory", ink.text(shown.memory(n))),
    ]
    if view.doubts:
        rows.append(("doubtful", ink.text("; ".join(view.doubts.values()), "yellow")))
    return rows


def _requests(view: TargetView) -> str:
    n = view.numbers
    words = f"{shown.count(n['running'])} running, {shown.count(n['waiting'])} waiting"
    return words + (f", {shown.count(n['swapped'])} swapped or paused" if n["swapped"].value else "")


def _tokens(view: TargetView) -> str:
    made, read = view.numbers["generated_tokens_per_s"], view.numbers["prompt_tokens_per_s"]
    return f"{shown.rate(made, '/s')} generated, {shown.rate(read, '/s')} of prompts{shown.over(made)}"


def _engines(view: TargetView) -> str:
    told = []
    for e in view.engines[:MOST_ENGINES]:
        use = percent(e.kv_usage) if e.kv_usage is not None else "?"
        told.append(
            f"{clipped(e.engine, LABEL_CHARS)}: {use}" + (f" ({e.waiting:.0f} waiting)" if e.waiting else "")
        )
    more = len(view.engines) - MOST_ENGINES
    return ", ".join(told) + (f", and {more} more" if more > 0 else "")


def level(ink: Ink, usage: float, width: int) -> Text:
    """The water level with the idle line at 30 % and the red line at 90 %, and the number behind."""
    number = f" {percent(usage)}"
    cells = max(_FEWEST_CELLS, width - len(number))
    full, empty, idle, red = ("█", "░", "┊", "┃") if ink.unicode else ("#", ".", ":", "|")
    style = "red" if usage >= RED_LINE else "cyan" if usage < IDLE else "green"
    bar = Text(overflow="crop", no_wrap=True)
    filled = min(cells, int(usage * cells))
    marks = {int(IDLE * cells): (idle, "cyan"), min(cells - 1, int(RED_LINE * cells)): (red, "bold red")}
    for (char, how), run in groupby(
        marks.get(cell, (full, style) if cell < filled else (empty, "dim")) for cell in range(cells)
    ):
        bar.append(char * len(list(run)), how)
    return bar.append(number, style)


def scale(ink: Ink, width: int) -> Text:
    """What the two lines are."""
    cells = max(_FEWEST_CELLS, width - len(" 00.0 %"))
    words = [" "] * (cells + 8)
    idle = f"idle {100 * IDLE:.0f} %" if cells >= 20 else f"{100 * IDLE:.0f}"
    for line, text in ((IDLE, idle), (RED_LINE, f"{100 * RED_LINE:.0f} %")):
        at = int(line * cells)
        for offset, char in enumerate(text):
            if at + offset < len(words):
                words[at + offset] = char
    return ink.text("".join(words).rstrip(), "dim")
