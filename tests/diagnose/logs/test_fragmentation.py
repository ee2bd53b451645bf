"""The rule, step by step; the worked example and its contrasts are real messages."""

from __future__ import annotations

import pytest

from kvprobe.diagnose.fragmentation import GIB, MIB, OomNumbers, Verdict, judge


def _gib(value: float | None) -> int | None:
    return None if value is None else round(value * GIB)


def _judge(
    requested: float,
    total: float | None,
    free: float | None,
    allocated: float | None,
    unallocated: float | None,
    *,
    process: float | None = None,
    others: float | None = None,
    allowed: float | None = None,
) -> Verdict:
    return judge(
        OomNumbers(
            requested=round(requested * GIB),
            total=_gib(total),
            free=_gib(free),
            allocated=_gib(allocated),
            unallocated=_gib(unallocated),
            own_process=_gib(process),
            others=_gib(others),
            allowed=_gib(allowed),
        )
    )


def test_the_worked_example_is_likely_fragmentation_with_little_to_spare() -> None:
    verdict = _judge(2.34, 23.65, 1.03, 20.12, 21.88 - 20.12)
    assert verdict.step == "5b"
    assert verdict.fragmented
    assert verdict.margin is not None
    assert verdict.margin == pytest.approx(0.45 * GIB, abs=MIB)
    assert verdict.margin / (23.65 * GIB) == pytest.approx(0.019, abs=0.0005)
    assert verdict.outside == 0
    assert not verdict.full


@pytest.mark.parametrize(
    ("numbers", "process", "step", "full"),
    [
        pytest.param((10.84, 23.65, 10.26, 1.06, 11.47), None, "5a", False, id="strong_on_an_empty_card"),
        pytest.param((1.25, 93.02, 1.18, 90.63, 0.118), None, "5c", True, id="weights_simply_do_not_fit"),
        pytest.param(
            (138 / 1024, 79.15, 2.19 / 1024, 78.0, 611.6 / 1024), 79.12, "5a", True, id="budget_is_the_root"
        ),
        pytest.param((1.63, 44.56, 0.55, 27.91, 0.02), None, "4", False, id="another_process"),
    ],
)
def test_contrasts(numbers: tuple[float, ...], process: float | None, step: str, full: bool) -> None:
    verdict = _judge(*numbers, process=process)
    assert (verdict.step, verdict.full) == (step, full)


def test_the_contrast_with_another_process_says_how_much_it_holds() -> None:
    verdict = _judge(1.63, 44.56, 0.55, 27.91, 0.02)
    assert verdict.outside_decides
    assert verdict.outside == pytest.approx((44.56 - 0.55 - 27.93) * GIB - GIB, abs=MIB)
    assert verdict.deficit == pytest.approx(1.06 * GIB, abs=MIB)


@pytest.mark.parametrize(
    ("requested", "total"),
    [(2.0**30, 80.0), (2.0**34, None), (65.0 * 24, 24.0)],
    ids=["2^60", "2^64", "65_cards"],
)
def test_step_0_sizes_that_no_tensor_has(requested: float, total: float | None) -> None:
    assert _judge(requested, total, 1.0, 1.0, 0.0).step == "0"


def test_step_0_keeps_what_is_only_large() -> None:
    assert _judge(118.4, 79.15, 40.1, 37.5, 1.0).step == "1"


@pytest.mark.parametrize(
    ("free", "allocated"), [(84.98, 1.67), (0.0, 16.1)], ids=["free_above_total", "allocated_above_total"]
)
def test_step_0b_numbers_of_shared_memory_are_unusable(free: float, allocated: float) -> None:
    assert _judge(2.0, 15.49, free, allocated, 0.1).step == "0b"


def test_step_0b_leaves_only_more_than_the_card_to_be_used() -> None:
    assert _judge(40.0, 15.49, 20.0, 1.0, 0.0).step == "1"


def test_step_2_the_process_fraction_is_the_limit() -> None:
    verdict = _judge(1.0, 80.0, 60.0, 15.5, 0.1, allowed=16.0)
    assert verdict.limited
    assert verdict.step == "4"
    assert verdict.deficit == pytest.approx((15.5 + 1.0 - 16.0) * GIB, abs=MIB)


def test_step_2_a_fraction_that_has_room_changes_nothing() -> None:
    verdict = _judge(1.0, 80.0, 0.5, 70.0, 0.1, allowed=78.0)
    assert not verdict.limited
    assert verdict.step == "4"


def test_step_3_more_was_free_than_was_asked() -> None:
    assert _judge(0.42, 15.92, 7.12, 8.08, 0.3).step == "3"


def test_step_3_needs_more_than_a_segment_of_slack() -> None:
    at_the_edge = _judge(1.0, 24.0, 1.0 + 1 / 1024, 22.0, 0.0)
    assert at_the_edge.step == "4"
    assert _judge(1.0, 24.0, 1.0 + 2 / 1024, 22.0, 0.0).step == "3"


def test_step_4_is_short_whatever_the_allocator_does() -> None:
    verdict = _judge(2.0, 24.0, 0.5, 22.0, 1.0, process=23.4)
    assert verdict.step == "4"
    assert verdict.plainly_short
    assert verdict.deficit == GIB // 2
    assert not verdict.outside_decides


@pytest.mark.parametrize(
    ("total", "margin_share", "step"),
    [(24.0, 0.0099, "5c"), (24.0, 0.0101, "5b"), (8.0, 0.0199, "5c"), (8.0, 0.0201, "5b")],
)
def test_step_5_the_margin_is_one_percent_and_two_on_small_cards(
    total: float, margin_share: float, step: str
) -> None:
    requested, unallocated = 2.0, 1.5
    free = requested - unallocated + margin_share * total
    assert _judge(requested, total, free, total * 0.8, unallocated).step == step


def test_step_5a_the_pieces_alone_would_do() -> None:
    assert _judge(1.0, 24.0, 0.1, 20.0, 1.0).step == "5a"


@pytest.mark.parametrize(
    ("allocated", "process", "full"),
    [(21.5, None, False), (21.7, None, True), (15.0, 23.2, False), (15.0, 23.3, True)],
)
def test_step_6_full_by_what_is_allocated_or_by_the_process(
    allocated: float, process: float | None, full: bool
) -> None:
    assert _judge(0.5, 24.0, 0.1, allocated, 0.6, process=process).full is full


def test_named_processes_count_without_an_allowance() -> None:
    verdict = _judge(1.0, 24.0, 0.2, 20.0, 0.1, process=21.0, others=2.8)
    assert verdict.outside == pytest.approx(2.8 * GIB, abs=MIB)
    assert verdict.outside_decides


def test_a_display_is_no_reason() -> None:
    assert _judge(1.0, 24.0, 0.2, 22.0, 0.1, process=23.65).outside == 0


def test_too_little_is_no_verdict() -> None:
    assert judge(OomNumbers(requested=GIB)).step == "none"
    assert judge(OomNumbers(requested=GIB, total=24 * GIB)).step == "none"


def test_step_2_a_fraction_of_the_whole_card_is_no_limit() -> None:
    verdict = _judge(30.52, 79.10, 14.37, 62.19, 1.0, process=64.72, allowed=79.10)
    assert not verdict.limited
    assert verdict.step == "4"
