"""Sizes: units are strict, decimals are roundings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.errors import UsageError
from kvprobe.plan.pool import ByteRange
from kvprobe.plan.sizes import GIB, is_decimal_unit, is_size, parse_exact, parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("80GiB", 80 * GIB),
        ("80GB", 80 * 10**9),
        ("80 gb", 80 * 10**9),
        ("512MiB", 512 * 2**20),
        ("3KiB", 3072),
        ("123456B", 123456),
        ("0GiB", 0),
    ],
)
def test_a_whole_number_is_exact(text: str, size_bytes: int) -> None:
    assert parse_size(text, "--gpu") == ByteRange.of(size_bytes)


def test_decimals_are_a_rounding_to_the_last_of_them() -> None:
    """Half a step to either side, and a hundredth of a step for figures that were rounded twice."""
    found = parse_size("5.29GiB", "--available-kv")
    assert found.exact is None
    assert found.lo == pytest.approx(5.2849 * GIB, abs=2)
    assert found.hi == pytest.approx(5.2951 * GIB, abs=2)
    assert found.nominal == pytest.approx(5.29 * GIB, abs=2)


def test_a_decision_is_exact_with_decimals_too() -> None:
    assert parse_exact("1.5GiB", "--margin") == ByteRange.of(3 * GIB // 2)


@pytest.mark.parametrize("text", ["80", "14.5", "80G", "GiB", "-4GiB", "1e3GiB", "8 GiB!", "٣GiB", ""])
def test_what_has_no_clear_unit_is_refused_with_a_fix(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_size(text, "--gpu")
    problem = caught.value.problems[0]
    assert problem.code == "bad_size"
    assert "--gpu" in problem.message
    assert problem.fix


def test_a_bare_number_names_both_units() -> None:
    with pytest.raises(UsageError) as caught:
        parse_size("80", "--gpu")
    assert "80GiB" in (caught.value.problems[0].fix or "")
    assert "80GB" in (caught.value.problems[0].fix or "")


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(UsageError):
        parse_size("99999999TiB", "--gpu")


def test_gb_is_told_from_gib() -> None:
    assert is_decimal_unit("80GB")
    assert not is_decimal_unit("80GiB")
    assert not is_decimal_unit("H100")
    assert is_size("80")
    assert not is_size("RTX 4090")


@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from(["GiB", "GB", "MiB"]))
def test_a_printed_size_allows_exactly_what_prints_as_it(number: int, decimals: int, unit: str) -> None:
    text = f"{number / 10**decimals:.{decimals}f}"
    found = parse_size(text + unit, "--weights")
    factor = {"GiB": 2**30, "GB": 10**9, "MiB": 2**20}[unit]
    assert found.lo <= float(text) * factor <= found.hi + 1
    half = 0.5 / 10**decimals
    assert found.lo <= (float(text) - half) * factor + 1 or found.lo == 0
    assert found.hi >= (float(text) + half) * factor - 1
    for edge in (found.lo, found.hi):
        assert abs(edge / factor - float(text)) <= 1.02 * half + 1 / factor
