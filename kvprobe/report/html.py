"""report.html: the report of a run as one page that opens offline (see `html_page` for what it may do)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvprobe.report.html_page import render_page
from kvprobe.report.run_page import run_report
from kvprobe.report.words import Language

if TYPE_CHECKING:
    from kvprobe.diagnose.model import Diagnosis
    from kvprobe.evidence.rundata import RunData
    from kvprobe.summary.build import Summary


def render_html(
    summary: Summary,
    diagnosis: Diagnosis,
    banner: str | None,
    *,
    data: RunData | None = None,
    document: dict[str, Any] | None = None,
    lang: Language = "en",
) -> str:
    """The whole page. `data` is what the charts over time are drawn from; `document` (`kvprobe.run/1`)
    brings thresholds, prediction and the runs of a suite. Every text passes through the sanitiser."""
    return render_page(run_report(summary, diagnosis, banner, data=data, document=document, lang=lang))
