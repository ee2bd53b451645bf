"""Cold against warm: who counts as which, and what may be concluded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvprobe.diagnose.contrast import contrast
from kvprobe.diagnose.decode import judge_ratio
from kvprobe.evidence.records import RequestRecord
from kvprobe.summary.quantiles import Ratio
from tests.summary.synthetic import healthy, record


def rows(**options: float | int | None) -> list[RequestRecord]:
    return healthy(**options).build().records  # type: ignore[arg-type]


@pytest.mark.parametrize("cached", [544, None])
def test_both_bases_find_the_same_contrast(cached: int | None) -> None:
    found = contrast(rows(cached=cached))
    assert found is not None
    assert found.too_small is None
    assert found.basis == ("cached_tokens" if cached else "send_order")
    assert len(found.cold) == found.families == 24
    assert found.ttft_ratio is not None
    assert found.ttft_ratio.value == pytest.approx(400 / 60, rel=0.1)
    assert found.ttft_ratio.lo is not None
    assert found.ttft_ratio.lo > 5
    assert found.decode is not None
    assert found.decode.verdict == "unchanged"


@pytest.mark.parametrize(("families", "each"), [(19, 8), (9, 30), (24, 1)])
def test_fewer_is_too_small(families: int, each: int) -> None:
    found = contrast(rows(families=families, each=each))
    if each == 1:
        assert found is None
        return
    assert found is not None
    assert found.too_small is not None
    assert found.too_small.startswith("n too small")
    assert found.ttft_ratio is None


def test_many_cold_requests_of_few_families_are_too_few() -> None:
    made = [record(i, prefix=f"p{i % 5}", cached=0, sent_ms=i) for i in range(60)]
    made += [record(100 + i, prefix=f"p{i % 5}", cached=544, sent_ms=1_000 + i) for i in range(60)]
    found = contrast(made)
    assert found is not None
    assert found.families == 5
    assert found.too_small is not None


def test_nothing_cached_is_no_contrast() -> None:
    assert contrast(rows(cached=0)) is None
    assert contrast([]) is None
    assert contrast([record(i, cached=None) for i in range(50)]) is None


def test_a_cached_template_is_no_contrast() -> None:
    assert contrast([record(i, prefix=f"p{i % 20}", cached=16 if i > 20 else 0) for i in range(100)]) is None


def test_partly_cached_requests_are_neither() -> None:
    made = rows()
    made += [record(900 + i, prefix="family-0", cached=272, sent_ms=90_000) for i in range(30)]
    found = contrast(made)
    assert found is not None
    assert len(found.cold) + len(found.warm) == 192


def test_a_decode_that_differs_is_said() -> None:
    found = contrast(rows(cold_gap_ms=20.0))
    assert found is not None
    assert found.decode is not None
    assert found.decode.verdict == "differs"


def pairs(gap_ms: Callable[[int], tuple[float, float]], *, apart_ms: float = 340.0) -> list[RequestRecord]:
    """24 cold requests, each with a warm one sent `apart_ms` after it; gaps (cold, warm) as given."""
    made: list[RequestRecord] = []
    for i in range(24):
        base, (cold, warm) = 2_000.0 * i, gap_ms(i)
        made.append(record(2 * i, prefix=f"p{i}", cached=0, sent_ms=base, ttft_ms=400, gap_ms=cold))
        other = f"p{(i + 23) % 24}"
        made.append(
            record(2 * i + 1, prefix=other, cached=544, sent_ms=base + apart_ms, ttft_ms=60, gap_ms=warm)
        )
    return made


def test_requests_that_decode_together_are_compared_with_each_other() -> None:
    """Steps of one engine are shared: what slows the cold one slows its neighbour, and is not its own."""
    found = contrast(pairs(lambda i: (10.0 + 20.0 * (i % 2), 10.0 + 20.0 * (i % 2))))
    assert found is not None
    assert found.decode is not None
    assert found.decode.method == "together"
    assert found.decode.ratio.value == pytest.approx(1.0)
    assert found.decode.verdict == "unchanged"


def test_gaps_beside_the_prefill_of_others_are_left_out() -> None:
    """Every cold request decodes beside another's prefill for a while, no warm one does."""
    made = pairs(lambda i: (10.0, 10.0), apart_ms=1_700.0)
    for i, r in enumerate(list(made)):
        if r.cached_tokens == 0:
            r.gaps_ns = [100_000_000] * 10 + [10_000_000] * 21
            assert r.first_token_ns is not None
            r.last_token_ns = r.first_token_ns + sum(r.gaps_ns)
            r.end_ns = r.last_token_ns
            busy = record(900 + i, prefix=None, cached=0, tokens=1, sent_ns=r.first_token_ns, warmup=True)
            busy.first_token_ns = r.first_token_ns + 1_000_000_000
            made.append(busy)
    found = contrast([r for r in made if not r.warmup], made)
    assert found is not None
    assert found.tpot_ratio is not None
    assert found.tpot_ratio.value is not None
    assert found.tpot_ratio.value < 0.5
    assert found.decode is not None
    assert found.decode.method == "undisturbed"
    assert found.decode.verdict == "unchanged"


