"""A report as content: what a page says, before it is HTML or Markdown.

Both renderers read these blocks, so that a ticket and a page never tell two stories. Texts are plain;
each renderer makes them harmless in its own language (`report.sanitize`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Tone = Literal["", "good", "warn", "bad", "dim"]


@dataclass(frozen=True, slots=True)
class Said:
    """Words with a tone; `foreign` when they are not words of the page (an English sentence of a rule,
    a server's answer) and keep their own language."""

    text: str
    tone: Tone = ""
    foreign: bool = False
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Num:
    """A number as it is read, with the value that a column sorts and a file exports by."""

    text: str
    value: float | None = None
    tone: Tone = ""
    note: str = ""
    """Smaller, behind it: an interval, or why there is no number."""


Inline = str | Said | Num


@dataclass(frozen=True, slots=True)
class Para:
    text: Inline


@dataclass(frozen=True, slots=True)
class Bullets:
    items: Sequence[Inline]


@dataclass(frozen=True, slots=True)
class Facts:
    """Labels with their values."""

    rows: Sequence[tuple[str, Inline]]


@dataclass(frozen=True, slots=True)
class Pre:
    """Lines that keep their form: commands, a file."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """`columns` that hold numbers are named in `numeric` (by index). `name` is its file name as CSV."""

    name: str
    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Inline]]
    numeric: frozenset[int] = frozenset()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """An entry of a chart's legend; `style` is the class that its mark has (`s1`, `s2`, ...)."""

    style: str
    label: str
    mark: Literal["line", "dash", "area", "dot"] = "line"


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart and the numbers under it. `draw(width)` gives the inside of an SVG of that width and its
    height; nothing of it is foreign markup."""

    name: str
    title: str
    description: str
    draw: Callable[[int], tuple[str, int]]
    table: Table
    legend: Sequence[Series] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """One of the numbers of the first screen."""

    label: str
    value: str
    interval: str
    note: str = ""
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class Tiles:
    tiles: Sequence[Tile]


@dataclass(frozen=True, slots=True)
class Card:
    """A framed group with a tone: the verdict, a finding."""

    title: str
    blocks: Sequence[Block]
    tone: Tone = ""
    label: str = ""
    """Small, above the title."""


Block = Para | Bullets | Facts | Pre | Table | Figure | Tiles | Card


@dataclass(slots=True)
class Section:
    """A part of the report with a heading and an anchor."""

    id: str
    title: str
    blocks: list[Block] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """The whole: a title, what stands above everything, the first screen, the sections."""

    lang: str
    title: str
    subtitle: str
    badges: list[Said]
    first: list[Block]
    sections: list[Section]
    footer: str = ""
    sections_title: str = ""


MOST_TITLE, MOST_SUBTITLE = 120, 240


def clipped(text: str, most: int = MOST_TITLE) -> str:
    """A name out of a file or a server must not fill the first screen: its start and its end are kept."""
    if len(text) <= most:
        return text
    end = most // 4
    return f"{text[: most - end - 1]}…{text[-end:]}"
