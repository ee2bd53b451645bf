"""The fast reader against prometheus-client's parser, and against damage."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kvprobe.observe.exposition import read_exposition

RECORDINGS = Path(__file__).parent / "recordings"
VLLM = (RECORDINGS / "vllm_0.32_after_preemption.txt").read_text()
LLAMA_CPP = (RECORDINGS / "llama_cpp_b11434_after.txt").read_text()

NAN = math.nan
Row = tuple[str, tuple[tuple[str, str], ...], str]


class Everything:
    """Wants every metric name."""

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) is not None


def comparable(samples: Iterable[tuple[str, dict[str, str], float]]) -> list[Row]:
    """Sorted, with NaN equal to itself and 0 to -0 (which the oracle reads as an integer)."""
    return sorted((name, tuple(sorted(labels.items())), repr(value + 0.0)) for name, labels, value in samples)


def oracle(text: str) -> list[Row]:
    """What prometheus-client reads, without the `_total` that it adds to counters that lack it."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return comparable(
        (s.name if s.name in text else s.name[: -len("_total")], s.labels, s.value) for s in samples
    )


def ours(text: str) -> list[Row]:
    """Read twice: the second time the labels that were seen before are not read again."""
    first, second = (
        comparable((name, dict(labels), value) for name, labels, value in page.samples)
        for page in (read_exposition(text, Everything()), read_exposition(text, Everything()))
    )
    assert first == second
    return first


@pytest.mark.parametrize("text", [VLLM, LLAMA_CPP], ids=["vllm", "llama.cpp"])
def test_recordings_read_as_the_oracle_reads_them(text: str) -> None:
    assert ours(text) == oracle(text)
    assert read_exposition(text, Everything()).damaged == 0


# Whatever stands in a label value: quotes, braces, commas, backslashes, any Unicode.
label_values = st.text(
    st.one_of(st.sampled_from('\\"{},=# \t\n'), st.characters(exclude_categories=["Cs"])), max_size=20
)
values = st.floats(allow_nan=True, allow_infinity=True)


