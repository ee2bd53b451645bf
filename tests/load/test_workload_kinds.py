"""Lengths that were seen, kinds that need each other's parts, and traces that a workload names."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvprobe.errors import Problem, UsageError
from kvprobe.load.workload import Workload, load_workload
from kvprobe.load.workload_values import Length

GOOD = """\
name: mine
kind: distinct
prompt:
  tokens: LENGTH
output: {tokens: 8}
arrival:
  closed: {users: 2}
requests: 10
"""
SESSIONS = """\
name: mine
kind: multi_turn
prompt:
  sessions: 3
  turns: [2, 4]
  user_tokens: 50
output: {tokens: 8}
arrival:
  closed: {users: 2}
"""
TRACE = """\
name: mine
kind: trace_replay
prompt:
  trace: t.jsonl
arrival:
  open: {trace: {scale_time: 2}}
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "w.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def only(tmp_path: Path, text: str) -> Problem:
    with pytest.raises(UsageError) as caught:
        load_workload(write(tmp_path, text))
    assert len(caught.value.problems) == 1, caught.value.problems
    return caught.value.problems[0]


# -- lengths ---------------------------------------------------------------------------------------


def length(**form: Any) -> Length:
    return Length.model_validate(form)


def test_quantiles_are_hit_and_the_ends_are_kept() -> None:
    made = length(quantiles={"p50": 500, "p95": 2000, "min": 20, "max": 8000})
    assert (made.quantile(0.5), made.quantile(0.95), made.largest()) == (500, 2000, 8000)
    drawn = [made.quantile((n + 0.5) / 10_000) for n in range(10_000)]
    assert drawn == sorted(drawn)
    assert min(drawn) >= 20
    assert 7000 < max(drawn) <= 8000


def test_one_quantile_written_in_two_ways_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"`p50` is given twice"):
        length(quantiles={"p50": 10, "p50.0": 11, "max": 30})


def test_empirical_lengths_come_as_often_as_they_were_seen() -> None:
    made = length(empirical={"values": [100, 400, 900], "weights": [3, 1, 0]})
    drawn = Counter(made.quantile((n + 0.5) / 1000) for n in range(1000))
    assert drawn == {100: 750, 400: 250}
    assert made.largest() == 400
    alike = length(empirical={"values": [5, 5, 7]})
    assert Counter(alike.quantile((n + 0.5) / 300) for n in range(300)) == {5: 200, 7: 100}


def test_empirical_lengths_of_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + "0,10,3\n" * 3 + "0,90,5\n")
    for column, wanted in (("in", {10: 75, 90: 25}), ("out", {3: 75, 5: 25})):
        made = length(empirical={"trace": str(trace), "column": column})
        assert Counter(made.quantile((n + 0.5) / 100) for n in range(100)) == wanted


@given(
    st.one_of(
        st.builds(lambda v: {"empirical": {"values": v}}, st.lists(st.integers(1, 10**6), min_size=1)),
        st.builds(
            lambda a, b, c: {"quantiles": dict(zip(("p50", "p99", "max"), sorted((a, b, c)), strict=True))},
            *[st.integers(1, 10**6)] * 3,
        ),
    ),
    st.floats(0, 1, exclude_max=True),
)
def test_every_form_stays_in_its_bounds_and_round_trips(form: dict[str, Any], u: float) -> None:
    made = Length.model_validate(form)
    assert 1 <= made.quantile(u) <= made.largest()
    assert Length.model_validate(made.model_dump(mode="json", exclude_none=True)) == made


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"quantiles": {"p50": 100}}, "needs a `max`"),
        ({"quantiles": {"max": 100}}, "at least one quantile"),
        ({"quantiles": {"p50": 100, "p40": 200, "max": 300}}, "fall"),
        ({"quantiles": {"p50": 100, "max": 30}}, "fall"),
        ({"quantiles": {"p100": 100, "max": 300}}, "`p100` is no quantile"),
        ({"quantiles": {"p50": 0, "max": 300}}, "`p50` is no number of tokens"),
        ({"quantiles": {"p50": True, "max": 300}}, "`p50` is no number of tokens"),
        ({"quantiles": [1]}, "mapping of quantiles"),
        ({"empirical": {}}, "exactly one of `values` and `trace`"),
        ({"empirical": {"values": []}}, "at least 1"),
        ({"empirical": {"values": [0]}}, "greater than or equal to 1"),
        ({"empirical": {"values": [5], "weights": [1, 2]}}, "one weight for each"),
        ({"empirical": {"values": [5], "weights": [0]}}, "all weights are 0"),
        ({"empirical": {"trace": "x"}}, "needs a `column`"),
        ({"empirical": {"values": [5], "column": "in"}}, "belongs to `trace`"),
        ({"fixed": 5, "empirical": {"values": [5]}}, "exactly one of"),
    ],
)
def test_a_length_that_is_none_says_why(form: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Length.model_validate(form)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("written", "line", "column", "words"),
    [
        ("{quantiles: {p50: 100, p9x: 5, max: 200}}", 4, 34, "`p9x` is no quantile"),
        ("{empirical: {valus: [5]}}", 4, 24, "did you mean `values`"),
        ("{quantile: {p50: 5, max: 9}}", 4, 12, "did you mean `quantiles`"),
        ("{empirical: {trace: nowhere.csv, column: in}}", 4, 31, "there is no trace file 'nowhere.csv'"),
    ],
)
def test_the_place_of_a_mistake_is_shown(
    tmp_path: Path, written: str, line: int, column: int, words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        load_workload(write(tmp_path, GOOD.replace("LENGTH", written)))
    found = [(p.line, p.column) for p in caught.value.problems if words in f"{p.message} {p.fix}"]
    assert (line, column) in found, caught.value.problems


def test_lengths_of_a_trace_are_found_beside_the_workload(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("ContextTokens,GeneratedTokens\n50,3\n")
    path = write(tmp_path, GOOD.replace("LENGTH", "{empirical: {trace: t.csv, column: in}}"))
    workload = load_workload(path)
    assert load_workload(write(tmp_path, workload.resolved_yaml())) == workload
    assert Workload.model_validate(workload.model_dump(mode="json")) == workload


# -- kinds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (SESSIONS.replace("closed: {users: 2}", "open: {rate: 2}"), 9, "needs a closed loop"),
        (SESSIONS.replace("[2, 4]", "[4, 2]"), 5, "above the highest"),
        (SESSIONS.replace("[2, 4]", "many"), 5, "no number of turns"),
        (SESSIONS.replace("[2, 4]", "[2, 4, 5]"), 5, "no number of turns"),
        (SESSIONS.replace("[2, 4]", "0"), 5, "no number of turns"),
        (SESSIONS.replace("turns: [2, 4]", "turns: 2\n  context_tokens: 90"), 6, "alone can need 122 tokens"),
        (SESSIONS.replace("turns: [2, 4]", "turns: 900").replace("50", "5000"), 5, "can exceed 1,000,000"),
        (SESSIONS.replace("output: {tokens: 8}\n", ""), 1, "`output.tokens` is missing"),
        (SESSIONS.replace("{tokens: 8}", "{ignore_eos: true}"), 7, "`output.tokens` is missing"),
        (
            GOOD.replace("LENGTH", "9").replace("closed: {users: 2}", "open: {trace: {scale_time: 1}}"),
            7,
            "takes its",
        ),
    ],
)
def test_parts_that_do_not_fit_together(tmp_path: Path, text: str, line: int, words: str) -> None:
    problem = only(tmp_path, text)
    assert words in problem.message, problem
    assert problem.line == line
    assert problem.fix


