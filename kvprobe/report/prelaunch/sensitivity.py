"""The tornado of the inputs: how the cache that the demand takes, and its cost, move with each of them.

    share = requests at once x (prompt x (1 - hit rate) + answer + (block - 1) / 2) / tokens of the pool
    cost a month = share x price of an hour x 730

(block - 1) / 2 is the expected empty tail of a last block: whole blocks would move in jumps. Each input is
moved by a quarter, the others stay. It is a formula and no measurement: a token that hits is
taken as held by another request already, which is the most that sharing can save, and every request counts
at its full length, which is the most that it can hold.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvprobe.report.content import Block, Figure, Inline, Num, Para, Said, Series, Table
from kvprobe.report.prelaunch.view import HOURS_PER_MONTH, Prelaunch, planned_at_once, tokens_per_request
from kvprobe.report.scales import Scale, nice_top, text_width
from kvprobe.report.svg import FONT_PX, Drawing, fitting, left_margin
from kvprobe.summary.units import figures, percent, whole

STEP = 0.25
DEFAULT_BLOCK = 1


@dataclass(frozen=True, slots=True)
class Inputs:
    """Tokens; `hit` is a share of the prompt; `price` of an hour, null when not given."""

    prompt: float
    answer: float
    hit: float
    at_once: float
    price: float | None
    pool: float
    block: int

    def share(self) -> float:
        """Of one replica's pool that the demand takes; above 1 it needs more than one."""
        tokens = self.prompt * (1.0 - min(1.0, self.hit)) + self.answer + (self.block - 1) / 2
        return self.at_once * tokens / self.pool

    def moved(self, name: str, factor: float) -> Inputs:
        """With one input times `factor`."""
        return replace(self, **{name: getattr(self, name) * factor})

    def outcome(self) -> float:
        return self.share() * (self.price * HOURS_PER_MONTH if self.price is not None else 1.0)


@dataclass(frozen=True, slots=True)
class Swing:
    """The outcome with one input a quarter lower and a quarter higher."""

    label: str
    at: str
    source: str
    low: float
    high: float

    @property
    def width(self) -> float:
        return abs(self.high - self.low)


def inputs(view: Prelaunch) -> tuple[Inputs, dict[str, str]] | None:
    """What the formula takes, and where each value is from; null where no run tells prompts from answers."""
    w, run = view.w, view.measured
    pool = view.number("pool.tokens") or _lower(view, "pool.tokens_range")
    if run is None or not pool:
        return None
    m = run.summary.metrics
    prompt, answer = m.prompt_tokens.got_median, tokens_per_request(view)
    at_once, said = _at_once(view)
    if prompt is None or answer is None or at_once is None:
        return None
    hit = m.prefix_hit_rate.got
    sources = {
        "prompt": w("measured: median of the run"),
        "answer": w("measured: mean of the run"),
        "hit": w("measured: the server's counters or usage")
        if hit is not None
        else w("not known: taken as 0"),
        "at_once": said,
        "price": w("stated with --price-per-hour"),
    }
    block = view.number("pool.block_size")
    made = Inputs(
        prompt,
        answer,
        hit or 0.0,
        at_once,
        view.number("cost.per_hour"),
        pool,
        max(1, int(block)) if block else DEFAULT_BLOCK,
    )
    return made, sources


def _lower(view: Prelaunch, path: str) -> float | None:
    from kvprobe.report.charts_capacity import number

    found = view.get(path)
    return number(found[0]) if isinstance(found, list | tuple) and found else None


def _at_once(view: Prelaunch) -> tuple[float | None, str]:
    """Stated; else from the stated rate by Little's law (L = rate x time); else what the plan can hold."""
    w, run = view.w, view.measured
    if view.demand_at_once is not None:
        return view.demand_at_once, w("stated with --demand-at-once")
    stay = run.summary.metrics.e2e_s.mean if run is not None else None
    if view.demand_per_s is not None and stay:
        return view.demand_per_s * stay, w("stated rate x measured time in the system (Little's law)")
    have = planned_at_once(view)
    return (have.value, have.source) if have is not None else (None, "")


