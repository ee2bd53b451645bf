"""Page one: for who decides. No jargon, and one bar of demand against capacity."""

from __future__ import annotations

from kvprobe.report.content import (
    Block,
    Bullets,
    Card,
    Figure,
    Num,
    Para,
    Said,
    Series,
    Table,
    Tile,
    Tiles,
    Tone,
)
from kvprobe.report.prelaunch.risks import risks
from kvprobe.report.prelaunch.verdict import Judgement, gates, judge, not_tested
from kvprobe.report.prelaunch.view import (
    Measure,
    Prelaunch,
    amount,
    capacity,
    costs,
    demand,
    growth_months,
    headroom,
)
from kvprobe.report.scales import Scale, text_width
from kvprobe.report.svg import FONT_PX, Drawing, fitting
from kvprobe.summary.units import figures, percent

_TONE: dict[str, Tone] = {"ready": "good", "not_ready": "bad", "not_shown": "warn"}


def manager_page(view: Prelaunch) -> list[Block]:
    w, told = view.w, judge(view)
    blocks: list[Block] = [
        Card(
            told.sentence,
            _grounds(view, told),
            _TONE[told.answer],
            label=w("Verdict · confidence {sure}", sure=told.confidence),
        ),
        Tiles(_tiles(view)),
    ]
    have = capacity(view)
    need = demand(view, have.unit) if have is not None else None
    if have is not None:
        blocks.append(_bar(view, have, need))
    found = risks(view, bool(gates(view)))
    if found:
        items = [f"{risk.text} ({w('owner')}: {risk.owner})" for risk in found]
        blocks.append(Card(w("The gravest risks"), [Bullets(items)]))
    blocks.append(Card(w("What was not tested"), [Bullets(not_tested(view))]))
    return blocks


def _grounds(view: Prelaunch, told: Judgement) -> list[Block]:
    w = view.w
    out: list[Block] = [Para(w("Confidence {sure}: {why}.", sure=told.confidence, why=told.because))]
    if told.missing:
        out += [Para(Said(w("Before it can be called ready:"), strong=True)), Bullets(told.missing)]
    return out


def _tiles(view: Prelaunch) -> list[Tile]:
    return [_room_tile(view), _growth_tile(view), *_cost_tiles(view)]


def _room_tile(view: Prelaunch) -> Tile:
    w, have = view.w, capacity(view)
    need = demand(view, have.unit) if have is not None else None
    if have is None or need is None:
        lacks = w("no capacity is known") if have is None else w("no demand was stated: give --demand")
        return Tile(w("headroom"), w("not known"), "", lacks, "warn")
    room = headroom(have, need)
    shown = percent(room) if have.exact else w("at least {amount}", amount=percent(room))
    return Tile(
        w("headroom"),
        shown,
        f"{amount(view, have)} / {amount(view, need)}",
        w("capacity over demand"),
        "bad" if room < 0 else "good",
    )


def _growth_tile(view: Prelaunch) -> Tile:
    w, have = view.w, capacity(view)
    need = demand(view, have.unit) if have is not None else None
    if have is None or need is None or view.growth is None:
        return Tile(w("months of growth"), w("not known"), "", w("give --demand and --growth"), "warn")
    months = growth_months(headroom(have, need), view.growth)
    if months is None:
        return Tile(w("months of growth"), w("no end"), "", w("no growth was stated"))
    return Tile(
        w("months of growth"),
        f"{months:.1f}",
        "",
        w("at {g} a month: log(1 + headroom) / log(1 + growth)", g=percent(view.growth)),
    )


def _cost_tiles(view: Prelaunch) -> list[Tile]:
    w, found = view.w, costs(view)
    if found is None:
        return [Tile(w("cost"), w("not known"), "", w("give --price-per-hour to the plan"), "warn")]
    month = Tile(
        w("cost a month"),
        figures(found.per_month),
        w("{n} an hour x 730 h", n=figures(found.per_hour)),
        w("one replica, in the currency of the price"),
    )
    full = figures(found.million_full) if found.million_full is not None else w("not known")
    note = found.source_full if found.million_full is not None else w("needs a measured output speed")
    million = Tile(
        w("per million output tokens, full load"),
        full,
        "",
        note,
        "" if found.million_full is not None else "warn",
    )
    if found.million_expected is None:
        return [month, million]
    tile = Tile(
        w("per million output tokens, expected load"),
        figures(found.million_expected),
        "",
        w("the same price over the demanded tokens"),
    )
    return [month, million, tile]


def _bar(view: Prelaunch, have: Measure, need: Measure | None) -> Figure:
    w = view.w
    bars = [(w("capacity"), have.value, "s3", amount(view, have), have.source)]
    if need is not None:
        bars.insert(0, (w("demand"), need.value, "s2", amount(view, need), need.source))
    told = (
        w("{have} of capacity; no demand was stated.", have=amount(view, have))
        if need is None
        else w("{need} are demanded, {have} are there.", need=amount(view, need), have=amount(view, have))
    )
    return Figure(
        name="demand-capacity",
        title=w("Demand against capacity"),
        description=told,
        draw=lambda width: _draw([(a, b, c, d) for a, b, c, d, _ in bars], width),
        legend=[Series(style, name, "area") for name, _, style, _, _ in bars],
        table=Table(
            name="demand-capacity",
            caption=w("Demand against capacity"),
            columns=[w("quantity"), w("amount"), w("source")],
            rows=[[name, Num(text, value), source] for name, value, _, text, source in bars],
            numeric=frozenset((1,)),
        ),
    )


def _draw(bars: list[tuple[str, float, str, str]], width: int) -> tuple[str, int]:
    """Names and amounts above each bar: at any width they have room."""
    d = Drawing()
    x = Scale(0.0, max(value for _, value, _, _ in bars) or 1.0, 0.0, float(width))
    for i, (name, value, style, text) in enumerate(bars):
        y = 52.0 * i
        d.text(0, y + 14, fitting(name, width * 0.4))
        d.text(min(width, max(x(value), text_width(name + text, FONT_PX) + 24)), y + 14, text, "tick", "end")
        d.rect(0, y + 20, max(x(value), 2), 22, style, f"{name}: {text}")
    return d.out(), 52 * len(bars)
