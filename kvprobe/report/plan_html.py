"""A plan as one page that opens offline: the pre-launch report without a measurement."""

from __future__ import annotations

from kvprobe.plan.document import PlanDocument, to_json
from kvprobe.report.html_page import render_page
from kvprobe.report.prelaunch.page import plan_reports
from kvprobe.report.words import Language


def render_plan_html(
    plan: PlanDocument,
    lang: Language = "en",
    *,
    demand_at_once: float | None = None,
    growth: float | None = None,
) -> str:
    """The whole page; every text through the sanitiser."""
    return render_page(plan_reports(to_json(plan), lang, demand_at_once=demand_at_once, growth=growth))
