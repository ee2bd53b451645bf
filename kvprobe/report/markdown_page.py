"""The same report as Markdown, for a ticket: every block that the page has, charts as their numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvprobe.report.content import (
    MOST_SUBTITLE,
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
    clipped,
)
from kvprobe.report.sanitize import clean, markdown
from kvprobe.report.words import words

MOST_ROWS = 30
"""Of a table; the page and the run directory have all."""


def render_markdown(report: Report) -> str:
    """The whole text. Every word is escaped: a model's answer cannot become a link or a heading."""
    return _Writer(report, markdown).whole()


def render_plain(report: Report) -> str:
    """The same for a terminal: nothing is escaped for Markdown, what moves a cursor is shown as its code."""
    return _Writer(report, clean).whole()


class _Writer:
    def __init__(self, report: Report, safe: Callable[[object], str]) -> None:
        self.report, self.safe = report, safe
        self.w = words("zh" if report.lang == "zh" else "en")
        self._kinds: dict[type, Callable[[Any], str]] = {
            Para: lambda b: self.inline(b.text),
            Bullets: lambda b: "\n".join(f"- {self.inline(i)}" for i in b.items),
            Facts: lambda b: "\n".join(f"- {safe(name)}: {self.inline(item)}" for name, item in b.rows),
            Pre: _pre,
            Table: self.table,
            Figure: self.figure,
            Tiles: self.tiles,
            Card: self.card,
        }

    def whole(self) -> str:
        report, safe = self.report, self.safe
        out = [f"# {safe(clipped(report.title))}", safe(clipped(report.subtitle, MOST_SUBTITLE))]
        if report.badges:
            out.append(" · ".join(f"**{safe(b.text)}**" for b in report.badges))
        out += [self.block(block) for block in report.first]
        for section in report.sections:
            out.append(f"## {safe(section.title)}")
            out += [self.block(block) for block in section.blocks]
        if report.footer:
            out.append(f"---\n\n{safe(report.footer)}")
        return "\n\n".join(part for part in out if part) + "\n"

    def block(self, block: Block) -> str:
        return self._kinds[type(block)](block)

    def inline(self, item: Inline) -> str:
        if isinstance(item, Num):
            return self.safe(f"{item.text} {item.note}".strip())
        if isinstance(item, Said):
            return f"**{self.safe(item.text)}**" if item.strong else self.safe(item.text)
        return self.safe(item)

    def figure(self, block: Figure) -> str:
        return f"### {self.safe(block.title)}\n\n{self.safe(block.description)}\n\n{self.table(block.table)}"

    def card(self, block: Card) -> str:
        head = f"**{self.safe(block.title)}**"
        if block.label:
            head = f"{self.safe(block.label)}: {head}"
        return "\n\n".join([head, *(self.block(inner) for inner in block.blocks)])

    def tiles(self, block: Tiles) -> str:
        safe = self.safe
        return "\n".join(
            f"- {safe(t.label)}: **{safe(t.value)}** {safe(f'{t.interval} {t.note}'.strip())}".rstrip()
            for t in block.tiles
        )

    def table(self, block: Table) -> str:
        if not block.rows:
            return ""
        marks = ["---:" if i in block.numeric else "---" for i in range(len(block.columns))]
        shown = [_row([self.inline(cell) for cell in row]) for row in block.rows[:MOST_ROWS]]
        lines = [_row([self.safe(c) for c in block.columns]), _row(marks), *shown]
        more = len(block.rows) - MOST_ROWS
        if more > 0:
            lines.append("\n" + self.safe(self.w("... and {n} more rows, in report.html", n=more)))
        if block.note:
            lines.append("\n" + self.safe(block.note))
        return "\n".join(lines)


def _pre(block: Pre) -> str:
    """Indented, since a fence can be closed by the text inside it."""
    return "\n".join("    " + clean(line) for line in block.text.splitlines())


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
