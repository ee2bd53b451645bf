"""The report of a run: its sections in order. HTML and Markdown are two ways to write it down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvprobe.report import run_document, run_findings, run_numbers, run_origin, run_pool
from kvprobe.report.content import Report, Section
from kvprobe.report.run_first import badges, first_screen
from kvprobe.report.run_view import RunView
from kvprobe.report.words import Language, Words, words

if TYPE_CHECKING:
    from kvprobe.diagnose.model import Diagnosis
    from kvprobe.evidence.rundata import RunData
    from kvprobe.summary.build import Summary


def run_report(
    summary: Summary,
    diagnosis: Diagnosis,
    banner: str | None,
    *,
    data: RunData | None = None,
    document: dict[str, Any] | None = None,
    lang: Language = "en",
) -> Report:
    """Everything that a run can tell. Without `data` there are no charts over time."""
    w = words(lang)
    view = RunView(w, summary, diagnosis, data, document or {}, banner)
    name = summary.workload or w("a run")
    where = " · ".join(p for p in (summary.target, summary.model, summary.engine) if p)
    return Report(
        lang=lang,
        title=w("{name}: run report", name=name),
        subtitle=where or summary.run_dir,
        badges=badges(view),
        first=first_screen(view),
        sections=[s for s in _sections(view) if s is not None and s.blocks],
        footer=footer(w, summary, data),
    )


def _sections(view: RunView) -> list[Section | None]:
    """Failures stand first; what a run cannot fill is left out."""
    sweep = view.document.get("sweep")
    return [
        run_findings.failures(view),
        run_findings.thresholds(view),
        run_findings.validity(view),
        run_findings.diagnosis(view),
        run_numbers.sweep(view.w, sweep) if isinstance(sweep, dict) else None,
        run_numbers.latency(view),
        run_numbers.load(view),
        run_pool.pool(view),
        run_document.holders(view),
        run_pool.prefix(view),
        run_pool.lengths(view),
        run_pool.memory(view),
        run_document.prediction(view),
        run_origin.parts(view.w, view.document.get("runs") or []),
        run_origin.reproduction(view),
        run_origin.files(view),
    ]


def footer(w: Words, summary: Summary, data: RunData | None) -> str:
    version = data.environment.get("kvprobe") if data is not None else None
    made = w("Measured with kvprobe {version}.", version=version) + " " if isinstance(version, str) else ""
    method = w(
        "Long series are drawn by the smallest and largest reading of each of 240 spans: every peak stays. "
        "Intervals are 95 %: order statistics for percentiles, Wilson for shares, batch means for rates, a "
        "bootstrap over requests for hit rates."
    )
    return made + method
