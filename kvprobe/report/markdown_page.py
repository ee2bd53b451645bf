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
from kvprobe.report.markdown_text import cell, fence, label, markdown
from kvprobe.report.sanitize import clean
from kvprobe.report.words import words

MOST_ROWS = 30
MOST_CHART_ROWS = 12
"""Of a table, and of the numbers of a chart; the page and the run directory have all."""


def render_markdown(report: Report) -> str:
    """The whole text. Every word is escaped: a model's answer cannot become a link or a heading."""
    return _Writer(report, markdown, label, cell).whole()


def render_plain(report: Report) -> str:
    """The same for a terminal: nothing is escaped for Markdown, what moves a cursor is shown as its code."""
    return _Writer(report, clean, lambda text: f"{clean(text)}:", clean).whole()


Safe = Callable[[object], str]


class _Writer:
    """`safe` is for words anywhere, `label` adds a colon, `cell` for those in a table."""

    def __init__(self, report: Report, safe: Safe, label: Safe, cell: Safe) -> None:
        self.report, self.safe, self.label, self.cell = report, safe, label, cell
        self._told: list[Table] = []
        self.w = words("zh" if report.lang == "zh" else "en")
        self._kinds: dict[type, Callable[[Any], str]] = {
            Para: lambda b: self.inline(b.text),
            Bullets: lambda b: "\n".join(f"- {self.inline(i)}" for i in b.items),
            # Another mark, so that it is no part of a list right above it.
            Facts: lambda b: "\n".join(f"* {label(name)} {self.inline(item)}" for name, item in b.rows),
            Pre: _pre,
            Table: self.own_table,
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

    def inline(self, item: Inline, safe: Safe | None = None) -> str:
        safe = safe or self.safe
        if isinstance(item, Num):
            return safe(f"{item.text} {item.note}".strip())
        if isinstance(item, Said):
            return f"**{safe(item.text)}**" if item.strong and item.text.strip() else safe(item.text)
        return safe(item)

    def figure(self, block: Figure) -> str:
        """A chart's words and its numbers; a table that several charts share stands once."""
        parts = [f"### {self.safe(block.title)}", self.safe(block.description), self.safe(block.note)]
        if block.table not in self._told:
            self._told.append(block.table)
            parts.append(self.table(block.table, MOST_CHART_ROWS))
        return "\n\n".join(part for part in parts if part)

    def own_table(self, block: Table) -> str:
        """In a page a table may follow the chart that was drawn of it."""
        if block in self._told and len(block.rows) <= MOST_CHART_ROWS:
            return ""
        self._told.append(block)
        return self.table(block, MOST_ROWS)

    def card(self, block: Card) -> str:
        head = f"**{self.safe(block.title)}**"
        if block.label:
            head = f"{self.label(block.label)} {head}"
        return "\n\n".join([head, *(self.block(inner) for inner in block.blocks)])

    def tiles(self, block: Tiles) -> str:
        safe = self.safe
        return "\n".join(
            f"- {self.label(t.label)} **{safe(t.value)}** {safe(f'{t.interval} {t.note}'.strip())}".rstrip()
            for t in block.tiles
        )

    def table(self, block: Table, most: int) -> str:
        if not block.rows:
            return ""
        marks = ["---:" if i in block.numeric else "---" for i in range(len(block.columns))]
        shown = [_row([self.inline(item, self.cell) for item in row]) for row in _some(block, most)]
        lines = [_row([self.cell(c) for c in block.columns]), _row(marks), *shown]
        more = len(block.rows) - most
        if more > 0:
            told = (
                self.w("{n} of {all} rows, evenly spread; report.html has all", n=most, all=len(block.rows))
                if _is_series(block)
                else self.w("... and {n} more rows, in report.html", n=more)
            )
            lines.append("\n" + self.safe(told))
        if block.note:
            lines.append("\n" + self.safe(block.note))
        return "\n".join(lines)


def _pre(block: Pre) -> str:
    return fence("\n".join(clean(line) for line in block.text.splitlines()))


def _some(block: Table, most: int) -> Sequence[Sequence[Inline]]:
    """The first rows; of a series, rows from its first to its last."""
    rows = block.rows
    if len(rows) <= most or not _is_series(block):
        return rows[:most]
    return [rows[i * (len(rows) - 1) // (most - 1)] for i in range(most)]


def _is_series(block: Table) -> bool:
    """Whether the rows go along an axis: the numbers of the first column rise."""
    firsts = [row[0] if row else "" for row in block.rows]
    values = [item.value for item in firsts if isinstance(item, Num) and item.value is not None]
    return len(values) == len(firsts) and values[0] < values[-1] and values == sorted(values)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
