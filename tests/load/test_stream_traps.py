"""Every switch of the truth server is a trap for a client; each must give the defined value."""

from __future__ import annotations

import pytest

from tests.faults.client import client_of
from tests.load.truth import truth_server

TOKENS = 8
FAST = ("--ttft", "60", "--itl", "15")


def measure(*switches: str, tokens: int = TOKENS, requests: int = 1):
    """Records of one client, with the server's rows."""
    with truth_server(*FAST, *switches) as server, client_of(server.url) as client:
        records = [client.send(tokens) for _ in range(requests)]
        return records, server.rows()


def check_against_truth(record, row, chunks=TOKENS):
    """No chunk is stamped before it left; and none is missed, merged or made up."""
    assert record.failure is None
    assert record.server_request_id == row["id"]
    assert record.content_chunks == len(row["writes_ns"]) == chunks
    stamps = [record.first_token_ns]
    for gap in record.gaps_ns:
        stamps.append(stamps[-1] + gap)
    assert all(ours > theirs for ours, theirs in zip(stamps, row["before_ns"], strict=True))
    assert record.sent_ns < row["received_ns"]


def test_plain():
    (record,), (row,) = measure()
    check_against_truth(record, row)
    assert record.finish_reason == "length"
    assert record.completion_tokens == TOKENS
    assert record.cached_tokens == 0
    assert record.first_token_ns - record.sent_ns > 55e6
    assert record.last_token_ns == record.first_token_ns + sum(record.gaps_ns)


@pytest.mark.parametrize("mode", ["none", "immediate", "with-first"])
def test_role_chunk(mode):
    """An early role chunk is the first chunk, never the first token."""
    (record,), (row,) = measure("--role-chunk", mode, "--ttft", "400")
    check_against_truth(record, row)
    assert record.first_token_ns - record.sent_ns > 395e6
    early = record.first_token_ns - record.first_chunk_ns > 100e6
    assert early == (mode == "immediate")


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning(key):
    (record,), (row,) = measure("--reasoning", "3", "--reasoning-key", key)
    check_against_truth(record, row)
    assert record.first_visible_ns == record.first_token_ns + sum(record.gaps_ns[:3])


def test_reasoning_only():
    (record,), (row,) = measure("--reasoning", "100")
    check_against_truth(record, row)
    assert record.first_visible_ns is None


def test_several_tokens_in_a_chunk():
    (record,), (row,) = measure("--tokens-per-chunk", "3")
    check_against_truth(record, row, chunks=3)
    assert record.completion_tokens == TOKENS, "tokens come from usage, never from chunks"


def test_no_usage_is_null():
    (record,), (row,) = measure("--no-usage")
    check_against_truth(record, row)
    assert record.prompt_tokens is None
    assert record.completion_tokens is None


@pytest.mark.parametrize("extra", [(), ("--error-done",)], ids=["end", "then in good order"])
def test_error_in_band(extra):
    (record,), (row,) = measure("--error-after", "3", *extra)
    assert record.failure == "in_band_error"
    assert "engine died" in record.failure_detail
    assert record.content_chunks == len(row["writes_ns"]) == 3


def test_drop():
    (record,), (row,) = measure("--drop-after", "3")
    assert record.failure in ("truncated", "reset_mid_stream")
    assert "3 content chunks came" in record.failure_detail
    assert row["aborted"]


def test_status_every():
    records, rows = measure("--status", "503", "--status-every", "2", requests=4)
    assert [r.failure for r in records] == [None, "status", None, "status"]
    assert [r.status_code for r in records] == [200, 503, 200, 503]
    assert len(rows) == 2


def test_split_writes():
    (record,), (row,) = measure("--split")
    check_against_truth(record, row)


def test_coalesced_writes():
    """Chunks of one write share a stamp, and it is told how many did."""
    (record,), (row,) = measure("--coalesce", "4")
    check_against_truth(record, row)
    assert record.shared_receive_chunks == 6
    assert [gap > 0 for gap in record.gaps_ns] == [False] * 3 + [True] + [False] * 3


def test_comment():
    """A comment is a byte, no chunk."""
    (record,), (row,) = measure("--comment", "--role-chunk", "none")
    check_against_truth(record, row)
    assert record.first_byte_ns < record.first_chunk_ns == record.first_token_ns


def test_jitter():
    (record,), (row,) = measure("--jitter", "0.9")
    check_against_truth(record, row)


def test_stall():
    """The late chunk is one long gap, at its place."""
    records, rows = measure("--stall-at", "3", "--stall-ms", "500", "--stall-every", "2", requests=2)
    for record, row in zip(records, rows, strict=True):
        check_against_truth(record, row)
    assert max(records[0].gaps_ns) < 500e6
    assert records[1].gaps_ns.index(max(records[1].gaps_ns)) == 2
    assert records[1].gaps_ns[2] > 500e6


def test_cap():
    """Fewer tokens than asked are no failure; they are a finish reason and a count."""
    (record,), (row,) = measure("--cap", "--tokens", "2")
    check_against_truth(record, row, chunks=2)
    assert record.completion_tokens == 2
    assert record.asked_completion_tokens == TOKENS
