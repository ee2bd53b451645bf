"""What may be written as a threshold or an abort rule, and what is said of what may not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.errors import UsageError
from kvprobe.gates.expressions import parse, parse_expression, percentile
from kvprobe.gates.limits import ExpressionError
from kvprobe.gates.metrics import METRICS
from kvprobe.gates.rules import DEFAULT_GRACE_S, condition_of, rule_of


@pytest.mark.parametrize(
    ("text", "metric", "statistic", "op", "limit"),
    [
        ("ttft.p95 < 800ms", "ttft", "p95", "<", 0.8),
        ("ttft_s.p99.9<=2s", "ttft", "p99.9", "<=", 2.0),
        ("  tpot.mean < 1.5 m ", "tpot", "mean", "<", 90.0),
        ("itl.p99.99 < 250us", "gap", "p99.99", "<", 250e-6),
        ("ttft.p95<800\u00b5s", "ttft", "p95", "<", 800e-6),
        ("ttft.p95<800\u03bcs", "ttft", "p95", "<", 800e-6),
        ("e2e.max < 1h", "e2e", "max", "<", 3600.0),
        ("response_latency.median < 3s", "response_latency", "median", "<", 3.0),
        ("ttft.p0 > 1ms", "ttft", "p0", ">", 0.001),
        ("error_rate < 1%", "error_rate", None, "<", 0.01),
        ("error_rate < 0.5", "error_rate", None, "<", 0.5),
        ("kv_usage.p99 < 0.9", "kv_usage", "p99", "<", 0.9),
        ("waiting.max <= 20", "waiting", "max", "<=", 20.0),
        ("goodput > 5/s", "goodput", None, ">", 5.0),
        ("slo_attainment >= 95%", "slo_attainment", None, ">=", 0.95),
        ("prefix_hit_rate > 60 %", "prefix_hit_rate", None, ">", 0.6),
        ("preemptions == 0", "preemptions", None, "==", 0.0),
        ("output_tokens_per_s > 100", "output_tokens_per_s", None, ">", 100.0),
        ("output_tokens_per_s > 100 tok/s", "output_tokens_per_s", None, ">", 100.0),
        ("requests_per_s >= 2", "requests_per_s", None, ">=", 2.0),
    ],
)
def test_what_is_meant(text: str, metric: str, statistic: str | None, op: str, limit: float) -> None:
    gate = parse(text)
    assert (gate.metric, gate.statistic, gate.op) == (metric, statistic, op)
    assert gate.limit == pytest.approx(limit)
    assert gate.text == text.strip()


@pytest.mark.parametrize(
    ("text", "code", "fix", "offset"),
    [
        ("ttfft.p95 < 1s", "unknown_metric", "did you mean `ttft`?", 0),
        ("nonsense < 1s", "unknown_metric", "known: ttft", 0),
        ("ttft.p95 < 800", "missing_unit", "`800ms` or `800s`", 11),
        ("ttft < 1s", "missing_statistic", "ttft.p95", 4),
        ("ttft.95 < 1s", "unknown_statistic", "ttft.p95", 5),
        ("ttft.p999 < 1s", "unknown_statistic", "p99.9", 5),
        ("ttft.p100 < 1s", "unknown_statistic", "ttft.max", 5),
        ("ttft.avg < 1s", "unknown_statistic", "mean", 5),
        ("ttft.p95 = 1s", "threshold", "< <= > or >=", 9),
        ("ttft.p95 == 1s", "threshold", "< <= > or >=", 9),
        ("ttft.p95 < 1S", "bad_unit", "did you mean `s`?", 12),
        ("ttft.p95 < 1 seconds", "bad_unit", "did you mean `s`?", 13),
        ("ttft.p95 < soon", "threshold", "800ms", 11),
        ("ttft.p95", "threshold", "<", 8),
        ("ttft.p95 <", "threshold", "800ms", 10),
        ("ttft.p95 < 1s and 2s", "threshold", "again", 14),
        ("error_rate < 1", "missing_unit", "`1%` or `100%`", 13),
        ("error_rate < 5", "bad_limit", "`5%`", 13),
        ("error_rate.p95 < 1%", "threshold", "alone", 10),
        ("kv_usage.p99 < 90", "bad_limit", "`90%`", 15),
        ("kv_usage.p99 < 140%", "bad_limit", "100%", 15),
        ("kv_usage < 0.9", "missing_statistic", "kv_usage.p95", 8),
        ("goodput > 5", "missing_unit", "`5/s`", 10),
        ("goodput > 90%", "bad_unit", "slo_attainment", 12),
        ("preemptions < 3ms", "bad_unit", "alone", 15),
        ("", "threshold", "ttft.p95 < 800ms", 0),
        ("< 3", "threshold", "ttft.p95 < 800ms", 0),
        ("x" * 300, "threshold", "ttft.p95", 0),
        # What would pass, or fail, for ever.
        ("ttft.p95 < 800m", "bad_limit", "`800ms`", 11),
        ("ttft.p95 < 999999999999999h", "bad_limit", "can be missed", 11),
        ("ttft.p95 < 0ms", "bad_limit", "<=", 11),
        ("preemptions < 0", "bad_limit", "<=", 14),
        ("preemptions == 0.5", "bad_limit", "whole number", 15),
        ("kv_usage.max > 100%", "bad_limit", ">=", 15),
        # What copy and paste, and other languages, bring along.
        ("ttft.p95 < 1,000ms", "threshold", "write 1000", 11),
        ("ttft.p95 < 1_000ms", "threshold", "write 1000", 11),
        ("ttft.p95\u00a0< 800ms", "threshold", "plain blank", 8),
        ("ttft.p95 \u200b< 800ms", "threshold", "plain blank", 9),
        ("ttft.p95 \u2264 800ms", "threshold", "use <=", 9),
        ("ttft.p95 => 800ms", "threshold", "use >=", 9),
        ("preemptions != 0", "threshold", "use < or >", 12),
        ("preemptions = 0", "threshold", "use ==", 12),
        ("ttft.p95 < \uff18\uff10\uff10ms", "threshold", "ttft.p95 < 800ms", 11),
        ("ttft.p95 < -5ms", "threshold", "ttft.p95 < 800ms", 11),
        ("ttft.p95 < nan", "threshold", "ttft.p95 < 800ms", 11),
        ("ttft.p95 < 1e3ms", "bad_unit", "units of time", 12),
        ("requests_per_s > 5%", "bad_unit", "5/s", 18),
    ],
)
def test_what_is_wrong_where_and_how_to_mend_it(text: str, code: str, fix: str, offset: int) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_expression(text)
    assert caught.value.code == code
    assert fix in caught.value.fix
    assert caught.value.offset == offset
    with pytest.raises(UsageError) as shown:
        parse(text, "--threshold")
    (problem,) = shown.value.problems
    assert (problem.path, problem.line, problem.column) == ("--threshold", 1, offset + 1)
    assert problem.source_line == text


def test_every_example_in_a_fix_is_right_itself() -> None:
    for name, metric in METRICS.items():
        statistic = "" if metric.form == "scalar" else ".p95"
        with pytest.raises(ExpressionError) as caught:
            parse_expression(f"{name}{statistic} < x")
        assert parse_expression(caught.value.fix.removeprefix("write ")).limit


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused_with_a_place_in_it(text: str) -> None:
    refused: ExpressionError | None = None
    try:
        assert parse_expression(text).metric in METRICS
    except ExpressionError as error:
        refused = error
    if refused is not None:
        assert 0 <= refused.offset <= len(text)
        assert refused.fix


@given(st.sampled_from(sorted(METRICS)), st.integers(0, 9999), st.sampled_from(["<", "<=", ">", ">="]))
def test_percentiles_of_any_two_digits(name: str, hundredths: int, op: str) -> None:
    statistic = f"p{hundredths / 100:g}"
    metric = METRICS[name]
    if metric.form == "scalar":
        return
    unit = "s" if metric.kind == "seconds" else ""
    gate = parse(f"{name}.{statistic} {op} 0.5{unit}")
    assert percentile(gate.statistic) == pytest.approx(hundredths / 1e4)


@pytest.mark.parametrize(
    ("text", "grace_s"),
    [
        ("error_rate > 50%", DEFAULT_GRACE_S),
        ("error_rate > 50% for 500ms", 0.5),
        ("kv_usage > 0.95 for 2m", 120.0),
        ("waiting > 100 for 0s", 0.0),
        ("ttft.p95 > 10s", DEFAULT_GRACE_S),
    ],
)
def test_abort_rules(text: str, grace_s: float) -> None:
    rule = rule_of(text)
    assert rule.grace_s == grace_s
    assert rule_of(rule.text) == rule


@pytest.mark.parametrize(
    ("text", "code", "fix"),
    [
        ("preemptions > 3", "not_live", "--threshold"),
        ("gap.p95 > 1s", "not_live", "--threshold"),
        ("kv_usage.p95 > 0.9", "threshold", "kv_usage"),
        ("error_rate > 50% for 5", "abort_rule", "for 10s"),
        ("error_rate > 50%!", "abort_rule", "for 10s"),
        ("error_rate > 50% for 3h", "abort_rule", "shorter"),
    ],
)
def test_abort_rules_that_are_none(text: str, code: str, fix: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        rule_of(text)
    assert caught.value.code == code
    assert fix in caught.value.fix


def test_a_condition_with_a_grace_of_its_own_beside_the_key() -> None:
    assert condition_of("error_rate > 50%").limit == 0.5
    with pytest.raises(ExpressionError):
        condition_of("error_rate > 50% for 10s")
