"""Whatever a log holds: never an exception, never more than linear time, with every reader there is."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvprobe.observe.logs.cleaning import cleaned
from kvprobe.observe.logs.intake import read_text
from kvprobe.observe.logs.lines import Line, Reader
from kvprobe.observe.logs.page import NOTHING_AROUND
from kvprobe.observe.logs.readers import all_readers
from kvprobe.observe.logs.vocabulary import EVENTS
from tests.observe.logs.logkit import OOM
from tests.observe.logs.test_prefixes import PREFIXES

ANCHORS = sorted({anchor for reader in all_readers() for anchor in reader.anchors})
SHORT = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))

numbers = st.sampled_from(["0", "-1", "1.5", "99999999999999999999999999", "1e400", "nan", "1,234", "", "."])
units = st.sampled_from(["GiB", "MiB", "bytes", "%", "GB", "tokens", "", ")", "("])
pieces = st.one_of(
    st.sampled_from(ANCHORS),
    st.builds("{} {}".format, numbers, units),
    st.text(max_size=30),
    st.sampled_from(
        [OOM, OOM[:100], OOM[100:], '"', "{", "}", "\\", "'", "\t", "prompt: '", "pid=", ": ", "[", "]"]
    ),
)
lines = st.builds(
    lambda prefix, parts: prefix + " ".join(parts),
    st.sampled_from(["", *(p for p, *_ in PREFIXES)]),
    st.lists(pieces, max_size=8),
)


@SHORT
@given(st.lists(lines, max_size=30), st.sampled_from(["\n", "\r\n", "\r", "\n\n"]))
def test_anchors_numbers_and_prefixes_in_any_order(some: list[str], end: str) -> None:
    read = read_text(end.join(some))
    for event in read.events:
        assert event.name in EVENTS
        assert event.line >= 1


@SHORT
@given(st.binary(max_size=2000), st.sampled_from(ANCHORS))
def test_bytes_of_any_kind(garbage: bytes, anchor: str) -> None:
    read_text(garbage + anchor.encode() + garbage)


HOSTILE = [
    "a" * 60_000,
    " " * 60_000,
    "0" * 60_000,
    "." * 60_000,
    "(" * 60_000,
    "[" * 60_000,
    "{" * 60_000,
    '"' * 60_000,
    "\\" * 60_000,
    "a." * 30_000,
    "a: " * 20_000,
    "a_" * 30_000,
    "1 GiB " * 10_000,
    "1.5 " * 15_000,
    "12:" * 20_000,
    "x=1 " * 15_000,
    "'a', " * 12_000,
    "> " * 30_000,
    "- " * 30_000,
    "&quot;" * 10_000,
    "prompt: '" * 6_000,
    '"GET /' * 10_000,
    'File "a", line 1' * 3_000,
    "\x1b[" * 30_000,
    "\x1b]0;" * 12_000,
    "(A pid=" * 8_000,
    "<|user|>" * 7_000,
    "|" * 60_000,
    "é" * 30_000,
    "2026-01-02 03:04:05 " * 3_000,
]


@pytest.mark.parametrize("body", HOSTILE, ids=lambda b: repr(b[:6]))
def test_hostile_lines_take_linear_time(body: str) -> None:
    """CPU time, generously: a pattern that backtracks takes minutes here, a linear one less than a second."""
    begin = time.process_time()
    for anchor in ANCHORS[:: max(1, len(ANCHORS) // 12)]:
        read_text(f"{anchor} {body}\n")
    whole = " ".join(ANCHORS)
    read_text(f"{whole} {body}\n{body} {whole}\n")
    assert time.process_time() - begin < 20


@pytest.mark.parametrize("reader", all_readers(), ids=lambda r: r.name)
def test_each_reader_alone_takes_linear_time(reader: Reader) -> None:
    """64 KiB behind some of its anchors, in the shapes that make patterns backtrack. CPU time, generously."""
    begin = time.process_time()
    for anchor in reader.anchors[:: max(1, len(reader.anchors) // 4)]:
        for unit in ("a", " ", "0 ", "1.5 GiB ", "x=1, ", "1,"):
            text = (anchor + " " + unit * (65_536 // len(unit)))[:65_536]
            line = Line(source="x", number=1, text=cleaned(text), raw=text)
            list(reader.read(line, NOTHING_AROUND))
    assert time.process_time() - begin < 20


def test_readers_emit_what_the_vocabulary_declares() -> None:
    """Every event of a line made of each anchor with numbers behind it."""
    for anchor in ANCHORS:
        for event in read_text(
            f"INFO 01-02 03:04:05 [x.py:1] {anchor} 12 GiB 3 tokens (4) 5% x=6\n{anchor}: 7\n"
        ).events:
            assert set(event.values) <= set(EVENTS[event.name]), (anchor, event.name, set(event.values))
