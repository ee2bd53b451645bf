"""How candidates of all families become one answer."""

from __future__ import annotations

import pytest

from kvprobe.diagnose import log_judge
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence, Evidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, candidate
from kvprobe.evidence.events import Event, Provenance, Value
from tests.diagnose.logs.reading import diagnose, oom, roles


def event(line: int, name: str = "torch_oom", *, provenance: Provenance = "logger", **values: float) -> Event:
    return Event(
        name=name,
        source="a.log",
        line=line,
        text=f"{name} at {line}",
        values={k: Value(v) for k, v in values.items()},
        provenance=provenance,
    )


def told(
    cause: str,
    confidence: Confidence = "likely",
    *,
    fatal: bool = True,
    root: bool = True,
    line: int = 10,
    excludes: dict[str, str] | None = None,
    at: Event | None = None,
) -> LogCandidate:
    return candidate(
        cause,
        confidence,
        f"{cause} because of line {line}.",
        [Evidence(source="a.log", line=line, text="…")],
        fatal=fatal,
        root=root,
        at=at or event(line),
        check_first=["look"],
        remedy=["mend"],
        would_change_my_mind=["the contrary"],
        excludes=excludes,
    )


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> object:
    def run(*candidates: LogCandidate, events: list[Event] | None = None) -> list[tuple[str, str]]:
        monkeypatch.setattr(log_judge, "all_rules", lambda: (lambda _view: list(candidates),))
        answer = log_judge.diagnose_log(LogView(events=events or []))
        assert answer.primary == answer.findings[0].cause
        return [(f.cause, f.role) for f in answer.findings]

    return run


def test_what_kills_stands_before_what_slows(judged) -> None:  # type: ignore[no-untyped-def]
    slow = told("kv_pool_pressure", "certain", fatal=False, line=1)
    assert judged(slow, told("loading_peak", "suspected"))[0][0] == "loading_peak"


def test_the_root_stands_before_what_it_led_to(judged) -> None:  # type: ignore[no-untyped-def]
    event_of = told("allocator_fragmentation", "likely", root=False, line=5)
    root = told("gpu_memory_utilization_too_high", "likely", line=5)
    assert judged(event_of, root) == [
        ("gpu_memory_utilization_too_high", "primary"),
        ("allocator_fragmentation", "secondary"),
    ]


def test_the_specific_stands_before_the_general_at_equal_confidence(judged) -> None:  # type: ignore[no-untyped-def]
    assert (
        judged(told("capacity_exhausted", line=1), told("cudagraph_memory", line=9))[0][0]
        == "cudagraph_memory"
    )


def test_a_certain_general_cause_stands_before_a_suspected_one(judged) -> None:  # type: ignore[no-untyped-def]
    both = judged(
        told("capacity_exhausted", "certain", line=1), told("cudagraph_memory", "suspected", line=9)
    )
    assert both[0][0] == "capacity_exhausted"


def test_what_the_log_told_first_decides_between_equals(judged) -> None:  # type: ignore[no-untyped-def]
    assert judged(told("loading_peak", line=90), told("cudagraph_memory", line=9))[0][0] == "cudagraph_memory"


def test_an_excluded_cause_is_listed_with_the_number(judged) -> None:  # type: ignore[no-untyped-def]
    reason = "free and pieces are 3 GiB short"
    found = judged(
        told("capacity_exhausted", "certain", excludes={"allocator_fragmentation": reason}),
        told("allocator_fragmentation", "suspected"),
    )
    assert found == [("capacity_exhausted", "primary"), ("allocator_fragmentation", "ruled_out")]


def test_a_surer_finding_is_not_excluded_by_a_weaker_one(judged) -> None:  # type: ignore[no-untyped-def]
    found = judged(
        told("capacity_exhausted", "suspected", excludes={"loading_peak": "so it seems"}),
        told("loading_peak", "certain"),
    )
    assert found[0] == ("loading_peak", "primary")
    assert ("loading_peak", "ruled_out") not in found


def test_one_finding_a_cause_with_all_the_evidence(judged, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    assert len(judged(told("loading_peak", line=3), told("loading_peak", "certain", line=7))) == 1


def test_a_prompt_that_speaks_of_memory_convinces_nobody() -> None:
    asked = oom("2.34 GiB", 23.65, "1.03 GiB", 20.1, "1.70 GiB")
    stats = (
        "INFO 04-24 16:34:{s} [loggers.py:87] Engine 000: Avg prompt throughput: 120.0 tokens/s, Avg "
        "generation "
        "throughput: 240.0 tokens/s, Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 44.3%, "
        "Prefix cache hit rate: "
        "12.0%"
    )
    text = "\n".join(
        [
            stats.format(s="01"),
            f"INFO 04-24 16:34:05 [logger.py:39] Received request chatcmpl-1: prompt: 'why {asked}', "
            "params: None.",
            stats.format(s="11"),
            stats.format(s="21"),
        ]
    )
    assert diagnose(text).primary == "healthy_baseline"
    loose = "\n".join(
        [stats.format(s="01"), asked, stats.format(s="11"), stats.format(s="21"), stats.format(s="31")]
    )
    answer = diagnose(loose)
    assert answer.primary == "healthy_baseline" or answer.findings[0].confidence == "suspected"


def test_an_empty_log_is_unknown_and_says_what_was_read() -> None:
    answer = diagnose("")
    assert answer.primary == "unknown"
    assert answer.findings[0].role == "primary"
    assert "0 lines" in answer.findings[0].why
    assert answer.findings[0].remedy


def test_a_foreign_log_is_unknown() -> None:
    answer = diagnose("GET /index.html 200\nGET /favicon.ico 404\n" * 20)
    assert answer.primary == "unknown"
    assert "No known signature" in answer.findings[0].why


def test_an_error_that_no_rule_owns_outranks_what_only_slows() -> None:
    text = "\n".join(
        [
            "WARNING 05-07 10:00:01 scheduler.py:1057] Sequence group a is preempted by "
            "PreemptionMode.RECOMPUTE mode because "
            "there is not enough KV cache space. total_num_cumulative_preemption=51",
            "ERROR 05-07 10:00:09 [async_llm.py:480] vllm.v1.engine.exceptions.EngineDeadError: "
            "EngineCore encountered an "
            "issue. See stack trace (above) for the root cause.",
        ]
    )
    answer = diagnose(text)
    assert answer.primary == "unknown"
    assert roles(answer)["kv_pool_pressure"] == "secondary"
