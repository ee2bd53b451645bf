"""What charts are drawn from: reduction that keeps peaks, scales, waits taken apart."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.report.charts_capacity import number
from kvprobe.report.charts_memory import Bar, best_hit, waterfall
from kvprobe.report.charts_prefix import branches, tree_chart
from kvprobe.report.reduce import SPANS, peaks, steps
from kvprobe.report.run_gaps import gaps
from kvprobe.report.run_series import hit_share, output_rate, server_wait
from kvprobe.report.scales import Scale, linear_ticks, log_ticks, nice_top, text_width
from kvprobe.report.svg import Drawing, count_axis
from kvprobe.report.words import words
from tests.summary.synthetic import MS, T0, Made, S, record


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3_000))
def test_a_reduced_series_keeps_its_peaks_its_ends_and_its_order(values: list[float]) -> None:
    points = [(float(i), v) for i, v in enumerate(values)]
    kept = peaks(points)
    assert len(kept) <= 2 * SPANS + 2
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert max(v for _, v in kept) == max(values)
    assert min(v for _, v in kept) == min(values)
    assert kept == sorted(kept, key=lambda p: p[0])
    assert set(kept) <= set(points)


def test_every_span_keeps_its_own_peak() -> None:
    points = [(float(i), 1.0 if i % 100 else 5.0 + i) for i in range(10_000)]
    high = {v for _, v in points if v > 1}
    assert high <= {v for _, v in peaks(points, spans=100)}


@given(st.lists(st.floats(0, 100), min_size=1, max_size=1_000))
def test_steps_keep_the_tail(values: list[float]) -> None:
    ordered = sorted(values)
    found = steps(ordered)
    assert found[-1] == (ordered[-1], 1.0)
    assert [v for v, _ in found[-20:]] == ordered[-20:]
    assert all(a[1] < b[1] for a, b in pairwise(found))


@given(st.floats(1e-6, 1e9), st.floats(1.001, 1e4), st.integers(2, 12))
def test_ticks_lie_inside_and_are_not_too_many(low: float, factor: float, most: int) -> None:
    high = low * factor
    for ticks in (linear_ticks(low, high, most), log_ticks(low, high, most)):
        assert all(low * (1 - 1e-6) <= t <= high * (1 + 1e-6) for t in ticks)
        assert len(ticks) <= most + 1


def test_an_axis_of_less_than_a_decade_has_enough_values_to_be_read() -> None:
    for low, high in ((1.7, 3.6), (0.11, 0.19), (1.0, 4.9), (9.0, 11.0)):
        assert len(log_ticks(low, high, 6)) >= 3, (low, high)


def test_scales() -> None:
    assert Scale(0, 10, 100, 200)(5) == 150
    assert Scale(0, 10, 100, 200)(50) == 200, "never outside"
    assert Scale(1, 100, 0, 200, log=True)(10) == pytest.approx(100)
    assert nice_top(0.93) == 1.0
    assert nice_top(17) == 20
    assert text_width("缓存", 12) > 24 >= text_width("ab", 12)


def test_gaps_are_split_by_whether_another_request_was_in_prefill() -> None:
    """b is in prefill from 205 to 505 ms: of a's gaps (100 ms each, from 100 ms on) four overlap it."""
    a = record(0, sent_ms=0, ttft_ms=100, gap_ms=[100.0] * 9, tokens=10)
    b = record(1, sent_ms=205, ttft_ms=300, gap_ms=[], tokens=1)
    found = gaps([a, b])
    assert found.beside_prefill.size == 4
    assert found.alone.size == 5


def test_gaps_beside_prefill_are_told_apart_by_the_prompt_tokens_on_their_way() -> None:
    """60 gaps beside 400 tokens and 60 beside 3,000; what the cache served is not computed."""
    stream = record(0, sent_ms=0, ttft_ms=100, gap_ms=[10.0] * 200, tokens=201)
    small = record(1, sent_ms=205, ttft_ms=590, prompt=1_400, cached=1_000, gap_ms=[], tokens=1)
    large = record(2, sent_ms=1_005, ttft_ms=590, prompt=3_000, gap_ms=[], tokens=1)
    found = gaps([stream, small, large])
    assert [(c.low, c.high, c.seconds.size) for c in found.by_tokens] == [(0, 512, 60), (2_048, 8_192, 60)]
    assert found.beside_prefill.size == 120
    assert found.alone.size == 80
    unknown = record(3, sent_ms=1_500, prompt_tokens=None)
    assert gaps([stream, small, unknown]).by_tokens == ()


