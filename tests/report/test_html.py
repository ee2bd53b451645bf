"""report.html of today: the text report, inert and alone."""

from __future__ import annotations

from html.parser import HTMLParser

from kvprobe.diagnose.judge import diagnose_run
from kvprobe.report.html import render_html
from kvprobe.summary.build import summarise
from tests.summary.synthetic import Made, healthy

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.text = ""
        self.policy: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes |= dict(attrs)
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"]

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(made: Made) -> Tags:
    run = made.build()
    summary = summarise(run)
    tags = Tags()
    tags.feed(render_html(summary, diagnose_run(run, summary), "PARTIAL: " + HOSTILE))
    return tags


def test_hostile_text_leaves_nothing_active() -> None:
    made = healthy()
    made.fact("target", {"base_url": HOSTILE, "model": HOSTILE})
    tags = page_of(made)
    assert set(tags.seen) == {"html", "head", "meta", "title", "style", "body", "main", "h1", "pre"}
    assert tags.seen.count("pre") == 1
    assert "\x1b" not in tags.text
    assert "<script>" in tags.text, "shown as text"


def test_the_page_loads_nothing_and_says_the_verdict() -> None:
    tags = page_of(healthy())
    assert tags.policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert not {"src", "href"} & set(tags.attributes)
    assert "verdict" in tags.text