def swings(view: Prelaunch) -> list[Swing]:
    """The widest first."""
    found = inputs(view)
    if found is None:
        return []
    base, sources = found
    w = view.w
    named: list[tuple[str, str, float | None, str]] = [
        ("prompt", w("prompt tokens (ISL)"), base.prompt, whole(base.prompt)),
        ("answer", w("answer tokens (OSL)"), base.answer, figures(base.answer)),
        ("at_once", w("concurrent requests"), base.at_once, figures(base.at_once)),
        ("hit", w("prefix hit rate"), base.hit, percent(base.hit)),
        ("price", w("price of an hour"), base.price, figures(base.price) if base.price is not None else ""),
    ]
    out = []
    for name, label, value, told in named:
        if value is None:
            continue
        down, up = (base.moved(name, 1 + step).outcome() for step in (-STEP, STEP))
        out.append(Swing(label, told, sources[name], down, up))
    return sorted(out, key=lambda s: -s.width)


def sensitivity(view: Prelaunch) -> list[Block]:
    """The chart with its formula; what is missing for it otherwise."""
    w, found = view.w, inputs(view)
    if found is None:
        text = w(
            "How the need moves with prompt, answer, concurrency, hit rate and price is not known yet: it "
            "takes a plan with a pool and a valid run."
        )
        return [Para(Said(text, "dim"))]
    return [_figure(view, found[0], swings(view))]


def _figure(view: Prelaunch, base: Inputs, found: list[Swing]) -> Figure:
    w = view.w
    middle, money = base.outcome(), base.price is not None
    told = _shown(middle, money)
    title = (
        w("Cost of the demand a month, each input a quarter lower and higher")
        if money
        else w("Share of one replica's cache that the demand takes, each input a quarter lower and higher")
    )
    formula = w(
        "share = requests at once x (prompt x (1 - hit rate) + answer + (block - 1) / 2) / pool tokens; "
        "cost a month = share x price of an hour x 730. Calculated, not measured: shares of a replica are "
        "not rounded up, and a token that hits is taken as held already."
    )
    return Figure(
        name="sensitivity",
        title=title,
        description=w("The line in the middle is {value}, with every input as it stands.", value=told),
        draw=lambda width: _draw(found, middle, money, width),
        legend=[Series("s1", w("a quarter lower"), "area"), Series("s2", w("a quarter higher"), "area")],
        table=Table(
            name="sensitivity",
            caption=w("What each input does"),
            columns=[w("input"), w("value"), w("a quarter lower"), w("a quarter higher"), w("source")],
            rows=[_row(s, money) for s in found],
            numeric=frozenset((1, 2, 3)),
        ),
        note=formula,
    )


def _shown(value: float, money: bool) -> str:
    return figures(value) if money else percent(value)


def _row(s: Swing, money: bool) -> list[Inline]:
    return [s.label, s.at, Num(_shown(s.low, money), s.low), Num(_shown(s.high, money), s.high), s.source]


def _draw(found: list[Swing], middle: float, money: bool, width: int) -> tuple[str, int]:
    """Bars to both sides of the middle; labels in a column of their own, above the bar on a phone."""
    d = Drawing()
    narrow = width < 500
    row = 42.0 if narrow else 28.0
    left = 0.0 if narrow else min(left_margin([s.label for s in found]), width * 0.42)
    room = max(text_width(_shown(v, money), FONT_PX) for s in found for v in (s.low, s.high)) + 10
    reach = nice_top(
        max([abs(v - middle) for s in found for v in (s.low, s.high)] + [abs(middle) * 1e-3, 1e-12])
    )
    x = Scale(middle - reach, middle + reach, left + room, width - room)
    for i, s in enumerate(found):
        y = row * i + (18 if narrow else 2)
        if narrow:
            d.text(0, y - 5, fitting(s.label, width), "note")
        else:
            d.text(left - 8, y + 15, fitting(s.label, left - 10), "", "end")
        for value, style in ((s.low, "s1"), (s.high, "s2")):
            a, b = sorted((x(middle), x(value)))
            d.rect(a, y, max(b - a, 1.0), 19, style, f"{s.label}: {_shown(value, money)}")
        d.line(x(middle), y - 2, x(middle), y + 21, "axis")
        ends = ((s.low, s.high), (s.high, s.low)) if s.width else ((s.high, s.low),)
        for value, opposite in ends:
            right = value >= opposite
            at = x(value) + 5 if right else x(value) - 5
            d.text(at, y + 14, _shown(value, money), "tick", "start" if right else "end")
    return d.out(), int(row * len(found) + 6)
