"""report.html without a browser: what the page says, and that nothing of it is active."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from kvprobe.diagnose.judge import diagnose_run
from kvprobe.diagnose.model import Diagnosis, Validity
from kvprobe.evidence.rundata import RunData
from kvprobe.report.content import Para, Report
from kvprobe.report.document import run_document
from kvprobe.report.html import render_html
from kvprobe.report.html_page import render_page
from kvprobe.report.words import Language
from kvprobe.summary.build import summarise
from tests.diagnose.test_judge import late_client, timestamp_first
from tests.report.launch import launch_page
from tests.summary.synthetic import MS, Made, failed, healthy

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u202e"
ACTIVE = {
    "img",
    "iframe",
    "object",
    "embed",
    "form",
    "input",
    "link",
    "base",
    "video",
    "audio",
    "foreignobject",
}


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.inside: dict[str, str] = {}
        self.policy = ""
        self._open = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        self._open = tag
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style"):
            self.inside[self._open] = self.inside.get(self._open, "") + data
        else:
            self.text += data


def html_of(made: Made | RunData, lang: Language = "en") -> str:
    run = made.build() if isinstance(made, Made) else made
    summary = summarise(run)
    diagnosis = diagnose_run(run, summary)
    return render_html(
        summary, diagnosis, None, data=run, document=run_document(run, summary, diagnosis), lang=lang
    )


def page_of(made: Made | RunData, lang: Language = "en") -> Tags:
    tags = Tags()
    tags.feed(html_of(made, lang))
    return tags


def hostile_run() -> Made:
    """Every place that foreign words can come from."""
    made = healthy()
    made.workload["name"] = HOSTILE
    made.fact("target", {"base_url": HOSTILE, "model": HOSTILE})
    made.fact("engine", {"name": HOSTILE, "version": HOSTILE})
    made.fact(
        "prompt_layout", {"diverge_token": 7, "diverge_before": HOSTILE, "diverge_texts": [HOSTILE, HOSTILE]}
    )
    made.records.append(failed(900, "status", sent_ms=50, failure_detail=HOSTILE, status_code=500))
    made.environment |= {"kvprobe": HOSTILE, "server_args": [HOSTILE], "libraries": {HOSTILE: HOSTILE}}
    made.workload["thresholds"] = ["ttft.p95 < 1ms"]
    return made


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_hostile_text_leaves_nothing_active(lang: Language) -> None:
    tags = page_of(hostile_run(), lang)
    assert not ACTIVE & set(tags.seen)
    assert tags.seen.count("script") == tags.seen.count("style") == 1
    names = [name for name, _ in tags.attributes]
    assert not [name for name in names if name.startswith("on") or name in ("style", "src", "action")]
    assert all(value and value.startswith("#") for name, value in tags.attributes if name == "href")
    assert "\x1b" not in tags.text
    assert "\u202e" not in tags.text
    assert "<script>alert(1)" in tags.text, "shown as text"


def test_the_policy_names_the_only_script_and_style_by_their_hashes() -> None:
    tags = page_of(healthy())
    for name in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(tags.inside[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in tags.policy
    assert tags.policy.startswith("default-src 'none'")
    assert "http" not in tags.policy
    assert "unsafe" not in tags.policy
    assert not re.search(r"https?://(?!127\.0\.0\.1|target)", tags.inside["script"] + tags.inside["style"])


def test_the_first_screen_has_verdict_validity_and_five_numbers() -> None:
    page = html_of(timestamp_first())
    first = page[page.index('class="first"') : page.index('class="toc"')]
    assert "prefix_layout_unstable" in first
    assert first.count('class="tile"') == 5
    assert "VALID measurement" in page[: page.index('class="first"')]
    invalid = html_of(late_client(healthy()))
    assert "INVALID: do not quote these numbers" in invalid[: invalid.index('class="first"')]


def test_a_number_that_n_cannot_carry_is_not_shown() -> None:
    """40 requests carry a median and no p95."""
    made = healthy()
    made.records = made.records[:40]
    page = html_of(made)
    table = page[page.index('data-name="latency"') :]
    row = table[table.index("<td>TTFT</td>") : table.index("</tr>", table.index("<td>TTFT</td>"))]
    assert row.count("n too small") == 2
    assert "[" in row, "the median has its interval"


def test_failures_stand_before_every_latency() -> None:
    made = healthy()
    made.records += [failed(900 + i, "timeout_first", sent_ms=10 * i) for i in range(5)]
    page = html_of(made)
    assert page.index('id="failures"') < page.index('id="latency"')
    assert "timeout_first" in page
    assert "5 requests failed" in page


@pytest.mark.parametrize("made", [Made(), Made(records=[failed(0, "connect")]), Made(status="killed")])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_run_with_next_to_nothing_still_has_a_page(made: Made, lang: Language) -> None:
    page = html_of(made, lang)
    assert "</html>" in page
    assert not re.search(r">\s*nan\b", page, re.IGNORECASE)
    assert ">None<" not in page


def test_an_hour_of_load_stays_small() -> None:
    """7,200 readings of each series and 12,000 requests: drawn with every peak, in less than 3 MB."""
    base = healthy().records
    made = Made(records=[], workload={"name": "hour"})
    made.records = [_moved(base[i % len(base)], i) for i in range(12_000)]
    usage = [0.3 + 0.2 * (i % 7) / 7 for i in range(7_200)]
    usage[4_321] = 0.987
    made.gauge("engine.kv_usage_ratio", usage)
    for name in ("requests_running", "requests_waiting", "preemptions_total", "kv_pool_bytes"):
        made.gauge(f"engine.{name}", [float(i) for i in range(7_200)])
    made.gauge("server.rss_bytes", [1e9 + i for i in range(7_200)])
    run = made.build()
    found = Diagnosis(primary="healthy_baseline", validity=Validity(valid=True))
    page = render_html(summarise(run), found, None, data=run)
    assert len(page.encode()) < 3_000_000
    assert "98.7 %" in page, "the one high reading is in the chart's numbers"


def _moved(record: object, i: int) -> object:
    """A copy of a request, `i` times 0.3 s later."""
    import msgspec

    shift = i * 300 * MS
    fields = msgspec.structs.asdict(record)  # type: ignore[type-var]
    moved = {k: v + shift for k, v in fields.items() if k.endswith("_ns") and isinstance(v, int)}
    return msgspec.structs.replace(record, request_id=f"h{i}", plan_index=i, **moved)  # type: ignore[type-var]


def test_the_run_directory_gets_the_same_page_that_report_makes(tmp_path: Path) -> None:
    assert html_of(healthy()) == html_of(healthy())


def test_headings_step_down_one_at_a_time_and_every_column_has_a_name() -> None:
    for page in (html_of(healthy()), launch_page()):
        levels = [int(level) for level in re.findall(r"<h([1-6])", page)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(b <= a + 1 for a, b in pairwise(levels))
        assert not re.findall(r"<th[^>]*></th>", page)
        labels = re.findall(r'role="region" aria-label="([^"]*)"', page)
        assert len(labels) == len(set(labels)), "a screen reader tells the tables apart"


def test_a_long_name_does_not_fill_the_first_screen() -> None:
    made = healthy()
    made.workload = {"name": "长" * 5_000}
    title = re.findall(r"<h1>(.*?)</h1>", html_of(made))[0]
    assert len(title) <= 120
    assert title.endswith("run report")


def test_what_stands_between_backticks_is_code_and_stays_inert() -> None:
    report = Report(lang="en", title="t", subtitle="s", badges=[], first=[], sections=[])
    report.first = [Para("pass `--kv-memory 8MiB`, or `<img src=x onerror=alert(1)>`")]
    page = render_page(report)
    assert "<code>--kv-memory 8MiB</code>" in page
    assert "<code>&lt;img src=x onerror=alert(1)&gt;</code>" in page
