"""Length distributions from a text."""

from __future__ import annotations

import math

import pytest

from kvprobe.errors import UsageError
from kvprobe.plan.lengths import from_counts, parse_lengths


def test_fixed() -> None:
    found = parse_lengths("fixed:4096")
    assert (found.tokens, found.weights) == ((4096,), (1.0,))
    assert (found.mean_tokens, found.p50_tokens, found.p95_tokens, found.max_tokens) == (
        4096,
        4096,
        4096,
        4096,
    )


def test_quantiles_pass_through_what_was_said() -> None:
    found = parse_lengths("p50=1000,p95=8000,max=32000")
    assert (found.p50_tokens, found.p95_tokens, found.max_tokens) == (1000, 8000, 32000)
    assert found.quantile(0.5) == pytest.approx(1000, rel=0.01)
    assert found.quantile(0.95) == pytest.approx(8000, rel=0.01)
    assert found.tokens[-1] <= 32000
    assert 1 <= found.tokens[0] < 100
    assert found.mean_tokens > found.p50_tokens  # a tail pulls the mean up
    assert any("lognormal" in note for note in found.assumptions)


def test_quantiles_without_a_max_say_where_the_tail_ends() -> None:
    found = parse_lengths("p50=1000,p99=9000")
    assert found.max_tokens > 9000
    assert any("slope goes on" in note for note in found.assumptions)


def test_lognormal_has_its_median_and_mean() -> None:
    found = parse_lengths("lognormal:median=1000,sigma=0.8")
    assert found.p50_tokens == 1000
    assert found.mean_tokens == pytest.approx(1000 * math.exp(0.32), rel=0.02)
    by_p95 = parse_lengths("lognormal:median=1000,p95=3729")
    assert by_p95.mean_tokens == pytest.approx(found.mean_tokens, rel=0.02)
    by_mean = parse_lengths(f"lognormal:median=1000,mean={1000 * math.exp(0.32):.1f}")
    assert by_mean.mean_tokens == pytest.approx(found.mean_tokens, rel=0.02)


def test_a_lognormal_with_a_max_is_cut_there() -> None:
    assert parse_lengths("lognormal:median=1000,sigma=2,max=5000").tokens[-1] == 5000


@pytest.mark.parametrize("spec", ["uniform:100-300", "uniform:min=100,max=300"])
def test_uniform(spec: str) -> None:
    found = parse_lengths(spec)
    assert found.mean_tokens == pytest.approx(200, abs=1)
    assert 100 <= found.tokens[0] < found.tokens[-1] <= 300


def test_weights_sum_to_one_and_lengths_are_merged() -> None:
    found = from_counts("t", "test", [(5, 1), (7, 2), (5, 1)], 4)
    assert found.tokens == (5, 7)
    assert found.weights == (0.5, 0.5)
    assert found.p50_tokens == 5


def test_capped_and_split() -> None:
    found = from_counts("t", "test", [(10, 1), (100, 1), (1000, 2)], 4)
    assert found.capped(100).tokens == (10, 100)
    assert found.capped(100).max_tokens == 100
    short, long = found.split(100)
    assert short is not None
    assert long is not None
    assert (short.tokens, long.tokens) == ((10, 100), (1000,))
    assert sum(short.weights) == pytest.approx(1)
    assert found.split(5000)[1] is None


@pytest.mark.parametrize(
    "spec",
    [
        "p50=9,p95=3",
        "p50=0",
        "p50=-4",
        "p50=x",
        "p101=5",
        "q50=5",
        "fixed:",
        "fixed:0",
        "fixed:4.5",
        "uniform:9-3",
        "lognormal:sigma=1",
        "lognormal:median=5",
        "p50=5,p50=6",
        "p50=inf",
        "max=400",
        "nonsense",
        "nofile.csv",
    ],
)
def test_what_means_nothing_is_refused_with_a_fix(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_lengths(spec)
    problem = caught.value.problems[0]
    assert problem.code == "bad_lengths"
    assert spec in problem.message
    assert problem.fix
