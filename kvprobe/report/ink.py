"""Drawing on a terminal: a page of labelled lines, and a sparkline.

Everything is plain `rich.text.Text`; foreign words go through the sanitiser first. What the
terminal's encoding cannot carry is written as its code.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.report.sanitize import clean

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-=+*#@"
LABEL_WIDTH = 13


class Ink:
    """Writes to one console in the characters that it can carry."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.encoding = (console.encoding or "ascii").lower()
        self.unicode = self.encoding.replace("_", "-").startswith("utf")

    def text(self, words: object, style: str = "", *, limit: int = 2_000) -> Text:
        """Any words, made harmless and encodable."""
        shown = clean(words, limit=limit)
        if not self.unicode:
            shown = shown.encode(self.encoding, "backslashreplace").decode(self.encoding)
        return Text(shown, style=style, overflow="fold")

    def join(self, *parts: tuple[object, str]) -> Text:
        """Several styled pieces on one line."""
        line = Text(overflow="fold")
        for words, style in parts:
            line.append_text(self.text(words, style))
        return line

    def blank(self) -> None:
        self.console.print()

    def line(self, words: object, style: str = "") -> None:
        self.console.print(self.text(words, style))

    def rows(self, rows: Sequence[tuple[str, RenderableType]], *, label_style: str = "bold") -> None:
        """Labels in a column of their own, the words beside them wrapped under each other."""
        grid = Table.grid(padding=(0, 2, 0, 0), expand=False)
        grid.add_column(width=LABEL_WIDTH, no_wrap=True)
        grid.add_column(overflow="fold")
        for label, body in rows:
            grid.add_row(self.text(label, label_style), body)
        self.console.print(grid)

    def sparkline(self, points: Sequence[tuple[float, float]], width: int, top: float = 1.0) -> Text:
        """Values over time, drawn from 0 to `top`; a column shows the largest value that falls into it.

        A column without a reading repeats nothing: it stays empty.
        """
        levels = BLOCKS if self.unicode else ASCII_LEVELS
        return Text("".join(" " if v is None else _level(v / top, levels) for v in columns(points, width)))


def _level(value: float, levels: str) -> str:
    inside = min(max(value, 0.0), 1.0)
    return levels[min(int(inside * len(levels)), len(levels) - 1)]


def columns(points: Sequence[tuple[float, float]], width: int) -> list[float | None]:
    """The largest value of each of at most `width` equal spans of time: peaks stay."""
    if not points or width < 1:
        return []
    first, last = points[0][0], points[-1][0]
    count = min(width, len(points))
    out: list[float | None] = [None] * count
    for t, value in points:
        i = min(int((t - first) / (last - first) * count), count - 1) if last > first else 0
        seen = out[i]
        out[i] = value if seen is None else max(seen, value)
    return out
