"""The whole pre-launch report: page one for who decides, then fifteen sections with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvprobe.report.content import Block, Bullets, Facts, Inline, Para, Pre, Report, Said, Section, Table
from kvprobe.report.prelaunch.budget import assumptions, budget, fill, said
from kvprobe.report.prelaunch.manager import manager_page
from kvprobe.report.prelaunch.risks import risks
from kvprobe.report.prelaunch.verdict import gates, judge, not_tested
from kvprobe.report.prelaunch.view import (
    Prelaunch,
    capacity,
    costs,
    demand,
    growth_months,
    headroom,
)
from kvprobe.report.words import Language, Words, words

if TYPE_CHECKING:
    from kvprobe.report.run_view import RunView


def prelaunch_report(
    plan: Mapping[str, Any] | None,
    run: RunView | None = None,
    *,
    lang: Language = "en",
    demand_per_s: float | None = None,
    demand_at_once: float | None = None,
    growth: float | None = None,
) -> Report:
    """`plan` is the JSON of `kvprobe plan --json`; `run` a measured run of the planned service."""
    w = words(lang)
    view = Prelaunch(w, plan, run, demand_per_s, demand_at_once, growth)
    name = view.get("model.name") or (run.summary.model if run is not None else None) or w("a model")
    engine = " ".join(str(p) for p in (view.get("engine"), view.get("engine_version")) if p)
    where = " · ".join(str(p) for p in (view.get("gpu"), engine, run.summary.target if run else None) if p)
    return Report(
        lang=lang,
        title=w("{name}: capacity before launch", name=name),
        subtitle=where,
        badges=_badges(view),
        first=manager_page(view),
        sections=_sections(view),
        footer=w(
            "Numbers marked as calculated follow the formula beside them; measured ones are in the run "
            "directory that is named in section 15."
        ),
    )


def prelaunch_document(
    plan: Mapping[str, Any] | None,
    run: RunView | None = None,
    *,
    demand_per_s: float | None = None,
    demand_at_once: float | None = None,
    growth: float | None = None,
) -> dict[str, Any]:
    """`prelaunch` of `kvprobe report --plan --json`: the manager's page as values, in English. What is not
    known is null; rates in requests a second, costs in the currency of the price."""
    view = Prelaunch(words("en"), plan, run, demand_per_s, demand_at_once, growth)
    told, have, money = judge(view), capacity(view), costs(view)
    need = demand(view, have.unit) if have is not None else None
    room = headroom(have, need) if have is not None and need is not None else None
    return {
        "answer": told.answer,
        "sentence": told.sentence,
        "confidence": told.confidence,
        "because": told.because,
        "missing": told.missing,
        "capacity": asdict(have) if have is not None else None,
        "demand": asdict(need) if need is not None else None,
        "headroom": room,
        "growth_months": growth_months(room, growth) if room is not None and growth is not None else None,
        "cost": asdict(money) if money is not None else None,
        "risks": [{"text": risk.text, "owner": risk.owner} for risk in risks(view, bool(gates(view)))],
        "not_tested": not_tested(view),
        "unlike": view.unlike,
    }


def plan_reports(
    plan: Mapping[str, Any],
    lang: Language = "en",
    *,
    demand_at_once: float | None = None,
    growth: float | None = None,
) -> Report:
    """A plan alone. Several models stand side by side first; the report is of the first of them."""
    models = [m for m in plan.get("models") or [] if isinstance(m, Mapping)]
    first = models[0] if models else plan
    report = prelaunch_report(first, lang=lang, demand_at_once=demand_at_once, growth=growth)
    if len(models) > 1:
        report.sections.insert(0, _side_by_side(models, lang))
        for model in models[1:]:
            other = prelaunch_report(model, lang=lang)
            inner: list[Block] = [
                *other.first[:2],
                *(b for s in other.sections if s.id in ("s2", "s3", "s12") for b in s.blocks),
            ]
            report.sections.append(Section(f"model-{other.title}", other.title, inner))
    return report


def _answers(w: Words) -> dict[str, str]:
    return {"ready": w("ready"), "not_ready": w("NOT ready"), "not_shown": w("not yet shown to be ready")}


def _badges(view: Prelaunch) -> list[Said]:
    w, told = view.w, judge(view)
    out = [Said(_answers(w)[told.answer], {"ready": "good", "not_ready": "bad"}.get(told.answer, "warn"))]  # type: ignore[arg-type]
    out.append(
        Said(
            w("measured") if view.measured is not None else w("calculated, not measured"),
            "good" if view.measured is not None else "warn",
        )
    )
    if view.unlike:
        out.append(Said(w("the run does not fit the plan"), "bad"))
    return out


def _sections(view: Prelaunch) -> list[Section]:
    """The engine's parts are imported here: a plan alone needs no numpy for its charts."""
    from kvprobe.report.prelaunch import engineer, operation, scaling, sensitivity

    found = scaling.replicas(view)
    if (chart := scaling.tornado(view)) is not None:
        found.blocks.append(chart)
    found.blocks += sensitivity.sensitivity(view)
    return [
        engineer.verdict(view),
        assumptions(view),
        budget(view),
        engineer.workload(view),
        engineer.curve(view),
        engineer.ttft(view),
        engineer.gaps(view),
        engineer.prefix(view),
        operation.overload(view),
        operation.cold_start(view),
        found,
        engineer.flags(view),
        _validity(view),
        _reproduction(view),
        _data(view),
    ]


