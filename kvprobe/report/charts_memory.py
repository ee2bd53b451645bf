"""Charts of memory and of lengths: what the pool held, what a prefix can save, prompts against answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvprobe.report.content import Figure, Inline, Num, Series, Table
from kvprobe.report.scales import Scale, nice_step, nice_top, text_width
from kvprobe.report.svg import (
    BOTTOM,
    FONT_PX,
    RIGHT,
    TOP,
    Drawing,
    fitting,
    left_margin,
    panel_title,
    x_axis,
    y_axis,
)
from kvprobe.report.words import Words
from kvprobe.summary.units import percent, size, whole

ROW = 30.0
NARROW_BELOW = 500


@dataclass(frozen=True, slots=True)
class Bar:
    """One step of a waterfall: from where to where (bytes), in which colour, and what stands beside it."""

    label: str
    start: float
    end: float
    style: str
    note: str = ""


def waterfall(
    w: Words, name: str, title: str, description: str, bars: Sequence[Bar], note: str = ""
) -> Figure:
    """From a whole to what is left, each step beginning where the one before ended."""
    rows: list[list[Inline]] = [
        [bar.label, Num(size(abs(bar.end - bar.start)), abs(bar.end - bar.start)), bar.note] for bar in bars
    ]
    return Figure(
        name=name,
        title=title,
        description=description,
        draw=lambda width: _waterfall(bars, width),
        table=Table(
            name=name,
            caption=title,
            columns=[w("part"), w("size"), w("source")],
            rows=rows,
            numeric=frozenset((1,)),
        ),
        note=note,
    )


def _waterfall(bars: Sequence[Bar], width: int) -> tuple[str, int]:
    """Labels in a column of their own (above the bar on a phone), amounts behind the bar."""
    d = Drawing()
    narrow = width < NARROW_BELOW
    row = ROW + 16 if narrow else ROW
    amounts = [size(abs(bar.end - bar.start)) for bar in bars]
    room = max(text_width(a, FONT_PX) for a in amounts) + 8
    left = 0.0 if narrow else min(left_margin([bar.label for bar in bars]), width * 0.4)
    top = max(max(bar.start, bar.end) for bar in bars) or 1.0
    x = Scale(0.0, top, left, width - room)
    for i, (bar, amount) in enumerate(zip(bars, amounts, strict=True)):
        y = row * i + (18 if narrow else 2)
        if narrow:
            d.text(0, y - 5, fitting(bar.label, width), "note")
        else:
            d.text(left - 10, y + 17, fitting(bar.label, left - 10), "", "end")
        a, b = sorted((x(bar.start), x(bar.end)))
        d.rect(a, y, max(b - a, 1.5), ROW - 8, bar.style, f"{bar.label}: {amount}")
        d.text(b + 6, y + 16, amount, "tick")
        if i + 1 < len(bars):
            edge = x(bar.end)
            d.line(edge, y + ROW - 8, edge, y + row, "ident")
    return d.out(), int(row * len(bars) + 6)


@dataclass(frozen=True, slots=True)
class HitPoint:
    """One group of requests: the tokens that they could share, and the median share of the prompt that
    came from the cache."""

    prefix_tokens: float
    hit: float
    requests: int
    label: str


def hit_chart(w: Words, points: Sequence[HitPoint], block_tokens: int, rest_tokens: float) -> Figure:
    """What whole blocks of a shared prefix can save, and what was saved."""
    most = max([p.prefix_tokens for p in points] + [4.0 * block_tokens]) * 1.15
    edges = _edges(most, block_tokens, rest_tokens)
    return Figure(
        name="hit-by-prefix",
        title=w("Prefix hits against prefix length"),
        description=w(
            "Only whole blocks of {block} tokens are reused: the line is the best that a prefix of that "
            "length allows beside {rest} tokens of its own; marks are what was measured.",
            block=block_tokens,
            rest=whole(rest_tokens),
        ),
        draw=lambda width: _hits(w, points, edges, most, width),
        legend=[
            Series("s6", w("best with whole blocks")),
            Series("s3", w("measured (median of a group)"), "dot"),
        ],
        table=Table(
            name="hit-by-prefix",
            caption=w("Measured prefix hits"),
            columns=[
                w("shared prefix, tokens"),
                w("hit rate"),
                w("best possible"),
                w("requests"),
                w("group"),
            ],
            rows=_hit_rows(points, block_tokens, rest_tokens),
            numeric=frozenset((0, 1, 2, 3)),
        ),
    )


def _hit_rows(points: Sequence[HitPoint], block_tokens: int, rest_tokens: float) -> list[list[Inline]]:
    return [
        [
            Num(whole(p.prefix_tokens), p.prefix_tokens),
            Num(percent(p.hit), p.hit),
            Num(percent(best := best_hit(p.prefix_tokens, block_tokens, rest_tokens)), best),
            Num(whole(p.requests), p.requests),
            p.label,
        ]
        for p in points
    ]


def best_hit(prefix_tokens: float, block_tokens: int, rest_tokens: float) -> float:
    """Share of a prompt of prefix and rest that whole blocks of the prefix make."""
    whole_blocks = math.floor(prefix_tokens / block_tokens) * block_tokens
    total = prefix_tokens + rest_tokens
    return whole_blocks / total if total > 0 else 0.0


def _edges(most: float, block: int, rest: float) -> list[tuple[float, float]]:
    """The steps of the best line; between two edges it falls a little, as the prompt grows without a block.
    With more than 400 blocks a step is under a pixel: then only so many are drawn."""
    every = max(1, math.ceil(most / block / 400)) * block
    points: list[tuple[float, float]] = [(0.0, 0.0)]
    at = float(every)
    while at < most:
        points += [(at - 1e-9, best_hit(at - 1, block, rest)), (at, best_hit(at, block, rest))]
        at += every
    points.append((most, best_hit(most, block, rest)))
    return points


def _hits(
    w: Words, points: Sequence[HitPoint], edges: Sequence[tuple[float, float]], most: float, width: int
) -> tuple[str, int]:
    d = Drawing()
    bottom = TOP + 190
    y = Scale(0.0, 1.0, bottom, TOP)
    left = left_margin(["100 %"])
    x = Scale(0.0, most, left, width - RIGHT)
    panel_title(d, 0, TOP - 12, w("share of the prompt from the cache"))
    y_axis(d, y, left, width - RIGHT, lambda v: f"{100 * v:.0f} %", 5)
    d.path([(x(a), y(b)) for a, b in edges], "s6")
    for p in points:
        d.dot(x(p.prefix_tokens), y(p.hit), "s3", 5, f"{whole(p.prefix_tokens)}: {percent(p.hit)}")
    x_axis(d, x, bottom, lambda v: f"{v:,.0f}")
    d.text(
        (left + width - RIGHT) / 2, bottom + BOTTOM + 6, w("tokens of the shared prefix"), "note", "middle"
    )
    return d.out(), int(bottom + BOTTOM + 12)


def lengths_chart(w: Words, pairs: Sequence[tuple[int, int]]) -> Figure:
    """Prompt against answer lengths: how many requests in each cell."""
    ins, outs = [a for a, _ in pairs], [b for _, b in pairs]
    width_in, width_out = _cell(ins, 16), _cell(outs, 8)
    cells = Counter((int(a // width_in), int(b // width_out)) for a, b in pairs)
    rows = [
        [
            Num(_range(i, width_in), i * width_in),
            Num(_range(j, width_out), j * width_out),
            Num(whole(n), n),
            Num(percent(n / len(pairs)), n / len(pairs)),
        ]
        for (i, j), n in sorted(cells.items())
    ]
    return Figure(
        name="lengths",
        title=w("Lengths: prompt against answer"),
        description=w(
            "{n} requests; prompts of {a} to {b} tokens, answers of {c} to {d}. The darker, the more.",
            n=whole(len(pairs)),
            a=whole(min(ins)),
            b=whole(max(ins)),
            c=whole(min(outs)),
            d=whole(max(outs)),
        ),
        draw=lambda width: _lengths(w, cells, width_in, width_out, width),
        table=Table(
            name="lengths",
            caption=w("Requests by length"),
            columns=[w("prompt tokens"), w("answer tokens"), w("requests"), w("share")],
            rows=rows,
            numeric=frozenset(range(4)),
        ),
    )


def _cell(values: Sequence[int], most: int) -> float:
    """A round width of cells, so that there are about `most` of them."""
    return max(1.0, nice_step(max(max(values), 1) / most))


def _range(i: int, width: float) -> str:
    low, high = i * width, (i + 1) * width - 1
    return whole(low) if high <= low else f"{whole(low)}-{whole(high)}"


def _lengths(
    w: Words, cells: Counter[tuple[int, int]], win: float, wout: float, width: int
) -> tuple[str, int]:
    d = Drawing()
    most = max(cells.values())
    top_in, top_out = (max(c[k] for c in cells) + 1 for k in (0, 1))
    bottom = TOP + max(96.0, 24.0 * min(top_out, 9))
    y = Scale(0.0, top_out * wout, bottom, TOP)
    left = left_margin([f"{v:,.0f}" for v in y.ticks(5)])
    x = Scale(0.0, top_in * win, left, width - RIGHT)
    panel_title(d, 0, TOP - 12, w("answer tokens"))
    y_axis(d, y, left, width - RIGHT, lambda v: f"{v:,.0f}", 5)
    for (i, j), n in sorted(cells.items()):
        a, b = x(i * win), x((i + 1) * win)
        c, e = y((j + 1) * wout), y(j * wout)
        style = f"t{min(9, int(9 * n / most))}"
        d.rect(a + 0.5, c + 0.5, b - a - 1, e - c - 1, style, f"{_range(i, win)} x {_range(j, wout)}: {n}")
    x_axis(d, x, bottom, lambda v: f"{v:,.0f}")
    d.text((left + width - RIGHT) / 2, bottom + BOTTOM + 6, w("prompt tokens"), "note", "middle")
    return d.out(), int(bottom + BOTTOM + 12)


def memory_chart(
    w: Words, name: str, title: str, lines: Sequence[tuple[str, Sequence[tuple[float, float]]]], span_s: float
) -> Figure:
    """Bytes held over time: a process, a card."""
    from kvprobe.report.charts_time import seconds_tick
    from kvprobe.report.reduce import peaks

    kept = [(label, peaks(list(points))) for label, points in lines]
    top = max(v for _, points in kept for _, v in points)

    def draw(width: int) -> tuple[str, int]:
        d = Drawing()
        unit, word = (2**30, "GiB") if top >= 2**30 else (2**20, "MiB")
        bottom = TOP + 130
        y = Scale(0.0, nice_top(top / unit), bottom, TOP)
        left = left_margin([f"{v:g}" for v in y.ticks(4)])
        x = Scale(0.0, span_s, left, width - RIGHT)
        panel_title(d, 0, TOP - 12, word)
        y_axis(d, y, left, width - RIGHT, lambda v: f"{v:g}", 4)
        for i, (_, points) in enumerate(kept):
            d.path([(x(t), y(v / unit)) for t, v in points], f"s{i % 6 + 1}")
        x_axis(d, x, bottom, seconds_tick)
        return d.out(), int(bottom + BOTTOM)

    return Figure(
        name=name,
        title=title,
        description=w("At most {most}.", most=size(top)),
        draw=draw,
        legend=[Series(f"s{i % 6 + 1}", label) for i, (label, _) in enumerate(kept)],
        table=Table(
            name=name,
            caption=title,
            columns=[w("s since start"), w("memory"), w("of")],
            rows=[[Num(f"{t:.1f}", t), Num(size(v), v), label] for label, points in kept for t, v in points],
            numeric=frozenset((0, 1)),
        ),
    )
