"""Predicted against measured: the chart on which a plan is held to its word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvprobe.report.content import Figure, Num, Table
from kvprobe.report.scales import Scale, nice_top
from kvprobe.report.svg import BOTTOM, RIGHT, Drawing, left_margin, x_axis
from kvprobe.report.words import Words
from kvprobe.summary.units import percent


@dataclass(frozen=True, slots=True)
class Pair:
    """One number, predicted and measured; in the same unit."""

    label: str
    predicted: float
    measured: float
    unit: str
    shown: tuple[str, str]


def missed(error: float) -> str:
    """`+1.20 %`; no sign where it rounds to nothing."""
    return f"{100 * error:+.2f} %" if abs(error) >= 5e-5 else "0.00 %"


def honesty_chart(w: Words, pairs: Sequence[Pair]) -> Figure:
    """By how much each prediction missed. Ratios, since bytes and requests share no axis."""
    errors = [p.predicted / p.measured - 1.0 for p in pairs]
    worst = max(abs(e) for e in errors)
    return Figure(
        name="predicted",
        title=w("Predicted against measured"),
        description=w(
            "The largest miss is {worst}; 0 % is a prediction that came true.", worst=percent(worst)
        ),
        draw=lambda width: _honesty(pairs, errors, width),
        table=Table(
            name="predicted",
            caption=w("Predicted against measured"),
            columns=[w("number"), w("predicted"), w("measured"), w("error")],
            rows=[
                [
                    p.label,
                    Num(p.shown[0], p.predicted),
                    Num(p.shown[1], p.measured),
                    Num(missed(e), e),
                ]
                for p, e in zip(pairs, errors, strict=True)
            ],
            numeric=frozenset((1, 2, 3)),
        ),
    )


def _honesty(pairs: Sequence[Pair], errors: Sequence[float], width: int) -> tuple[str, int]:
    d = Drawing()
    reach = max(0.05, nice_top(max(abs(e) for e in errors)))
    narrow = width < 500
    left = 0.0 if narrow else left_margin([p.label for p in pairs])
    row = 40.0 if narrow else 28.0
    bottom = 8 + row * len(pairs)
    x = Scale(-reach, reach, left + 12, width - RIGHT - 12)
    x_axis(d, x, bottom, lambda v: f"{100 * v:+g} %" if v else "0", 4)
    d.line(x(0), 4, x(0), bottom, "axis")
    for i, (p, e) in enumerate(zip(pairs, errors, strict=True)):
        y = 8 + row * i + row / 2
        if narrow:
            d.text(0, y - 9, p.label, "note")
        else:
            d.text(left - 8, y + 4, p.label, "", "end")
        d.line(x(0), y + (6 if narrow else 0), x(e), y + (6 if narrow else 0), "w1")
        d.dot(x(e), y + (6 if narrow else 0), "s1", 5, f"{p.label}: {missed(e)}")
    return d.out(), int(bottom + BOTTOM)
