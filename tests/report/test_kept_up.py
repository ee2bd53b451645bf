"""A server that did not keep up is not told as healthy, and what was cut at the end is no failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvprobe.diagnose.judge import diagnose_run
from kvprobe.diagnose.suite_judge import judge_suite
from kvprobe.evidence.rundata import RunData
from kvprobe.evidence.suitedir import SuiteData, SuiteRun
from kvprobe.report.document import run_document
from kvprobe.report.kept_up import behind, words_of_run
from kvprobe.report.markdown_page import render_markdown
from kvprobe.report.run_page import run_report
from kvprobe.report.suite_document import suite_document
from kvprobe.report.suite_page import suite_report
from kvprobe.report.suite_text import suite_text
from kvprobe.report.terminal import render_text
from kvprobe.report.words import Language
from kvprobe.summary.build import summarise
from tests.summary.synthetic import MS, T0, Made, failed, record

RATE, SENT, CUT = 30.0, 160, 90


def overloaded_step() -> RunData:
    """30 requests a second for 5 s; one is done every 80 ms, and what is left is cut after 3 s more."""
    made = Made()
    for i in range(SENT):
        sent_ms = 1000 / RATE * i
        if i < SENT - CUT:
            made.records.append(record(i, sent_ms=sent_ms, ttft_ms=100 + 80 * i, gap_ms=5.0, tokens=8))
        else:
            made.records.append(failed(i, "cancelled_at_end", sent_ms=sent_ms, after_ms=8_300 - sent_ms))
    made.workload["arrival"] = {"open": {"process": "constant", "rate": RATE}}
    made.fact("load_finished", {"intended": SENT, "t_drain_ns": T0 + int(SENT * 1000 / RATE * MS)})
    made.fact("target", {"base_url": "http://127.0.0.1:4711", "model": "tiny", "bundled": True})
    return made.build()


def easy_step() -> RunData:
    made = Made(records=[record(i, sent_ms=330 * i, gap_ms=5.0, tokens=8) for i in range(40)])
    made.workload["arrival"] = {"open": {"process": "constant", "rate": 3.0}}
    return made.build()


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_page_of_an_overloaded_run_does_not_begin_with_healthy(lang: Language) -> None:
    run = overloaded_step()
    summary = summarise(run)
    diagnosis = diagnose_run(run, summary)
    assert diagnosis.primary == "healthy_baseline", "no cause of the list is shown by an overload"
    assert behind(diagnosis) is not None
    document = run_document(run, summary, diagnosis)
    report = run_report(summary, diagnosis, None, data=run, document=document, lang=lang)
    first = render_markdown(report).split("\n## ")[0]
    assert "healthy" not in first
    assert {"en": "did not keep up", "zh": "未跟上负载"}[lang] in first
    assert {"en": f"{CUT} cut off at the end", "zh": f"结束时截断 {CUT}"}[lang] in first
    assert {"en": "0 failed", "zh": "失败 0"}[lang] in first
    terminal = " ".join(render_text(summary, diagnosis, None, width=100).split())
    assert "healthy" not in terminal
    assert terminal.count("the server did not keep up with the load") == 2, "first and last line"
    assert f"0 failed, {CUT} cut off at the end" in terminal
    assert "cancelled_at_end" not in terminal


def test_what_was_cut_is_counted_apart_and_the_sum_is_as_it_was() -> None:
    counted = summarise(overloaded_step()).requests
    assert (counted.failed, counted.cut_at_end, counted.failed_before_end) == (CUT, CUT, 0)
    assert counted.sent == counted.ok + counted.failed


def test_a_server_that_keeps_up_is_healthy() -> None:
    run = easy_step()
    diagnosis = diagnose_run(run, summarise(run))
    assert behind(diagnosis) is None
    assert "(healthy_baseline)" in render_text(summarise(run), diagnosis, None, width=100)


def test_a_sweep_tells_every_run_by_the_verdict_of_its_step() -> None:
    steps = [("s-3", 3.0, easy_step()), ("s-30", RATE, overloaded_step())]
    for name, _, data in steps:
        data.path = Path("runs/sweep") / name
    runs = [SuiteRun(name, None, 1, load, data) for name, load, data in steps]
    plan = {"name": "sweep", "kind": "sweep", "axis": "rate"}
    result = judge_suite(SuiteData(Path("runs/sweep"), "complete", plan, runs))
    assert result.sweep is not None
    assert [s.verdict for s in result.sweep.steps] == ["sustained", "overloaded"]
    text = " ".join(suite_text(result, width=200).split())
    assert "s-3: 40 requests ok; sustained" in text
    assert f"s-30: {SENT - CUT} requests ok, {CUT} cut off at the end; overloaded" in text
    document = suite_document(result)
    assert document["requests"]["cut_at_end"] == CUT
    page = render_markdown(suite_report(document))
    (line,) = (x for x in page.splitlines() if x.startswith("| s-30 "))
    assert line.split(" | ")[1:4] == [str(SENT - CUT), "0", str(CUT)]
    assert line.endswith("overloaded | yes |")
    assert "healthy_baseline" not in page


def test_the_words_of_a_run() -> None:
    late = ["the server does not keep up: 3 requests/s"]
    assert words_of_run("healthy_baseline", [], None) == ["healthy_baseline"]
    assert words_of_run("healthy_baseline", late, None) == ["did not keep up"]
    assert words_of_run("queue_limit", late, "overloaded") == ["overloaded", "queue_limit"]
    assert words_of_run("kv_pool_pressure", [], None) == ["kv_pool_pressure"]


def test_no_column_of_a_sweep_is_cut_on_a_narrow_screen() -> None:
    steps = [("s-3", 3.0, easy_step()), ("s-30", RATE, overloaded_step())]
    runs = [SuiteRun(name, None, 1, load, data) for name, load, data in steps]
    plan = {"name": "sweep", "kind": "sweep", "axis": "rate"}
    result = judge_suite(SuiteData(Path("runs/sweep"), "complete", plan, runs))
    for width in (50, 60, 70, 80, 90, 100, 120):
        text = suite_text(result, width=width)
        assert "…" not in text, width
        assert any(line.endswith("overloaded") for line in text.splitlines()), width
