"""What the end of a load means: its exit code, and what is advised."""

from __future__ import annotations

import pytest

from kvprobe.errors import Exit
from kvprobe.run.steering import Steering


@pytest.mark.parametrize(
    ("reason", "detail", "code", "advice"),
    [
        (
            "breaker",
            "20 requests in a row failed; the last was client_fd: Too many open files",
            5,
            "ulimit -n",
        ),
        ("usage", "worker b-0: the variable K is not set", 2, "on that machine"),
        ("refused", "worker b-0: `x` is not this machine", 3, "on that machine"),
        ("lost", "load worker b-0 has not answered for 6 s", 1, "is kept"),
    ],
)
def test_the_advice_looks_where_the_fault_is(reason: str, detail: str, code: int, advice: str) -> None:
    steering = object.__new__(Steering)
    exit_code, problem = steering._judge(reason, detail)
    assert exit_code == Exit(code)
    assert problem is not None
    assert detail in problem.message
    assert advice in (problem.fix or "")