def test_a_number_of_turns_is_a_range_of_one(tmp_path: Path) -> None:
    workload = load_workload(write(tmp_path, SESSIONS.replace("[2, 4]", "6")))
    assert workload.prompt.turns == (6, 6)  # type: ignore[union-attr]
    assert load_workload(write(tmp_path, workload.resolved_yaml())) == workload


# -- traces ----------------------------------------------------------------------------------------


def test_a_trace_is_found_beside_the_workload_or_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "t.jsonl").write_text('{"t": 0, "in": 5, "out": 5}\n')
    workload = load_workload(write(folder, TRACE))
    assert workload.prompt.trace == str(folder / "t.jsonl")  # type: ignore[union-attr]
    monkeypatch.chdir(folder)
    above = load_workload(write(tmp_path, TRACE))
    assert above.prompt.trace == os.path.abspath("t.jsonl")  # type: ignore[union-attr]


def test_the_hash_is_that_of_the_trace_not_of_its_place(tmp_path: Path) -> None:
    hashes = []
    for name, text in (("a", "5"), ("b", "5"), ("c", "6")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "t.jsonl").write_text(f'{{"t": 0, "in": {text}, "out": 5}}\n')
        hashes.append(load_workload(write(folder, TRACE)).content_hash())
    assert hashes[0] == hashes[1]
    assert hashes[0] != hashes[2]


def test_a_trace_brings_its_answers(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"t": 0, "in": 5, "out": 5}\n')
    problem = only(tmp_path, TRACE + "output: {tokens: 5}\n")
    assert "so does `output.tokens`" in problem.message


@pytest.mark.parametrize(
    ("content", "form", "words"),
    [
        ("a,b\n1,2\n", "auto", "no columns of a known trace"),
        ('{"t": 0, "in": 5, "out": 5}\n', "azure", "no columns of azure"),
        ("", "auto", "is empty"),
    ],
)
def test_a_file_that_is_no_trace_is_told_before_anything_starts(
    tmp_path: Path, content: str, form: str, words: str
) -> None:
    (tmp_path / "t.jsonl").write_text(content)
    problem = only(tmp_path, TRACE.replace("trace: t.jsonl", f"trace: t.jsonl\n  format: {form}"))
    assert words in problem.message
    assert problem.path == str(tmp_path / "t.jsonl")


def test_a_format_that_is_mistyped_is_a_matter_of_the_workload(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"t": 0, "in": 5, "out": 5}\n')
    problem = only(tmp_path, TRACE.replace("trace: t.jsonl", "trace: t.jsonl\n  format: azur"))
    assert problem.fix == "did you mean `azure`?"
    assert problem.line == 5


def test_more_turns_than_can_be_worked_out_are_refused_at_once(tmp_path: Path) -> None:
    text = SESSIONS.replace("sessions: 3", "sessions: 100000").replace("[2, 4]", "[1, 1000]")
    problem = only(tmp_path, text)
    assert "sessions x turns is 100,000,000, above 200,000" in problem.message
    assert problem.line == 4
