"""A pre-launch page with every section filled: a plan, and a made-up run of the planned engine."""

from __future__ import annotations

from typing import Any, Final

from kvprobe.report.html_page import render_page
from kvprobe.report.prelaunch.page import prelaunch_report
from kvprobe.report.run_view import RunView
from kvprobe.report.words import Language, words
from tests.report.plans import a_plan
from tests.report.test_prelaunch import KEPT, SWEEP, a_run
from tests.summary.synthetic import healthy

TREE: Final[dict[str, Any]] = {
    "prompts": 192,
    "analysed": 192,
    "prompt_tokens": 122_880,
    "estimated": False,
    "tree": [
        {
            "tokens": 16,
            "prompts": 192,
            "saved_tokens": 3_056,
            "before": "You are",
            "after": ["a", "b"],
            "depth": 0,
        },
        {"tokens": 544, "prompts": 96, "saved_tokens": 50_160, "before": "x", "after": ["<b>"], "depth": 1},
        {"tokens": 600, "prompts": 8, "saved_tokens": 392, "before": "y", "after": ["|", "="], "depth": 2},
    ],
}
"""As `kvprobe run` keeps it in the fact `prefix_analysis`."""


def launch_run(lang: Language = "en", **document: Any) -> RunView:
    made = healthy()
    made.fact("prefix_analysis", TREE)
    made.fact("nvml", [{"gpu": 0, "name": "NVIDIA H100", "driver": "570.1"}])
    made.gauge("gpu.power_limit_w", [700.0, 700.0], gpu="0")
    view = a_run(made, **({"thresholds": [KEPT], "sweep": SWEEP} | document))
    view.w = words(lang)
    return view


def launch_page(lang: Language = "en") -> str:
    return render_page(prelaunch_report(a_plan(), launch_run(lang), lang=lang, demand_per_s=1.0, growth=0.1))