def test_a_tree_of_prefixes_leaves_out_what_is_no_node() -> None:
    nodes = [
        {"tokens": 64, "prompts": 9, "saved_tokens": 512, "before": "x", "after": ["a", "b"], "depth": 0},
        {"tokens": "many", "prompts": 9, "saved_tokens": 1},
        {"tokens": 80, "prompts": 2, "saved_tokens": 16, "after": {"a": 1}, "depth": 10**9},
        "no node",
    ]
    found = branches({"tree": nodes})
    assert [(b.tokens, b.depth) for b in found] == [(64, 0), (80, 6)]
    figure = tree_chart(words("en"), {"tree": nodes, "prompt_tokens": 1_024})
    assert figure is not None
    assert [row[0].text for row in figure.table.rows] == ["64", "– – – – – – 80"]  # type: ignore[union-attr]
    for nothing in (None, [], "x", {}, {"tree": []}, {"tree": 3}):
        assert tree_chart(words("en"), nothing) is None


def test_numbers_out_of_a_document_are_finite_ones() -> None:
    assert number(3) == 3.0
    for other in (True, None, "3", float("nan"), float("inf"), 10**400, 1e308):
        assert number(other) is None


def test_a_server_histogram_gives_its_mean_and_the_borders_of_its_percentiles() -> None:
    made = Made(records=[record(i, sent_ms=100 * i) for i in range(10)]).marks()
    for border, count in (("0.1", 5.0), ("0.5", 9.0), ("+Inf", 10.0)):
        made.gauge("engine.queue_seconds_bucket", [0.0, count], every_ms=made.span_ms(), le=border)
    made.counter("engine.queue_seconds_sum", 0.0, 3.0).counter("engine.queue_seconds_count", 0.0, 10.0)
    wait = server_wait(made.build(), "engine.queue_seconds")
    assert wait is not None
    assert wait.mean_s == pytest.approx(0.3)
    assert wait.p50 == (0.0, 0.1)
    assert wait.p95 == (0.5, None), "above the last finite border"
    assert server_wait(Made().build(), "engine.queue_seconds") is None


def test_an_output_rate_has_an_interval_only_over_ten_seconds() -> None:
    records = [record(i, sent_ms=100 * i, gap_ms=1.0) for i in range(300)]
    long = output_rate(records, T0, T0 + 30 * S, 320.0)
    assert long.lo is not None
    assert long.hi is not None
    assert long.lo < 320.0 < long.hi
    short = output_rate(records, T0, T0 + 5_000 * MS, 320.0)
    assert short.lo is None
    assert "10 s" in (short.reason or "")


def test_a_hit_rate_has_an_interval_only_from_twenty_requests_on() -> None:
    rng = np.random.default_rng(1)
    pairs = [(int(c), 100) for c in rng.integers(0, 100, 200)]
    value = sum(c for c, _ in pairs) / 20_000
    found = hit_share(pairs, value)
    assert found.lo is not None
    assert found.hi is not None
    assert found.lo < value < found.hi
    assert hit_share(pairs[:19], value).lo is None


def test_only_whole_blocks_of_a_prefix_are_reused() -> None:
    assert best_hit(15, 16, 16) == 0.0
    assert best_hit(16, 16, 16) == 0.5
    assert best_hit(31, 16, 1) == 0.5


def test_a_label_that_has_room_is_not_cut() -> None:
    """The longest one makes the room; it was cut itself."""
    bars = [Bar("tokens of running requests", 0.0, 4.0, "s1r"), Bar("free", 4.0, 9.0, "s2r")]
    chart = waterfall(words("en"), "name", "title", "description", bars)
    assert "tokens of running requests<" in chart.draw(900)[0]


def test_a_few_requests_are_counted_in_whole_numbers() -> None:
    for top in (1.0, 2.0, 3.0):
        d = Drawing()
        count_axis(d, Scale(0.0, top, 100.0, 0.0), 10.0, 100.0, lambda v: f"{v:g}", 4)
        assert "." not in "".join(re.findall(r">([^<]+)</text>", d.out()))
