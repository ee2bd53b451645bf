"""The same report as Markdown, for a ticket: every block that the page has, charts as their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvprobe.report.content import (
    Block,
    Bullets,
    Card,
    Facts,
    Figure,
    Inline,
    Num,
    Para,
    Pre,
    Report,
    Said,
    Table,
    Tiles,
)
from kvprobe.report.sanitize import clean
from kvprobe.report.sanitize import markdown as safe
from kvprobe.report.words import Words, words

MOST_ROWS = 30
"""Of a table; the page and the run directory have all."""


def render_markdown(report: Report) -> str:
    """The whole text. Every word is escaped: a model's answer cannot become a link or a heading."""
    w = words("zh" if report.lang == "zh" else "en")
    out = [f"# {safe(report.title)}", safe(report.subtitle)]
    if report.badges:
        out.append(" · ".join(f"**{safe(b.text)}**" for b in report.badges))
    out += [_block(block, w) for block in report.first]
    for section in report.sections:
        out.append(f"## {safe(section.title)}")
        out += [_block(block, w) for block in section.blocks]
    if report.footer:
        out.append(f"---\n\n{safe(report.footer)}")
    return "\n\n".join(part for part in out if part) + "\n"


def _inline(item: Inline) -> str:
    if isinstance(item, Num):
        return safe(f"{item.text} {item.note}".strip())
    if isinstance(item, Said):
        return f"**{safe(item.text)}**" if item.strong else safe(item.text)
    return safe(item)


def _block(block: Block, w: Words) -> str:
    kinds: dict[type, Callable[[Any], str]] = {
        Para: lambda b: _inline(b.text),
        Bullets: lambda b: "\n".join(f"- {_inline(i)}" for i in b.items),
        Facts: lambda b: "\n".join(f"- {safe(name)}: {_inline(item)}" for name, item in b.rows),
        Pre: _pre,
        Table: lambda b: _table(b, w),
        Figure: lambda b: f"### {safe(b.title)}\n\n{safe(b.description)}\n\n{_table(b.table, w)}",
        Tiles: lambda b: _tiles(b),
        Card: lambda b: _card(b, w),
    }
    return kinds[type(block)](block)


def _pre(block: Pre) -> str:
    """Indented, since a fence can be closed by the text inside it."""
    return "\n".join("    " + clean(line) for line in block.text.splitlines())


def _card(block: Card, w: Words) -> str:
    head = f"**{safe(block.title)}**"
    if block.label:
        head = f"{safe(block.label)}: {head}"
    return "\n\n".join([head, *(_block(inner, w) for inner in block.blocks)])


def _tiles(block: Tiles) -> str:
    return "\n".join(
        f"- {safe(t.label)}: **{safe(t.value)}** {safe(f'{t.interval} {t.note}'.strip())}".rstrip()
        for t in block.tiles
    )


def _table(block: Table, w: Words) -> str:
    if not block.rows:
        return ""
    marks = ["---:" if i in block.numeric else "---" for i in range(len(block.columns))]
    shown = [_row([_inline(cell) for cell in row]) for row in block.rows[:MOST_ROWS]]
    lines = [_row([safe(c) for c in block.columns]), _row(marks), *shown]
    more = len(block.rows) - MOST_ROWS
    if more > 0:
        lines.append("\n" + safe(w("... and {n} more rows, in report.html", n=more)))
    if block.note:
        lines.append("\n" + safe(block.note))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
