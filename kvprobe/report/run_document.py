"""Sections that come out of a run's document: predicted beside measured, and who held the cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvprobe.report.charts_capacity import number
from kvprobe.report.charts_predicted import Pair, honesty_chart
from kvprobe.report.content import Block, Inline, Num, Para, Said, Section, Table
from kvprobe.report.run_view import RunView
from kvprobe.summary.units import figures, percent, seconds, size, whole

_PREDICTED = ("bytes_per_token", "pool_tokens", "max_concurrency")


def prediction(view: RunView) -> Section | None:
    """What the planner says of this model beside what the server reported; why there is none."""
    found = view.document.get("prediction")
    if not isinstance(found, Mapping):
        return None
    w = view.w
    compared = [(name, found[name]) for name in _PREDICTED if isinstance(found.get(name), Mapping)]
    pairs = [pair for name, told in compared if (pair := _pair(view, name, told)) is not None]
    blocks: list[Block] = [honesty_chart(w, pairs)] if pairs else []
    rows: list[list[Inline]] = [_compared(view, name, told) for name, told in compared]
    if rows:
        columns = [w("number"), w("predicted"), w("measured"), w("source"), w("why")]
        caption = w("Predicted against measured")
        blocks.append(Table("prediction", caption, columns, rows, frozenset((1, 2))))
    warned = [text for text in found.get("warnings") or [] if isinstance(text, str)]
    blocks += [Para(view.say(text)) for text in warned]
    return Section("prediction", w("Predicted against measured"), blocks)


def _form(name: str, value: float) -> str:
    if "bytes" in name:
        return size(value)
    return whole(value) if value == int(value) else figures(value)


def _pair(view: RunView, name: str, told: Mapping[str, Any]) -> Pair | None:
    predicted, reported = number(told.get("predicted")), number(told.get("reported"))
    if predicted is None or not reported:
        return None
    shown = (_form(name, predicted), _form(name, reported))
    return Pair(view.w(name.replace("_", " ")), predicted, reported, "", shown)


def _compared(view: RunView, name: str, told: Mapping[str, Any]) -> list[Inline]:
    w = view.w
    values = (number(told.get("predicted")), number(told.get("reported")))
    shown = [Num(_form(name, v), v) if v is not None else Num(w("not known"), tone="dim") for v in values]
    why = told.get("reason")
    return [
        w(name.replace("_", " ")),
        *shown,
        Said(str(told.get("source") or "-"), foreign=True),
        view.say(str(why)) if why else "",
    ]


def holders(view: RunView) -> Section | None:
    """Which requests held the cache when it ran out: of the worst moment that the run kept."""
    held = view.document.get("held_cache")
    moments = held.get("moments") if isinstance(held, Mapping) else None
    worst = next((m for m in moments or [] if isinstance(m, Mapping)), None) if moments else None
    rows = [h for h in (worst or {}).get("holders") or [] if isinstance(h, Mapping)]
    if worst is None or not rows:
        return None
    w = view.w
    t, tokens = number(worst.get("t_s")), number(worst.get("held_tokens"))
    told = w(
        "{t} into the load ({event}): {n} requests held {tokens} tokens.",
        t=seconds(t or 0.0),
        event=w(str(worst.get("event") or "?").replace("_", " ")),
        n=whole(number(worst.get("requests")) or len(rows)),
        tokens=whole(tokens or 0.0),
    )
    columns = [w("request"), w("tokens"), w("prompt tokens"), w("share of the pool"), w("age")]
    table = Table(
        name="holders",
        caption=w("Requests that held the most when the pool was fullest"),
        columns=columns,
        rows=[_holder(h) for h in rows],
        numeric=frozenset((1, 2, 3, 4)),
    )
    return Section("holders", w("Who held the cache"), [Para(told), table])


def _holder(raw: Mapping[str, Any]) -> list[Inline]:
    def cell(name: str, form: Any) -> Inline:
        value = number(raw.get(name))
        return Num(form(value), value) if value is not None else "-"

    return [
        Said(str(raw.get("server_request_id") or raw.get("request_id") or "?"), foreign=True),
        cell("tokens", whole),
        cell("prompt_tokens", whole),
        cell("pool_share", percent),
        cell("age_s", seconds),
    ]