@given(st.lists(st.tuples(label_values, label_values, values), max_size=6, unique_by=lambda row: row[:2]))
@settings(max_examples=150, deadline=None)
def test_any_page_that_prometheus_client_writes(rows: list[tuple[str, str, float]]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("vllm:g", 'help with "quotes" \\ and {braces}', ["a", "b_2"], registry=registry)
    counter = Counter("vllm:c", "c", ["a", "b_2"], registry=registry)
    histogram = Histogram("vllm:h", "h", ["a", "b_2"], registry=registry, buckets=(0.1, 2, 1e9))
    for a, b, value in rows:
        gauge.labels(a, b).set(value)
        counter.labels(a, b).inc(abs(value) if value == value else 1)
        histogram.labels(a, b).observe(value)
    text = generate_latest(registry).decode()
    assert ours(text) == oracle(text)


blanks = st.text(" \t", max_size=3)
raw_labels = st.lists(
    # The oracle refuses names that begin with two underscores; Prometheus keeps them for itself.
    st.tuples(st.from_regex(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]{0,5}", fullmatch=True), label_values),
    max_size=3,
    unique_by=lambda pair: pair[0],
)
numbers = st.one_of(
    values.map(repr), st.sampled_from(["NaN", "+Inf", "-Inf", "1e-05", "1E+3", "0x", "1_0", "12", ".5", "-0"])
)


@given(st.lists(st.tuples(blanks, blanks, raw_labels, blanks, numbers, st.booleans(), blanks), max_size=5))
@settings(max_examples=100, deadline=None)
def test_any_blanks_stamps_and_number_forms(
    rows: list[tuple[str, str, list[tuple[str, str]], str, str, bool, str]],
) -> None:
    lines = []
    for before, inside, labels, after, number, stamped, end in rows:
        inner = ",".join(f'{name}{inside}={inside}"{escape(value)}"{inside}' for name, value in labels)
        stamp = " 1700000000000" if stamped else ""
        text = f"{before}some:name{inside}{{{inside}{inner}}}{after} {number}{stamp}{end}"
        try:
            oracle(text + "\n")
        except ValueError:
            assert read_exposition(text + "\n", Everything()).samples == []
            continue
        lines.append(text)
    page = "".join(line + "\n" for line in lines)
    assert ours(page) == oracle(page)


def escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@given(st.text(max_size=200), st.integers(0, 3000))
@settings(max_examples=150, deadline=None)
def test_nothing_makes_it_raise(junk: str, cut: int) -> None:
    read_exposition(junk, Everything())
    read_exposition(VLLM[:cut] + junk, Everything())


def test_only_wanted_names_are_read() -> None:
    text = '# TYPE a gauge\na{x="1"} 1\n# TYPE b gauge\nb 2\na_b 3\nb{ 4\n'
    page = read_exposition(text, {"b", "c"})
    assert page.samples == [("b", {}, 2.0)]
    assert page.declared == {"b"}
    assert page.damaged == 1


def test_a_number_that_was_cut_off_is_dropped_not_read_short() -> None:
    page = read_exposition("a 1\na 23456"[:-2], {"a"})
    assert page.samples == [("a", {}, 1.0)]
    assert page.damaged == 1
    assert read_exposition("a 1\n# EOF", {"a"}).damaged == 0


@pytest.mark.parametrize(
    "line",
    [
        'a{x="1} 2',
        'a{x="1"',
        'a{x="1"}',
        "a",
        "a x",
        'a{x="1",x="2"} 3',
        "a{x=1} 2",
        'a{x="1"y="2"} 3',
        "a 1_000",
        "a 1 b",
    ],
)
def test_damaged_lines_are_counted(line: str) -> None:
    page = read_exposition(f"{line}\na 7\n", {"a"})
    assert page.samples == [("a", {}, 7.0)]
    assert page.damaged == 1


def test_a_line_that_was_seen_is_not_taken_for_another_with_more_behind_it() -> None:
    """What stands before the last blank is only a key when nothing but the number follows it."""
    assert read_exposition('a{x="1"} 5\n', {"a"}).samples == [("a", {"x": "1"}, 5.0)]
    for line in ('a{x="1"} 5 1700', 'a{x="1"} 5 # {t="x"} 9', 'a{x="1"}  5', 'a{x="1"}\t5', ' a{x="1"} 5'):
        assert read_exposition(line + "\n", {"a"}).samples == [("a", {"x": "1"}, 5.0)], line
    assert read_exposition('a{x="1"} 5_0\n', {"a"}).damaged == 1
    assert read_exposition('a{x="1"} \n', {"a"}).damaged == 1
    assert read_exposition('a{x="1 5"} 6\na{x="1 7"} 8\n', {"a"}).samples == [
        ("a", {"x": "1 5"}, 6.0),
        ("a", {"x": "1 7"}, 8.0),
    ]


def test_exemplars_and_windows_line_ends_are_tolerated() -> None:
    page = read_exposition(
        'a_bucket{le="1"} 5 # {trace="x y"} 0.5 1700000000\r\na 1 # {t="x"} 1\r\n', Everything()
    )
    assert page.samples == [("a_bucket", {"le": "1"}, 5.0), ("a", {}, 1.0)]


@pytest.mark.parametrize(
    "line",
    [
        "a" + " " * 10**6 + "{",
        'a{x="' + "\\" * 10**6,
        "a{" + '"' * 10**6,
        "a{" + 'x="1",' * 10**5 + "=",
        "a 1" + " " * 10**6 + "x",
    ],
    ids=["blanks", "backslashes", "quotes", "labels", "tail"],
)
def test_hostile_lines_cost_linear_time(line: str) -> None:
    """Quadratic matching of a megabyte would take hours: the test's own timeout is the judge."""
    begin = time.monotonic()
    assert read_exposition(line + "\n", {"a"}).damaged == 1
    assert time.monotonic() - begin < 60