def test_a_slower_machine_later_on_is_no_difference_of_decode() -> None:
    found = contrast(pairs(lambda i: (10.0 + i, 10.0 + i), apart_ms=1_000.0))
    assert found is not None
    assert found.decode is not None
    assert found.decode.method == "undisturbed"
    assert found.decode.verdict == "unchanged"


def test_without_company_or_enough_gaps_the_plain_ratio_is_given_as_such() -> None:
    made = rows()
    for r in made:
        r.gaps_ns = [sum(r.gaps_ns)]
        if r.cached_tokens:  # long after the last cold one
            r.first_token_ns = (r.first_token_ns or 0) + 10**12
            r.last_token_ns = (r.last_token_ns or 0) + 10**12
    found = contrast(made)
    assert found is not None
    assert found.too_small is None
    assert found.decode is not None
    assert found.decode.method == "plain"


def test_unlike_lengths_are_noted() -> None:
    made = rows()
    for r in made:
        if r.cached_tokens == 0:
            r.prompt_tokens = 2_000
    found = contrast(made)
    assert found is not None
    assert any("2,000" in note for note in found.notes)


@pytest.mark.parametrize(
    ("lo", "hi", "verdict"),
    [
        (0.95, 1.05, "unchanged"),
        (0.9, 0.97, "unchanged"),
        (0.8, 1.02, "cannot_tell"),
        (1.2, 1.4, "differs"),
        (0.5, 0.8, "differs"),
    ],
)
def test_verdict_of_an_interval(lo: float, hi: float, verdict: str) -> None:
    assert judge_ratio(Ratio(value=(lo + hi) / 2, lo=lo, hi=hi)) == verdict


def test_no_interval_cannot_tell() -> None:
    assert judge_ratio(Ratio(value=1.0)) == "cannot_tell"


def test_a_plain_ratio_never_says_that_decode_differed() -> None:
    """Cold requests that decode beside no warm one, in the company of others' prefill."""
    made = [record(i, prefix=f"p{i}", cached=0, sent_ms=i, gap_ms=20) for i in range(30)]
    made += [record(100 + i, prefix=f"p{i}", cached=544, sent_ms=90_000 + 400 * i) for i in range(30)]
    waiting = [record(200 + i, sent_ms=0, ttft_ms=60_000, cached=None) for i in range(2)]
    found = contrast(made, made + waiting)
    assert found is not None
    assert found.decode is not None
    assert found.tpot_ratio is not None
    assert judge_ratio(found.tpot_ratio) == "differs"
    assert (found.decode.method, found.decode.verdict) == ("plain", "cannot_tell")
