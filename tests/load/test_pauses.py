"""How long a user holds still after a failure: Retry-After (F10), and no descriptors (F24)."""

from __future__ import annotations

import pytest

from kvprobe.errors import UsageError
from kvprobe.evidence.records import RequestRecord
from kvprobe.load.pauses import FD_PAUSE_S, MAX_RETRY_AFTER_S, pause_after, retry_after_s
from kvprobe.load.workload import load_workload

NOW_S = 1_445_412_480.0  # Wed, 21 Oct 2015 07:28:00 GMT


@pytest.mark.parametrize(
    ("said", "wait_s"),
    [
        ("3", 3.0),
        ("0", 0.0),
        ("999999999", MAX_RETRY_AFTER_S),
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:00:00 GMT", 0.0),
        ("Wed, 21 Oct 2315 07:00:00 GMT", MAX_RETRY_AFTER_S),
        ("soon", None),
        ("-1", None),
        ("1.5", None),
        ("nan", None),
        ("\u0663", None),
        ("9" * 60, None),
        ("x" * 5000, None),
        ("", None),
    ],
)
def test_what_a_server_may_say(said: str, wait_s: float | None) -> None:
    assert retry_after_s(f"Retry-After: {said}; HTTP 429: slow down", NOW_S) == wait_s


def test_a_body_that_looks_like_the_header_is_none() -> None:
    assert retry_after_s("HTTP 429: Retry-After: 100; x", NOW_S) is None


def record(failure: str | None, detail: str | None = None) -> RequestRecord:
    return RequestRecord(
        request_id="r",
        kind="distinct",
        plan_index=0,
        intended_ns=0,
        failure=failure,  # type: ignore[arg-type]
        failure_detail=detail,
    )


def test_who_pauses() -> None:
    throttled = record("throttled", "Retry-After: 2; HTTP 429: x")
    assert pause_after(throttled, obey=True) == 2.0
    assert pause_after(throttled, obey=False) is None
    assert pause_after(record("client_fd"), obey=False) == FD_PAUSE_S
    assert pause_after(record(None), obey=True) is None
    assert pause_after(record("connect"), obey=True) is None


def test_an_open_loop_has_nobody_who_could_wait() -> None:
    with pytest.raises(UsageError) as caught:
        load_workload("distinct", [("request.obey_retry_after", "true"), ("arrival", "{open: {rate: 2}}")])
    assert "closed" in (caught.value.problems[0].fix or "")
    load_workload("distinct", [("request.obey_retry_after", "true")])
