"""Ready or not, how sure, what is risky and what was not tested: the manager's page in facts.

"Ready" is said only of what was shown: a valid measurement of the planned thing that kept its thresholds and
carried the stated demand. Whatever is missing is named instead of guessed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from kvprobe.report.prelaunch.view import (
    MIN_LOAD_S,
    Measure,
    Prelaunch,
    amount,
    capacity,
    demand,
    headroom,
)
from kvprobe.summary.units import seconds

Answer = Literal["ready", "not_ready", "not_shown"]


@dataclass(frozen=True, slots=True)
class Judgement:
    answer: Answer
    sentence: str
    confidence: str
    because: str
    """Why no more and no less sure."""
    missing: list[str]


def judge(view: Prelaunch) -> Judgement:
    """The sentence at the top, and what it rests on."""
    w, have = view.w, capacity(view)
    need = demand(view, have.unit) if have is not None else None
    refuted, missing = _refuted(view, have, need), _missing(view, have, need)
    sure, because = _confidence(view)
    if refuted:
        return Judgement(
            "not_ready", w("Not ready: {why}.", why=w("; ").join(refuted)), sure, because, missing
        )
    if missing or have is None or need is None:
        told = _so_far(view, have)
        return Judgement("not_shown", told, sure, because, missing)
    sentence = w(
        "Ready for {need}{limits} on {where}: {have} was shown.",
        need=amount(view, need),
        limits=_limits(view),
        where=_where(view),
        have=amount(view, have),
    )
    return Judgement("ready", sentence, sure, because, [])


def _refuted(view: Prelaunch, have: Measure | None, need: Measure | None) -> list[str]:
    """What was shown to be wrong."""
    w, out = view.w, []
    if view.get("fits") is False:
        out.append(str(view.get("verdict") or w("it does not fit")))
    for gate in gates(view):
        if gate.get("verdict") == "fail":
            out.append(w("the threshold `{gate}` was missed", gate=gate.get("threshold", "?")))
    if have is not None and need is not None and have.exact and headroom(have, need) < 0:
        out.append(
            w("{need} are demanded, {have} are carried", need=amount(view, need), have=amount(view, have))
        )
    return out


def _missing(view: Prelaunch, have: Measure | None, need: Measure | None) -> list[str]:
    """What must be there before "ready" can be said."""
    w, out = view.w, []
    if view.run is None:
        out.append(w("no measurement: everything here is calculated"))
    elif view.unlike:
        out.append(w("the run measured something else than the plan is about"))
    elif not view.run.valid:
        out.append(w("the measurement is INVALID"))
    if view.get("fits") is None and view.plan is not None:
        out.append(w("the plan leaves open whether it fits"))
    if not gates(view):
        out.append(w("no target (SLO) was stated: give thresholds to the run"))
    elif any(g.get("verdict") != "pass" for g in gates(view)):
        out.append(w("not every threshold could be decided"))
    if need is None:
        stated = view.demand_per_s is not None or view.demand_at_once is not None
        if stated and have is not None:
            unit = w(have.unit)
            out.append(
                w("the capacity is known as {unit}, the demand is stated as something else", unit=unit)
            )
        else:
            out.append(w("no demand was stated: give --demand"))
    elif have is not None and not have.exact and headroom(have, need) < 0:
        out.append(w("the demand was not reached in the test"))
    return out


def gates(view: Prelaunch) -> list[dict[str, Any]]:
    run = view.run if not view.unlike else None
    found = run.document.get("thresholds") if run is not None else None
    return [g for g in found if isinstance(g, dict)] if isinstance(found, list) else []


def _so_far(view: Prelaunch, have: Measure | None) -> str:
    w = view.w
    if have is None:
        return w("Not shown to be ready: nothing that was measured or calculated can be relied on.")
    if have.unit == "requests at once":
        return w(
            "Fits by calculation, and not yet shown to be ready: {have} on {where}.",
            have=amount(view, have),
            where=_where(view),
        )
    return w(
        "Not yet shown to be ready: the test carried {have} on {where}.",
        have=amount(view, have),
        where=_where(view),
    )


def _limits(view: Prelaunch) -> str:
    texts = [str(g["threshold"]) for g in gates(view) if g.get("threshold")]
    return view.w(" within {limits}", limits=", ".join(texts[:3])) if texts else ""


def _where(view: Prelaunch) -> str:
    gpu, ranks = view.get("gpu"), int(view.number("tp") or 1) * int(view.number("pp") or 1)
    if gpu:
        return f"{ranks} x {gpu}"
    if view.run is not None and view.run.summary.target:
        return view.run.summary.target
    return view.w("the planned machine")


def _confidence(view: Prelaunch) -> tuple[str, str]:
    """Low: calculated only. Moderate: a valid run of the planned thing. High: a sweep that found the limit,
    and a run of at least ten minutes."""
    w = view.w
    if view.measured is None:
        return w("low"), w("nothing valid was measured; a calculation cannot know speed or queues")
    limit = view.sweep().get("interval")
    found = isinstance(limit, dict) and limit.get("lo") is not None and limit.get("hi") is not None
    if found and view.tested_s() >= MIN_LOAD_S:
        return w("high"), w("a sweep found the limit from both sides, with at least ten minutes of load")
    if found:
        return w("moderate"), w(
            "the limit was found, but no load ran for ten minutes ({t})", t=seconds(view.tested_s())
        )
    return w("moderate"), w("one load was measured; the limit above it was not looked for")


def not_tested(view: Prelaunch) -> list[str]:
    """What nobody looked at; said so that silence is not taken for safety."""
    w, run = view.w, view.measured
    out = []
    if run is None:
        out += [w("speed: no valid run of the planned service"), w("queues and waits under load")]
    else:
        target = run.summary.target or ""
        if "127.0.0.1" in target or "localhost" in target or "[::1]" in target:
            out.append(w("the network: client and server were one machine"))
        if view.tested_s() < MIN_LOAD_S:
            out.append(w("hours of load: the longest load ran for {t}", t=seconds(view.tested_s())))
    if not view.sweep():
        out.append(w("the limit: no sweep of rates"))
    out += [
        w("overload: refusals (429, 503), cancelled requests, time to recover"),
        w("a cold start: time from start to the first answer"),
        w("more than one replica: routing, loss of one"),
    ]
    return out
