"""Streams that the workload gives up in the middle: neither a failure nor a complete answer."""

from __future__ import annotations

import pytest

from kvprobe.evidence.records import CANCELLED
from kvprobe.load.request_form import StreamSpec, Timeouts, request_head
from kvprobe.summary.latency import e2e_s, response_latency_s, tpot_s, ttft_s
from tests.faults.client import meet, planned
from tests.faults.kit import DONE, chunk, data, playing, usage

ROLE = chunk(role="assistant")
WORDS = [chunk(text=f" w{i}") for i in range(12)]
END = (chunk(finish="length"), usage(prompt_tokens=4, completion_tokens=12), DONE)


def test_it_is_over_after_so_many_chunks():
    record = meet(playing(ROLE, *WORDS, *END), tokens=12, cancel_share=1.0, cancel_after=4)
    assert (record.failure, record.finish_reason) == (None, CANCELLED)
    assert 4 <= record.content_chunks <= 12
    assert record.completion_tokens is None or record.content_chunks == 12
    assert ttft_s(record) is not None
    assert e2e_s(record) is response_latency_s(record) is None
    assert tpot_s(record) is None


def test_a_stream_that_ends_before_is_a_whole_one():
    record = meet(playing(ROLE, *WORDS[:3], *END), cancel_share=1.0, cancel_after=4)
    assert (record.failure, record.finish_reason) == (None, "length")
    assert e2e_s(record) is not None


def test_an_error_before_outranks_it():
    record = meet(
        playing(ROLE, *WORDS[:2], data({"error": {"message": "out"}})), cancel_share=1.0, cancel_after=9
    )
    assert record.failure == "in_band_error"


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_which_ones_follows_from_the_seed(share: float):
    def spec(seed: int) -> StreamSpec:
        timeouts = Timeouts(1, 1, 1, 1)
        head = request_head("h", "/", None)
        return StreamSpec(True, "m", timeouts, head, cancel_share=share, cancel_after=4, seed=seed)

    chosen = [spec(1).cancels(planned(i)) for i in range(2000)]
    assert sum(chosen) == pytest.approx(2000 * share, abs=80)
    assert chosen == [spec(1).cancels(planned(i)) for i in range(2000)]
    if 0 < share < 1:
        assert chosen != [spec(2).cancels(planned(i)) for i in range(2000)]
    warm = planned(0)
    warm.warmup = True
    assert not spec(1).cancels(warm)
