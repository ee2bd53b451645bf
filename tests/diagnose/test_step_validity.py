"""When a step of a sweep without a single success is an answer, and when it is none."""

from __future__ import annotations

import pytest

from kvprobe.diagnose.evidence_checks import none_ended_well
from kvprobe.diagnose.model import Validity
from kvprobe.diagnose.step_validity import invalid_because
from kvprobe.evidence.records import FailureKind
from kvprobe.summary.build import summarise
from tests.summary.synthetic import Made, failed

NONE = none_ended_well(4)


@pytest.mark.parametrize(
    ("kinds", "others_succeed", "further", "because"),
    [
        (("status", "throttled", "timeout_first", "connect"), True, (), None),
        (("status",) * 4, False, (), NONE),
        (("status", "status", "status", "client_fd"), True, (), NONE),
        (("dns",) * 4, True, (), NONE),
        (("status",) * 4, True, ("the clock jumped",), "the clock jumped"),
    ],
)
def test_a_load_that_the_server_fails_as_a_whole_is_too_much_if_it_answers_at_others(
    kinds: tuple[FailureKind, ...], others_succeed: bool, further: tuple[str, ...], because: str | None
) -> None:
    built = Made(workload={"name": "step"})
    built.records += [failed(i, kind) for i, kind in enumerate(kinds)]
    built.marks()
    summary = summarise(built.build())
    assert summary.requests.sent == 4
    validity = Validity(valid=False, reasons=[NONE, *further], warnings=[])
    assert invalid_because(summary, validity, others_succeed=others_succeed) == because
    assert invalid_because(summary, None, others_succeed=others_succeed) is None
