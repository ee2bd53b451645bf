"""Several workers as one: sums, the first word and the last, and what the others are told."""

from __future__ import annotations

from kvprobe.load.crew import CrewState
from kvprobe.load.job import BreakerSpec, WorkerEvent


def event(name: str, **fields) -> WorkerEvent:
    return WorkerEvent(event=name, **fields)


def names(told: list[WorkerEvent]) -> list[str]:
    return [e.event for e in told]


def test_ready_and_draining_are_told_once_when_all_are() -> None:
    crew = CrewState(["0", "1"])
    assert names(crew.note("0", event("ready"))[0]) == []
    assert names(crew.note("1", event("ready"))[0]) == ["ready"]
    assert names(crew.note("0", event("draining"))[0]) == []
    assert names(crew.note("1", event("draining"))[0]) == ["draining"]


def test_progress_is_the_sum() -> None:
    crew = CrewState(["0", "1"])
    crew.note("0", event("progress", sent=5, ok=3, failed=1, active=1, intended=6))
    (told,), _ = crew.note("1", event("progress", sent=7, ok=7, intended=7))
    assert (told.sent, told.ok, told.failed, told.active, told.intended) == (12, 10, 1, 1, 13)


def test_the_gravest_reason_is_the_crews_and_ends_the_others() -> None:
    crew = CrewState(["0", "1"])
    _, command = crew.note("0", event("finished", sent=9, reason="breaker", detail="20 in a row"))
    assert command is not None
    assert (command.command, command.within_s) == ("drain", 1.0)
    told, command = crew.note("1", event("finished", sent=4, reason="drained"))
    assert command is None
    assert names(told)[-1] == "finished"
    assert (told[-1].reason, told[-1].detail, told[-1].sent) == ("breaker", "worker 0: 20 in a row", 13)


def test_a_full_disk_stops_the_others_at_once_even_in_a_drain() -> None:
    crew = CrewState(["0", "1", "2"])
    assert crew.note("0", event("finished", reason="auth"))[1].command == "drain"
    assert crew.note("1", event("finished", reason="storage"))[1].command == "stop"
    told, _ = crew.note("2", event("finished", reason="stopped"))
    assert told[-1].reason == "storage"


def test_a_lost_worker_keeps_its_counts_and_is_named() -> None:
    crew = CrewState(["a", "b"])
    crew.note("a", event("progress", sent=5, ok=4, active=1))
    told, command = crew.lose("a", "ended with code -9")
    assert (names(told), command.command) == (["lost"], "drain")
    assert told[0].detail == "load worker a ended with code -9"
    assert crew.lose("a", "again") == ([], None)
    told, _ = crew.note("b", event("finished", sent=3, ok=3, reason="drained"))
    last = told[-1]
    assert (last.reason, last.sent, last.ok, last.active) == ("lost", 8, 7, 0)
    assert last.detail == "load worker a ended with code -9"


def test_all_lost_ends_it_and_names_them_all() -> None:
    crew = CrewState(["a", "b"])
    crew.lose("a", "ended")
    told, _ = crew.lose("b", "ended too")
    assert names(told)[-1] == "finished"
    assert told[-1].detail == "load worker a ended; load worker b ended too"


def test_planned_ends_tell_nobody_anything() -> None:
    crew = CrewState(["0", "1"])
    assert crew.note("0", event("finished", reason="planned"))[1] is None
    told, command = crew.note("1", event("finished", reason="planned"))
    assert (told[-1].reason, command) == ("planned", None)


def test_the_breakers_limits_hold_for_all_workers_together() -> None:
    crew = CrewState(["0", "1", "2", "3"], BreakerSpec(consecutive_failures=20))
    for name in "012":
        assert crew.note(name, event("progress", failed=5))[1] is None
    _, command = crew.note("3", event("progress", failed=5, detail="connect: refused"))
    assert command is not None
    assert (command.command, command.reason, command.within_s) == ("drain", "breaker", 1.0)
    for name in "012":
        crew.note(name, event("finished", failed=5, reason="drained", detail="breaker"))
    told, _ = crew.note("3", event("finished", failed=5, reason="drained", detail="breaker"))
    assert told[-1].reason == "breaker"
    assert told[-1].detail == (
        "20 requests in a row failed in all workers together; the last was connect: refused"
    )


def test_one_success_anywhere_begins_the_row_anew() -> None:
    crew = CrewState(["0", "1"], BreakerSpec(consecutive_failures=20))
    assert crew.note("0", event("progress", failed=15))[1] is None
    assert crew.note("1", event("progress", ok=1))[1] is None
    assert crew.note("0", event("progress", failed=34))[1] is None
    assert crew.note("1", event("progress", ok=1, failed=1))[1] is not None


def test_the_breakers_window_is_that_of_all_workers() -> None:
    crew = CrewState(["0", "1"], BreakerSpec(consecutive_failures=1000, window=50, error_rate=0.9))
    assert crew.note("0", event("progress", ok=100, failed=0))[1] is None
    assert crew.note("0", event("progress", ok=101, failed=24))[1] is None  # 24 of 125
    assert crew.note("1", event("progress", ok=1, failed=24))[1] is not None  # 48 of the latest 50


def test_one_worker_watches_for_itself() -> None:
    crew = CrewState(["0"], BreakerSpec(consecutive_failures=2))
    assert crew.note("0", event("progress", failed=9))[1] is None
