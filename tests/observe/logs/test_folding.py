"""One event printed by many ranks is one event; samples, restarts and other numbers are not repeats."""

from __future__ import annotations

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.logs.folding import Fold
from kvprobe.observe.logs.intake import read_text
from tests.observe.logs.logkit import OOM


def fold(events: list[Event]) -> list[Event]:
    folded = Fold()
    for event in events:
        folded.add(event)
    return folded.events()


def event(name: str = "torch_oom", line: int = 1, text: str = "out of 5", **more: object) -> Event:
    values = {k: Value(v, "B") for k, v in more.items() if isinstance(v, int)}
    marks = {k: v for k, v in more.items() if not isinstance(v, int)}
    return Event(name=name, source="x", line=line, text=text, values=values, **marks)  # type: ignore[arg-type]


def test_sixteen_ranks_are_one_event() -> None:
    found = fold([event(line=i, rank=f"TP{i}", text=f"out of {i}", free=i) for i in range(1, 17)])
    assert len(found) == 1
    assert (found[0].line, found[0].repeats, found[0].last_line) == (1, 16, 16)


def test_the_same_rank_with_other_numbers_is_another_event() -> None:
    assert len(fold([event(line=1, rank="TP0", free=1), event(line=2, rank="TP0", free=2)])) == 2


def test_an_echo_is_a_repeat_within_the_window_only() -> None:
    assert len(fold([event(line=1, free=1), event(line=900, free=1)])) == 1
    assert len(fold([event(line=1, free=1), event(line=9_000, free=1)])) == 2
    late = [event(line=1, free=1, time_s=100.0), event(line=2, free=1, time_s=1000.0)]
    assert len(fold(late)) == 2


def test_samples_are_no_repeats_of_each_other() -> None:
    stats = [event("engine_stats", line=i, text="Running: 1", running=1) for i in range(1, 6)]
    assert len(fold(stats)) == 5
    mirrored = [
        event("engine_stats", line=1, text="Running: 1", running=1, rank="TP0"),
        event("engine_stats", line=2, text="Running: 1", running=1, rank="TP1"),
    ]
    assert len(fold(mirrored)) == 1


def test_a_restart_is_a_new_life() -> None:
    life = [event("phase", 1, "loading", phase="load"), event("serving", 2, "up", phase="serve")]
    again = [event("phase", 3, "loading", phase="load"), event("serving", 4, "up", phase="serve")]
    assert [e.line for e in fold(life + again)] == [1, 2, 3, 4]


def test_forged_lines_take_no_true_one_with_them() -> None:
    found = fold([event(line=1, provenance="quoted", free=1), event(line=2, free=1)])
    assert [e.provenance for e in found] == ["quoted", "bare"]


def test_thousands_of_one_name_are_thinned_at_the_middle() -> None:
    found = fold([event("engine_stats", i, f"{i}", running=i) for i in range(1, 20_001)])
    assert len(found) < 1_200
    assert [e.line for e in found[:64]] == [*range(1, 65)]
    assert found[-1].line == 20_000


def test_interleaved_ranks_of_a_real_message() -> None:
    lines = []
    for rank in range(8):
        prefix = f"(Worker_TP{rank} pid={900 + rank}) ERROR 01-02 03:04:05 [multiproc_executor.py:559] "
        message = (
            OOM.replace("GPU 0", f"GPU {rank}")
            .replace("4711", str(900 + rank))
            .replace("602.00", f"{600 + rank}.00")
        )
        lines += [f"{prefix}Traceback (most recent call last):", prefix + message]
    lines = lines[::2] + lines[1::2]
    found = [e for e in read_text("\n".join(lines)).events if e.name == "torch_oom"]
    assert len(found) == 1
    assert found[0].repeats == 8


def test_of_ranks_that_tell_different_rooms_the_least_is_kept() -> None:
    rooms, name = [(1, 9), (2, 4), (3, 7)], "available_kv"
    found = fold([event(name, line=i, rank=f"TP{i}", text="KV: 1", bytes=room) for i, room in rooms])
    assert [(e.line, e.get("bytes"), e.repeats, e.last_line) for e in found] == [(2, 4, 3, 3)]
    # Who fails first is the cause: of failures the first one stays.
    found = fold([event(line=i, rank=f"TP{i}", text="out of 1", free=room) for i, room in rooms])
    assert found[0].line == 1
