"""SVG by hand: the few shapes that the charts of a report need.

Colours are classes (`s1` to `s6`, `red`, `grid`): the page's style sheet knows light and dark. All texts
go through the sanitiser; nothing else of a chart comes from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvprobe.report.sanitize import html as safe
from kvprobe.report.scales import Scale, text_width

FONT_PX = 12.0
TOP, BOTTOM, RIGHT = 26.0, 30.0, 14.0
Format = Callable[[float], str]


class Drawing:
    """Collects shapes; coordinates in px with one digit after the point."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str) -> None:
        self.parts.append(f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def path(self, points: Sequence[tuple[float, float]], style: str) -> None:
        if points:
            told = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
            self.parts.append(f'<path class="{style}" d="M{told}"/>')

    def rect(self, x: float, y: float, width: float, height: float, style: str, tip: str = "") -> None:
        shape = (
            f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" '
            f'height="{max(height, 0):.1f}"'
        )
        self.parts.append(f"{shape}><title>{safe(tip)}</title></rect>" if tip else f"{shape}/>")

    def dot(self, x: float, y: float, style: str, radius: float = 3.0, tip: str = "") -> None:
        shape = f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"'
        self.parts.append(f"{shape}><title>{safe(tip)}</title></circle>" if tip else f"{shape}/>")

    def text(self, x: float, y: float, words: str, style: str = "", anchor: str = "start") -> None:
        kind = f' class="{style}"' if style else ""
        self.parts.append(f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{safe(words)}</text>')

    def out(self) -> str:
        return "".join(self.parts)


def left_margin(labels: Sequence[str]) -> float:
    """Room for the labels of a vertical axis."""
    return max((text_width(label, FONT_PX) for label in labels), default=0.0) + 10.0


def y_axis(drawing: Drawing, scale: Scale, left: float, right: float, form: Format, most: int = 5) -> None:
    """Grid lines across, their values to the left."""
    for value in scale.ticks(most):
        y = scale(value)
        drawing.line(left, y, right, y, "grid")
        drawing.text(left - 6, y + 4, form(value), "tick", "end")


def count_axis(
    drawing: Drawing, scale: Scale, left: float, right: float, form: Format, most: int = 5
) -> None:
    """A `y_axis` of things that are counted: no value between two whole numbers."""
    y_axis(drawing, scale, left, right, form, max(1, min(most, int(scale.hi))))


def x_axis(drawing: Drawing, scale: Scale, bottom: float, form: Format, top: float | None = None) -> None:
    """The baseline and its values; the first and last stay inside the drawing."""
    drawing.line(scale.start, bottom, scale.end, bottom, "axis")
    most = max(2, int((scale.end - scale.start) / 80))
    taken = -1e9
    for value in scale.ticks(most):
        x, words = scale(value), form(value)
        half = text_width(words, FONT_PX) / 2
        at = min(max(x, half), scale.end + RIGHT - half)
        if at - half < taken + 8:
            continue
        taken = at + half
        drawing.line(x, bottom, x, bottom + 4, "axis")
        if top is not None:
            drawing.line(x, top, x, bottom, "grid")
        drawing.text(at, bottom + 18, words, "tick", "middle")


def panel_title(drawing: Drawing, x: float, y: float, words: str) -> None:
    """What the vertical axis of a panel shows: above it, where it is read first."""
    drawing.text(x, y, words, "label")


def fitting(words: str, room_px: float) -> str:
    """`words`, cut with an ellipsis to the room that there is."""
    if text_width(words, FONT_PX) <= room_px:
        return words
    kept = words
    while kept and text_width(kept + "…", FONT_PX) > room_px:
        kept = kept[:-1]
    return kept.rstrip() + "…" if kept else ""
