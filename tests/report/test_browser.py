"""The pages in a real browser: nothing active, nothing overlapping, tables that sort, CSV that is inert."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from kvprobe.report.html_page import render_page
from kvprobe.report.prelaunch.page import plan_reports
from kvprobe.report.words import Language
from tests.report.browser import CONTRAST, MEASURE, Scheme, chromium, opened
from tests.report.launch import launch_page
from tests.report.old_run import old_run
from tests.report.plans import a_plan
from tests.report.test_html import hostile_run, html_of

__all__ = ["chromium"]

SCHEMES: tuple[Scheme, ...] = ("light", "dark")
LOOKS = [(width, scheme) for width in (1280, 390) for scheme in SCHEMES]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with everything, a hostile one and a plan, in both languages."""
    home = tmp_path_factory.mktemp("pages")
    hostile = json.loads(json.dumps(a_plan()).replace("a-model", "</script><img src=x onerror=alert(3)>"))
    for lang in ("en", "zh"):
        pages: dict[str, str] = {
            "run": html_of(old_run(), lang),  # type: ignore[arg-type]
            "hostile": html_of(hostile_run(), lang),  # type: ignore[arg-type]
            "launch": launch_page(lang),  # type: ignore[arg-type]
            "plan": render_page(plan_reports(hostile, lang, demand_at_once=80, growth=0.1)),  # type: ignore[arg-type]
        }
        for name, text in pages.items():
            (home / f"{name}-{lang}.html").write_text(text, encoding="utf-8")
    return home


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", ["run", "hostile", "plan", "launch"])
def test_a_page_is_quiet_and_nothing_of_it_overlaps(
    chromium: Any, pages: Path, name: str, lang: Language
) -> None:
    """One page, turned into each width and scheme."""
    with opened(chromium, pages / f"{name}-{lang}.html") as seen:
        for width, scheme in LOOKS:
            look = f"{width} {scheme}"
            seen.page.set_viewport_size({"width": width, "height": 900})
            seen.page.emulate_media(color_scheme=scheme)
            found = seen.page.evaluate(MEASURE)
            assert found["charts"] >= (3 if name == "plan" else 5), look
            assert not found["empty"], look
            assert found["overflow"] <= 0, look
            assert not found["overlaps"], look
            assert not found["outside"], look
            assert not seen.page.evaluate(CONTRAST), look
        assert seen.quiet(), (seen.dialogs, seen.requests, seen.console)


def test_tables_sort_by_their_numbers_and_the_keyboard_does_it(chromium: Any, pages: Path) -> None:
    with opened(chromium, pages / "run-en.html") as seen:
        page = seen.page
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        head = page.locator("table[data-name=ttft-over-time] thead th").nth(1)
        head.locator("button").focus()
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "ascending"
        rising = _column(page)
        page.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == "descending"
        assert rising == sorted(rising)
        assert _column(page) == sorted(rising, reverse=True)
        assert seen.quiet()


def _column(page: Any) -> list[float]:
    cells = page.locator("table[data-name=ttft-over-time] tbody tr td:nth-child(2)")
    return [float(v) for v in cells.evaluate_all("cells => cells.map(c => c.dataset.v)")]


def test_csv_holds_numbers_and_no_formula(chromium: Any, pages: Path, tmp_path: Path) -> None:
    """A failure detail that begins with `=` comes out as text; a number stays a number."""
    made = hostile_run()
    made.records[-1].failure_detail = "=HYPERLINK(1)"
    (tmp_path / "page.html").write_text(html_of(made), encoding="utf-8")
    with opened(chromium, tmp_path / "page.html") as seen:
        page = seen.page
        tools = page.locator(".scroll:has(table[data-name=failures]) + .tools")
        with page.expect_download() as download:
            tools.locator("button").click()
        download.value.save_as(tmp_path / "failures.csv")
        assert download.value.suggested_filename == "failures.csv"
        assert seen.quiet()
    with open(tmp_path / "failures.csv", encoding="utf-8-sig", newline="") as file:
        head, row = list(csv.reader(file))
    cells = dict(zip(head, row, strict=True))
    assert cells["details"] == "'=HYPERLINK(1)"
    assert float(cells["requests"]) == 1


def test_the_theme_can_be_switched_and_print_is_light(chromium: Any, pages: Path) -> None:
    with opened(chromium, pages / "run-en.html", scheme="light") as seen:
        page = seen.page
        ink = "getComputedStyle(document.body).color"
        light = page.evaluate(ink)
        page.locator("button.theme").click()
        assert page.evaluate(ink) != light
        page.emulate_media(media="print")
        assert page.evaluate(ink) == light


def test_everything_can_be_read_without_script(chromium: Any, pages: Path) -> None:
    context = chromium.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto((pages / "run-en.html").as_uri())
        assert page.locator("figure svg.wide").count() >= 5
        assert page.locator("table").count() >= 5
        assert page.locator("button").count() == 0, "no control that does nothing"
    finally:
        context.close()


def test_a_screen_reader_finds_names_for_every_chart_and_heading(chromium: Any, pages: Path) -> None:
    with opened(chromium, pages / "run-en.html") as seen:
        bad = seen.page.evaluate(
            """() => [...document.querySelectorAll('figure > svg[role=img], section[aria-labelledby]')]
                 .filter(e => !e.getAttribute('aria-labelledby').split(' ')
                   .every(id => document.getElementById(id)?.textContent)).length"""
        )
        assert bad == 0
        ids = seen.page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids))


def test_the_watch_itself_sees_what_is_active(chromium: Any, tmp_path: Path) -> None:
    """What the tests above look for is seen when it is there."""
    texts = "<text x=5 y=20>one</text><text x=5 y=21>two</text>"
    bad = f"<figure><svg width=100 height=50><title>t</title>{texts}</svg></figure>"
    page = f"<title>x</title>{bad}<img src='nowhere.png'><script>alert(1); console.log(2)</script>"
    (tmp_path / "bad.html").write_text(page, encoding="utf-8")
    with opened(chromium, tmp_path / "bad.html") as seen:
        found = seen.page.evaluate(MEASURE)
        assert found["overlaps"] == ["t: one | two"]
        assert found["empty"] == ["t"]
        assert seen.dialogs == ["1"]
        assert any("2" in said for said in seen.console)
        assert any("nowhere.png" in url for url in seen.requests)
