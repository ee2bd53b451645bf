"""From blocks of bytes to events: line numbers, neighbours, broken lines, floods, bad readers."""

from __future__ import annotations

import random
import time

import pytest

from kvprobe.evidence.events import Event
from kvprobe.observe.logs import scan as scanning
from kvprobe.observe.logs.flood import Flood
from kvprobe.observe.logs.lines import Reader
from kvprobe.observe.logs.prefilter import Prefilter, needles
from tests.observe.logs.logkit import MARKER, scan


def numbered(n: int, every: int, rng: random.Random) -> tuple[str, list[int]]:
    """Lines of odd lengths and contents, with a marker now and then; and where the markers are."""
    lines, where = [], []
    for number in range(1, n + 1):
        if rng.randrange(every) == 0:
            where.append(number)
            kind = rng.choice("abcdefghijklmnopqrstuvwxyz") * rng.randrange(1, 5)
            lines.append(f"{kind} MARKER-LINE n={number}")
        else:
            lines.append("x" * rng.choice((0, 1, 40, 200, 3000)))
    return "\n".join(lines) + "\n", where


@pytest.mark.parametrize("seed", range(3))
def test_line_numbers_are_those_of_the_file(seed: int) -> None:
    text, where = numbered(8_000, 40, random.Random(seed))
    assert len(text) > 2 * (1 << 20), "more than two blocks"
    events, tally = scan(text)
    assert [e.line for e in events] == where
    assert [e.get("n") for e in events] == where
    assert tally.lines == 8_000
    assert tally.bytes == len(text)


def test_carriage_returns_and_missing_line_ends() -> None:
    events, tally = scan(b"a\r\nMARKER-LINE n=2\r\n10%\r20%\rMARKER-LINE n=3\r\nMARKER-LINE n=4")
    assert [(e.line, e.get("n")) for e in events] == [(2, 2), (3, 3), (4, 4)]
    assert tally.lines == 4


def test_neighbours_are_of_the_same_rank() -> None:
    lines = []
    for i in range(20):
        lines += [f"(Worker_TP{r} pid={100 + r}) step {i}" for r in range(4)]
    lines.insert(40, "(Worker_TP2 pid=102) MARKER-LINE n=1")
    (event,), _ = scan("\n".join(lines))
    assert event.rank == "Worker_TP2"
    assert event.get("above") == ["step 8", "step 9"]
    assert event.get("below") == ["step 10", "step 11"]


@pytest.mark.parametrize("glue", ["\n", " \n", "\n    ", "\n> "])
def test_a_message_broken_at_a_word_is_read_whole(glue: str) -> None:
    start = "ERROR 01-02 03:04:05 [core.py:1] something long enough to be broken MARKER-LINE n=5"
    (event,), _ = scan(
        f"before\n{start}{glue}size=77 and more\nINFO 01-02 03:04:05 [core.py:1] next\n", fold=True
    )
    assert (event.line, event.get("n"), event.get("size")) == (2, 5, 77)


def test_a_message_broken_at_the_screens_edge_is_read_whole() -> None:
    start = "ERROR 01-02 03:04:05 [core.py:1] something that is long enough"
    message = f"{start} MARKER-LINE n=123456 size=77 and more of it"
    for width in range(52, len(message) // 2):  # three pieces: their equal width tells how
        if "MARKER-LINE" not in message[:width] and "MARKER-LINE" not in message[width:]:
            continue  # this invented reader has one anchor, which is broken itself
        pieces = "\n".join(message[i : i + width] for i in range(0, len(message), width))
        events, _ = scan(pieces + "\n", fold=True)
        assert [(e.get("n"), e.get("size")) for e in events] == [(123456, 77)], width


def test_a_following_line_of_its_own_is_no_broken_piece() -> None:
    start = "ERROR 01-02 03:04:05 [core.py:1] something long enough to be broken MARKER-LINE n=5"
    (event,), _ = scan(f"{start}\nINFO 01-02 03:04:05 [core.py:2] size=77\n")
    assert event.get("size") is None


def test_a_flood_is_sampled_and_its_end_and_the_news_are_not_lost() -> None:
    lines = [f"INFO 01-02 03:04:05 [x.py:1] MARKER-LINE n={i}" for i in range(30_000)]
    lines.insert(20_000, "ERROR something new MARKER-LINE n=777777")
    events, tally = scan("\n".join(lines))
    seen = [e.get("n") for e in events]
    assert 777777 in seen
    assert {*range(19_990, 20_000)} <= set(seen), "what stood just before the news"
    assert {*range(29_900, 30_000)} <= set(seen), "the end"
    assert len(seen) < 8_000
    assert tally.sampled_lines + len(seen) == 30_001
    assert all(e.line == e.get("n") + 1 for e in events if e.get("n") < 20_000)


def test_a_reader_that_fails_costs_its_own_facts_only() -> None:
    def fail(line: object, around: object) -> list[Event]:
        raise RuntimeError("a defect")

    broken = Reader(name="broken", engine=None, anchors=("MARKER-LINE",), read=fail)
    events, tally = scan("MARKER-LINE n=1\n", (broken, MARKER))
    assert len(events) == 1
    assert tally.skipped_lines == 1


def test_a_reader_that_dawdles_is_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "_READER_BUDGET_S", 0.05)
    calls = []

    def dawdle(line: object, around: object) -> list[Event]:
        calls.append(1)
        begin = time.thread_time()
        while time.thread_time() - begin < 0.1:
            pass
        return []

    slow = Reader(name="slow", engine=None, anchors=("MARKER-LINE",), read=dawdle)
    events, tally = scan("a MARKER-LINE n=1\nINFO: b MARKER-LINE n=2\n", (slow, MARKER))
    assert len(events) == 2
    assert len(calls) == 1
    assert "slow" in tally.notes[0]


def test_anchors_are_found_however_a_collector_writes_them() -> None:
    reader = Reader(
        name="q",
        engine=None,
        anchors=('msg="cache is full" n=', "K\u2082 \u2264 'free' memory"),
        read=MARKER.read,
    )
    prefilter = Prefilter([reader])
    for raw in (
        b'msg="cache is full" n=',
        b'msg=\\"cache is full\\" n=',
        b"msg=&quot;cache is full&quot; n=",
    ):
        assert prefilter.hits(raw), raw
    assert needles(["abc def", 'abc "def" ghi jkl', "abc"]) == (b"abc", b"ghi jkl")
    assert prefilter.readers_of('x msg="cache is full" n=1') == {0: 2}
    assert Prefilter([]).hits(b"x") == []


def test_lines_that_differ_in_numbers_and_ids_are_of_one_kind() -> None:
    """A number's width, or a request's id, must not make a kind of its own: each kind is read 2,047 times."""
    flood, read = Flood(), 0
    for i in range(40_000):
        rate = f"{1.5 ** (i % 40):.2f}"
        line = f"INFO Engine {i % 2}: cmpl-{i * 7919:x} waits: {i * i} of {rate} tokens/s".encode()
        read += flood.reads(line, line.index(b"waits"))[0]
    assert read < 12_000
