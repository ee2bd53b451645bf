"""The report on a terminal: what stands where, in which characters, and what never appears."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from kvprobe.diagnose.judge import diagnose_run
from kvprobe.report.ink import ASCII_LEVELS, BLOCKS, Ink, columns
from kvprobe.report.terminal import render_run
from kvprobe.summary.build import summarise
from tests.diagnose.test_judge import late_client, timestamp_first
from tests.summary.synthetic import Made, failed, healthy, record

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r[bold red]x[/]\u202e\u2028=1+1</script>"


def render(made: Made, *, width: int = 100, encoding: str = "utf-8", banner: str | None = None) -> str:
    run = made.build()
    summary = summarise(run)
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict", newline="\n")
    console = Console(file=stream, width=width, force_terminal=False, color_system=None, highlight=False)
    render_run(summary, diagnose_run(run, summary), console, banner)
    stream.flush()
    return raw.getvalue().decode(encoding)


def words(text: str) -> str:
    """Without line wraps."""
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_wider_than_the_terminal_and_no_escape_is_sent(width: int) -> None:
    for made in (healthy(), timestamp_first(), late_client(healthy()), Made(), Made(records=[record(0)])):
        text = render(made, width=width)
        assert max(len(line) for line in text.splitlines()) <= width
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", text)


@pytest.mark.parametrize("width", [80, 120])
def test_every_interval_of_the_table_is_whole(width: int) -> None:
    table = [
        line
        for line in render(healthy(), width=width).splitlines()
        if line.startswith(("TTFT ", "TPOT", "chunk"))
    ]
    assert len(table) == 3
    for line in table:
        assert line.count("[") == line.count("]") >= 2
    assert "n too small" in table[0]


def test_a_healthy_run_says_so_at_the_top_and_at_the_end() -> None:
    lines = render(healthy(), width=80).splitlines()
    assert "nothing wrong was found" in lines[1]
    assert "healthy_baseline" in "\n".join(lines[-3:])
    assert "saves prefill, never decode" in words("\n".join(lines))


def test_the_first_screen_has_verdict_reason_and_what_to_do() -> None:
    screen = words("\n".join(render(timestamp_first(), width=80).splitlines()[:12]))
    assert "prefix_layout_unstable (certain)" in screen
    assert "token 7" in screen
    assert "look first" in screen
    assert "remedy" in screen


def test_the_first_screen_says_whether_the_numbers_may_be_quoted() -> None:
    for made, told in ((healthy(), "validity valid"), (late_client(healthy()), "validity INVALID")):
        screen = words("\n".join(render(made, width=80).splitlines()[:14]))
        assert told in screen
        assert "the client was late" in screen or "warning" in screen
    screen = words("\n".join(render(healthy(), width=80).splitlines()[:20]))
    assert "saves prefill, never decode" in screen


def test_how_the_load_arrived_is_told_in_its_own_words() -> None:
    made = healthy()
    made.workload["arrival"] = {"closed": {"users": 4, "think_time": "0s"}}
    text = words(render(made))
    assert "closed loop, 4 users" in text
    assert "wanted" not in text
    assert "requests/s done" in text
    made.workload["arrival"] = {"open": {"process": "poisson", "rate": 30}}
    text = words(render(made))
    assert "open loop, poisson arrivals" in text
    assert "asked for 30.0/s" in text
    made.workload["arrival"] = ["nonsense"]
    assert "/s wanted" in words(render(made))


def test_a_page_that_was_never_read_is_not_a_server_that_exports_nothing() -> None:
    made = healthy()
    made.samples = [s for s in made.samples if not s.metric.startswith(("engine", "scrape"))]
    made.facts = [f for f in made.facts if f.name != "cache_config"]
    text = words(render(made))
    assert "KV use no server metrics" in text
    assert "KV pool: no server metrics" in text
    assert "not exported" not in text


def test_too_few_for_a_median_show_what_was_seen() -> None:
    text = render(Made(records=[record(0), record(1, sent_ms=500, ttft_ms=150)]), width=80)
    assert "seen 100 ms-150 ms" in text
    assert "nothing wrong was found in 2 requests, which is few" in text


def test_failures_stand_before_the_latencies() -> None:
    made = healthy()
    made.records += [failed(i, "status", status_code=503, failure_detail="overloaded") for i in range(3)]
    text = render(made)
    assert text.index("3 x status [3 x 503]") < text.index("TTFT")
    assert "overloaded" in text


def test_timeouts_have_a_row_of_their_own() -> None:
    made = healthy()
    made.records += [failed(i, "timeout_first", after_ms=30_000) for i in range(20)]
    text = render(made)
    assert "20 cut short" in text
    assert "censored" in text


def test_invalid_and_partial_stand_in_the_first_lines() -> None:
    text = render(late_client(healthy()), banner="PARTIAL: the run was killed")
    assert text.splitlines()[0].startswith("PARTIAL")
    assert text.splitlines()[1].startswith("INVALID")
    assert "client_bound" in text


def test_what_is_missing_is_never_a_zero() -> None:
    text = words(render(Made(records=[record(0, prompt_tokens=None, completion_tokens=None, cached=None)])))
    assert "KV use no server metrics" in text
    assert "server: no server metrics" in text
    assert "prefix hits no server metrics" in text
    assert "no usage" in text
    assert not re.search(r"(?<![\d.,])0(\.0+)? (ms|s|tokens/s|MiB)\b", text)


def test_ascii_terminals_get_ascii() -> None:
    made = healthy()
    made.workload["name"] = "日本語"
    text = render(made, encoding="ascii")
    assert text.isascii()
    assert "\\u65e5" in text
    kv_use = next(line for line in text.splitlines() if line.startswith("KV use"))
    assert any(level in kv_use for level in ASCII_LEVELS)
    utf8 = render(made)
    assert "日本語" in utf8
    assert any(block in utf8 for block in BLOCKS)


def test_latin_1_terminals_get_what_they_can_carry() -> None:
    made = healthy()
    made.workload["name"] = "über日"
    assert "über\\u65e5" in render(made, encoding="latin-1")


def test_hostile_words_are_inert_wherever_they_come_from() -> None:
    made = timestamp_first()
    made.workload["name"] = HOSTILE
    for fact in made.facts:
        if fact.name == "prompt_layout":
            fact.value = fact.value | {"diverge_texts": [HOSTILE, HOSTILE]}
        if fact.name == "target":
            fact.value = {"base_url": f"http://x/{HOSTILE}", "model": HOSTILE}
        if fact.name == "engine":
            fact.value = {"name": HOSTILE, "version": HOSTILE}
    made.records += [failed(i, "in_band_error", failure_detail=HOSTILE) for i in range(3)]
    text = render(made, width=120)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", text)
    assert "[bold red]" in text  # shown, never taken for markup
    assert "\\x1b[2J" in text


def test_colours_on_a_terminal_come_from_us_alone() -> None:
    made = healthy()
    made.workload["name"] = "\x1b[5mblink"
    run = made.build()
    summary = summarise(run)
    stream = io.StringIO()
    console = Console(file=stream, width=100, force_terminal=True, color_system="standard")
    render_run(summary, diagnose_run(run, summary), console, None)
    assert "\x1b[" in stream.getvalue()
    assert "\x1b[5m" not in stream.getvalue()


def test_sparkline_keeps_peaks_and_the_scale() -> None:
    points = [(float(i), 0.0) for i in range(1_000)]
    points[500] = (500.0, 1.0)
    ink = Ink(Console(file=io.StringIO(), width=80))
    line = ink.sparkline(points, 40).plain
    assert len(line) == 40
    assert line.count(BLOCKS[-1]) == 1
    assert set(line) == {BLOCKS[0], BLOCKS[-1]}


def test_sparkline_of_little() -> None:
    assert columns([], 40) == []
    assert columns([(1.0, 0.5)], 40) == [0.5]
    assert columns([(1.0, 0.5), (1.0, 0.7)], 40) == [0.7, None]
    assert columns([(0.0, 0.1), (10.0, 0.2)], 0) == []
    ink = Ink(Console(file=io.StringIO(), width=80))
    assert ink.sparkline([(0.0, -1.0), (1.0, 7.0)], 2).plain == BLOCKS[0] + BLOCKS[-1]
