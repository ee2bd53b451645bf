"""The splitter against httpx-sse, for any text cut anywhere."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from httpx_sse._decoders import SSEDecoder, SSELineDecoder
from hypothesis import example, given
from hypothesis import strategies as st

from kvprobe.load.sse import EventTooLarge, SseSplitter, event_data, has_data, parse_event

LINES = st.one_of(
    st.sampled_from(
        ["", "", "", "data: a", "data:", "data", ": comment", ":", "event: e", "id: 1", "retry: 5"]
    ),
    st.sampled_from(["data:  two blanks", "data: [DONE]", "database: x", "DATA: x", "data : x", "da", "x"]),
    st.text(
        st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"])
        | st.sampled_from("\u2028\x85 :\x0b"),
        max_size=12,
    ),
)
DOCUMENTS = st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n", "\r"])), max_size=30).map(
    lambda pairs: "".join(line + end for line, end in pairs)
)


def cut(body: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({min(c, len(body)) for c in cuts} | {0, len(body)})
    return [body[a:b] for a, b in pairwise(places)]


def ours(pieces: list[bytes]) -> list[tuple[str, str]]:
    """(event name, data) of what would be dispatched."""
    splitter = SseSplitter()
    events = [parse_event(raw.block) for piece in pieces for raw in splitter.feed(piece)]
    return [(e.event, e.data.decode()) for e in events if e.data is not None]


def oracle(text: str) -> list[tuple[str, str]]:
    """The same by httpx-sse, which also hands out events without data: those are left out here."""
    lines = SSELineDecoder().decode(text) if text else []
    if text.endswith("\r"):  # it keeps a CR back until it sees what follows
        lines = SSELineDecoder().decode(text + "\n")
    decoder = SSEDecoder()
    events, with_data = [], False
    for line in lines:
        event = decoder.decode(line)
        if event is not None and with_data:
            events.append((event.event, event.data))
        with_data = line != "" and (with_data or line.partition(":")[0] == "data")
    return events


@given(DOCUMENTS, st.lists(st.integers(0, 400), max_size=12))
@example("data: a\r\ndata: b\r\r\n\rdata: c\n\r", [8, 9])
@example("data: \u2028\x85\n\n", [7, 8])
def test_any_document_cut_anywhere_gives_what_httpx_sse_gives(text, cuts):
    body = text.encode()
    expected = oracle(text)
    assert ours(cut(body, cuts)) == expected
    assert ours([bytes([b]) for b in body]) == expected


@given(DOCUMENTS, st.lists(st.integers(0, 400), max_size=12))
def test_nothing_is_lost_and_offsets_are_true(text, cuts):
    """With LF line ends: the events and the tail are the document's bytes where the offsets say."""
    body = text.replace("\r\n", "\n").replace("\r", "\n").encode()
    splitter = SseSplitter()
    events = [event for piece in cut(body, cuts) for event in splitter.feed(piece)]
    tail = splitter.tail()
    rest = bytearray(body)
    for offset, block in [*events, *([tail] if tail else [])]:
        assert body[offset : offset + len(block)] == block
        rest[offset : offset + len(block)] = b"\n" * len(block)
    assert rest == b"\n" * len(body)
    assert all(b"\n\n" not in block for _, block in events)


@given(DOCUMENTS, st.lists(st.integers(0, 400), max_size=12))
def test_a_byte_order_mark_is_taken_off_once(text, cuts):
    body = b"\xef\xbb\xbf" + text.encode()
    assert ours(cut(body, cuts)) == oracle(text)


def test_an_event_is_handed_out_at_its_cr_without_waiting_for_the_lf():
    splitter = SseSplitter()
    assert [e.block for e in splitter.feed(b"data: a\r\r")] == [b"data: a"]
    assert splitter.feed(b"\n") == []
    assert [e.block for e in splitter.feed(b"data: b\r\n\r\n")] == [b"data: b"]


def test_the_unterminated_tail_is_kept():
    splitter = SseSplitter()
    assert splitter.feed(b"data: a\n\ndata: b\n")[0].block == b"data: a"
    tail = splitter.tail()
    assert tail is not None
    assert (tail.offset, tail.block) == (9, b"data: b")
    assert SseSplitter().tail() is None


@pytest.mark.parametrize("piece", [1, 10, 1000])
def test_an_event_over_the_limit_is_refused_and_those_before_it_are_told(piece):
    splitter = SseSplitter(max_event_bytes=100)
    body = b"data: a\n\n" + b"data: " + b"x" * 200 + b"\n\n"
    seen = []

    def feed_all() -> None:
        for start in range(0, len(body), piece):
            seen.extend(splitter.feed(body[start : start + piece]))

    with pytest.raises(EventTooLarge) as caught:
        feed_all()
    assert [e.block for e in [*seen, *caught.value.events]] == [b"data: a"]


def test_the_limit_is_of_one_event():
    splitter = SseSplitter(max_event_bytes=100)
    event = b"data: " + b"x" * 94 + b"\n\n"
    assert len(splitter.feed(event * 50)) == 50
    assert len(splitter.feed(event * 50 + b"d")) == 50


def cpu_s(size: int) -> float:
    body = b"data: " + b"x" * size + b"\n\n"
    splitter = SseSplitter(max_event_bytes=1 << 30)
    started = time.process_time()
    for i in range(len(body)):
        splitter.feed(body[i : i + 1])
    return time.process_time() - started


def test_one_byte_pieces_take_linear_time():
    """Eight times the bytes may take 8 times the time; quadratic would be 64."""
    small = min(cpu_s(25_000) for _ in range(3))
    large = min(cpu_s(200_000) for _ in range(2))
    assert large < 30 * small


def test_fields():
    event = parse_event(b"event: e\nid: 7\nretry: 5\ndata: a\ndata:b\n: no\nother: x")
    assert event == ("e", b"a\nb", "7", 5)
    assert parse_event(b"id: a\0b\nretry: 5x\nevent").id is None
    assert event_data(b": only a comment") is None
    assert event_data(b"data") == b""
    assert event_data(b"data:  x") == b" x"


@given(DOCUMENTS)
def test_has_data_never_misses_an_event_with_data(text):
    for raw in SseSplitter().feed(text.encode()):
        assert has_data(raw.block) == bool((event_data(raw.block) or b"").strip())
