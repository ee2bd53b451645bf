"""The readers of GPU frameworks and vLLM on lines that nobody would write: no error, and no long time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.observe.logs.lines import Line, Reader
from kvprobe.observe.logs.readers import all_readers
from kvprobe.observe.logs.vocabulary import EVENTS

LONGEST = 65536
FILLINGS = ("a", "1", " ", "a/b.", "1,", '"', "!", 'File "a", line 1, in b ', "1.5 GiB ", "Process 1 has 1 ")
SLOWEST_S = 2.0
"""A quadratic pattern takes minutes here; a busy machine does not take this long for a linear one."""
OURS = ("torch_", "vllm_", "cuda_")


class Neighbours:
    """Around a hostile line stand hostile lines."""

    def __init__(self, text: str) -> None:
        self._line = Line(source="x", number=2, text=text, raw=text)

    def before(self, n: int) -> Sequence[Line]:
        return [self._line] * min(n, 4)

    def after(self, n: int) -> Sequence[Line]:
        return [self._line] * min(n, 4)


def ours() -> list[Reader]:
    return [r for r in all_readers() if r.name.startswith(OURS)]


@pytest.mark.parametrize("reader", ours(), ids=lambda r: r.name)
def test_long_lines_take_no_long_time(reader: Reader) -> None:
    for filling in FILLINGS:
        body = filling * (LONGEST // len(filling))
        for anchor in reader.anchors[:6]:
            text = (body[: LONGEST // 2] + anchor + body)[:LONGEST]
            began = time.thread_time()
            list(reader.read(Line(source="x", number=1, text=text, raw=text), Neighbours(body)))
            assert time.thread_time() - began < SLOWEST_S, (reader.name, anchor, filling)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_they_say_is_declared(data: st.DataObject) -> None:
    reader = data.draw(st.sampled_from(ours()))
    anchor = data.draw(st.sampled_from(reader.anchors))
    words = st.sampled_from(
        [
            "1.50 GiB",
            "0",
            "-3.2 GiB",
            "(",
            ")",
            "16",
            "None",
            "4096 tokens",
            "nan",
            "1e9",
            ",",
            "'x'",
            "=",
            ": ",
            "100%",
        ]
    )
    text = " ".join(
        [*data.draw(st.lists(words, max_size=6)), anchor, *data.draw(st.lists(words, max_size=12))]
    )
    for event in reader.read(Line(source="x", number=1, text=text, raw=text), Neighbours("1 GiB")):
        assert event.name in EVENTS
        for name, value in event.values.items():
            assert EVENTS[event.name][name][0] == value.unit, (event.name, name)