def _validity(view: Prelaunch) -> Section:
    """13: every check with its outcome, and what the plan warns of."""
    from kvprobe.report import run_document, run_findings

    w, blocks = view.w, []
    if view.run is not None:
        blocks += run_findings.validity(view.run).blocks
        predicted = run_document.prediction(view.run)
        if predicted is not None:
            blocks += predicted.blocks
    else:
        blocks.append(fill(view, "kvprobe run WORKLOAD --target URL"))
    if view.unlike:
        blocks.append(Bullets([Said(text, "bad") for text in view.unlike]))
    warned = [x for x in view.items("warnings") if isinstance(x.get("text"), str)]
    if warned:
        blocks.append(Para(Said(w("Warnings of the plan"), strong=True)))
        blocks.append(
            Bullets([said(view, f"{x['text']}{': ' + x['fix'] if x.get('fix') else ''}") for x in warned])
        )
    return Section("s13", w("13 Validity"), blocks)


def _reproduction(view: Prelaunch) -> Section:
    """14: commands, versions, digests."""
    from kvprobe.report import run_origin

    w = view.w
    if view.run is not None:
        return Section("s14", w("14 Reproduction"), run_origin.reproduction(view.run).blocks)
    rows: list[tuple[str, Inline]] = [(w("model files"), str(view.get("model.source") or w("not known")))]
    blocks: list[Block] = [Facts(rows), Pre("kvprobe plan --model MODEL --gpu NAME ... --json > PLAN.json")]
    return Section("s14", w("14 Reproduction"), blocks)


def _data(view: Prelaunch) -> Section:
    """15: where the numbers lie."""
    from kvprobe.report import run_origin

    w = view.w
    blocks: list[Block] = []
    if view.plan is not None:
        blocks.append(
            Para(w("The plan: kvprobe.plan/1, every size in bytes, every missing number with its reason."))
        )
    reasons = view.get("reasons")
    if isinstance(reasons, Mapping) and reasons:
        table = Table(
            name="missing",
            caption=w("Numbers that the plan does not have, and why"),
            columns=[w("number"), w("why")],
            rows=[[str(k), said(view, str(v))] for k, v in reasons.items()],
        )
        blocks.append(table)
    if view.run is not None:
        blocks += run_origin.files(view.run).blocks
    return Section("s15", w("15 Raw data"), blocks)


def _side_by_side(models: list[Mapping[str, Any]], lang: Language) -> Section:
    from kvprobe.report.prelaunch.view import amount, planned_at_once
    from kvprobe.summary.units import size

    w = words(lang)
    rows: list[list[Inline]] = []
    for model in models:
        view = Prelaunch(w, model)
        cost, kv, have = (
            view.number("kv.bytes_per_token_per_gpu"),
            view.number("budget.kv.bytes"),
            planned_at_once(view),
        )
        ends = view.get("budget.kv.range")
        memory = (
            size(kv)
            if kv is not None
            else w("{a} to {b}", a=size(ends[0]), b=size(ends[1]))
            if isinstance(ends, list | tuple)
            else w("not known")
        )
        fits = {True: Said(w("yes"), "good"), False: Said(w("NO"), "bad")}.get(
            view.get("fits"), Said(w("open"), "warn")
        )
        rows.append(
            [
                str(view.get("model.name")),
                size(cost) if cost is not None else "-",
                memory,
                amount(view, have) if have is not None else "-",
                fits,
            ]
        )
    columns = [w("model"), w("KV cache of one token"), w("KV cache"), w("capacity"), w("fits")]
    return Section(
        "models", w("Models side by side"), [Table("models", w("Models side by side"), columns, rows)]
    )
