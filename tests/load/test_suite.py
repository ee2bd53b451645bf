"""Suite files and sweep keys: what they mean, and errors with their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from kvprobe.errors import Problem, UsageError
from kvprobe.load.suite import Suite, kind_of_file, load_suite
from kvprobe.load.suite_spec import with_suite
from kvprobe.load.sweep import Ladder
from kvprobe.load.workload import Workload, load_workload
from kvprobe.load.workload_find import bundled_workloads
from kvprobe.load.workload_sets import Setting

SMALL = """\
name: two
workload:
  kind: distinct
  prompt: {tokens: 64}
  output: {tokens: 4}
  arrival: {closed: {users: 2}}
  requests: 6
suite:
  - name: first
  - name: second
    set: {output.tokens: 8, arrival.open.rate: 3}
    serve_args: "--block-size 8"
"""


def suite_of(text: str, folder: Path, *sets: tuple[str, str]) -> Suite:
    path = folder / "suite.yaml"
    path.write_text(text)
    return load_suite(str(path), sets)


def problems_of(text: str, folder: Path, *sets: tuple[str, str]) -> list[Problem]:
    with pytest.raises(UsageError) as caught:
        suite_of(text, folder, *sets)
    return list(caught.value.problems)


def test_parts_take_the_common_workload_and_lay_their_own_over_it(tmp_path: Path) -> None:
    suite = suite_of(SMALL, tmp_path)
    first, second = suite.parts
    assert (first.name, first.workload.name) == ("first", "first")
    assert first.workload.output.tokens.fixed == 4
    assert second.workload.output.tokens.fixed == 8
    assert second.workload.arrival.closed is None, "a rate replaces the users"
    assert second.workload.arrival.open is not None
    assert second.serve_args == ("--block-size", "8")
    assert first.serve_args == ()


def test_a_part_does_not_change_its_neighbours(tmp_path: Path) -> None:
    text = SMALL.replace("set: {output", "set: {prompt.tokens: 99, output")
    assert suite_of(text, tmp_path).parts[0].workload.prompt.tokens.fixed == 64  # type: ignore[attr-defined]


def test_rounds_go_forwards_and_backwards(tmp_path: Path) -> None:
    suite = suite_of(SMALL, tmp_path, ("rounds", "3"))
    order = [(number, part.name) for number, part in suite.order()]
    assert order == [(1, "first"), (1, "second"), (2, "second"), (2, "first"), (3, "first"), (3, "second")]


def test_sets_go_to_all_parts_or_to_one(tmp_path: Path) -> None:
    suite = suite_of(SMALL, tmp_path, ("requests", "3"), ("suite.second.requests", "5"))
    assert [part.workload.requests for part in suite.parts] == [3, 5]


def test_a_bundled_workload_by_name_and_a_file_beside_the_suite(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text((bundled_workloads() / "distinct.yaml").read_text())
    text = "name: named\nsuite:\n  - {name: a, workload: distinct}\n  - {name: b, workload: mine.yaml}\n"
    a, b = suite_of(text, tmp_path).parts
    assert a.workload.content_hash() == b.workload.content_hash()


def test_all_problems_come_at_once_each_with_its_place(tmp_path: Path) -> None:
    text = SMALL.replace("output.tokens: 8", "output.tokns: 8").replace("serve_args", "serve_arg")
    (problem,) = problems_of(text, tmp_path)
    assert (problem.code, problem.line, problem.column) == ("unknown_key", 12, 5)
    assert problem.fix == "did you mean `serve_args`?"
    text = SMALL.replace("output.tokens: 8", "output.tokns: 8").replace("tokens: 64", "tokens: many")
    problems = problems_of(text, tmp_path)
    assert {p.line for p in problems} == {4, 11}
    assert all(p.path == str(tmp_path / "suite.yaml") and p.fix for p in problems)


@pytest.mark.parametrize(
    ("old", "new", "code", "line"),
    [
        ("name: second", "name: first", "duplicate_part", 10),
        ("name: second", "name: Second!", "bad_value", 10),
        ("- name: first", "- {name: first, workload: nonesuch}", "not_found", 9),
        ("- name: first", "- {name: first, workload: three_controls}", "nested", 9),
        ("- name: first", "- {name: first, workload: sweep_rate}", "nested", 9),
        ("workload:\n", "wrkload:\n", "unknown_key", 2),
        ("kind: distinct", "kind: distnct", "bad_value", 3),
        ("name: two", "name: two\nrounds: 0", "bad_value", 2),
        ("name: two", "name: two\nanswer: everything", "bad_value", 2),
    ],
)
def test_what_is_wrong_stands_at_its_line(old: str, new: str, code: str, line: int, tmp_path: Path) -> None:
    problems = problems_of(SMALL.replace(old, new, 1), tmp_path)
    assert (code, line) in {(p.code, p.line) for p in problems}
    assert all(p.fix for p in problems)


@pytest.mark.parametrize(
    ("parts", "code", "words"),
    [
        ("".join(f"  - name: p{i}\n" for i in range(100)), "bad_value", "100 parts are more than the 32"),
        ("  - {name: ../../x}\n", "bad_value", "`../../x` cannot be a name"),
        ("  - {name: a, workload: suite.yaml}\n", "nested", "is a suite itself"),
        ("  - {name: a, workload: words.txt}\n", "wrong_type", "is no workload"),
        ("  - {name: a, workload: folder}\n", "not_found", "folder"),
        ("  - {name: a, workload: ''}\n", "bad_value", "names no workload"),
        ("  - {name: a, set: {name: b}}\n", "conflict", "has its name already"),
        ("  - {name: a, set: {outptu.tokens: 3}}\n", "unknown_key", "outptu"),
    ],
)
def test_parts_that_cannot_be(parts: str, code: str, words: str, tmp_path: Path) -> None:
    """One problem each, at its place, and none that only follows from it."""
    (tmp_path / "words.txt").write_text("hello\n")
    (tmp_path / "folder").mkdir()
    (problem,) = problems_of(SMALL[: SMALL.index("suite:")] + "suite:\n" + parts, tmp_path)
    assert (problem.code, problem.line) == (code, 9)
    assert words in problem.message
    assert problem.fix


@pytest.mark.parametrize(
    ("answer", "roles"),
    [
        ("three_controls", []),
        ("three_controls", ["repeated", "mixed"]),
        ("three_controls", ["repeated", "repeated", "distinct"]),
        ("allocator", ["crowd", "alone"]),
    ],
)
def test_a_question_needs_the_parts_that_answer_it(answer: str, roles: list[str], tmp_path: Path) -> None:
    parts = "".join(f"  - {{name: p{i}, role: {role}}}\n" for i, role in enumerate(roles)) or "  - name: a\n"
    head = SMALL[: SMALL.index("suite:")].replace("name: two", f"name: two\nanswer: {answer}")
    assert all(p.line and p.fix for p in problems_of(f"{head}suite:\n{parts}", tmp_path))


def test_options_are_named_in_their_errors(tmp_path: Path) -> None:
    problems = problems_of(SMALL, tmp_path, ("suite.third.requests", "3"), ("requests", "few"))
    assert {p.code for p in problems} == {"unknown_part", "wrong_type"}


def test_parts_without_any_workload(tmp_path: Path) -> None:
    (problem,) = problems_of("name: none\nsuite:\n  - name: a\n", tmp_path)
    assert (problem.code, problem.line) == ("missing_key", 3)


@pytest.mark.parametrize("text", ["suite: []\nname: x\n", "suite: 3\nname: x\n", "name: x\nsuite:\n  - 3\n"])
def test_what_is_no_list_of_parts(text: str, tmp_path: Path) -> None:
    assert problems_of(text, tmp_path)


def test_the_hash_knows_what_is_sent_and_to_what(tmp_path: Path) -> None:
    base = suite_of(SMALL, tmp_path).content_hash()
    assert suite_of(SMALL.replace("name: two", "name: other"), tmp_path).content_hash() == base
    for old, new in (("block-size 8", "block-size 16"), ("tokens: 64", "tokens: 65")):
        assert suite_of(SMALL.replace(old, new), tmp_path).content_hash() != base


@pytest.mark.parametrize("name", ["three_controls", "block_size_sweep", "allocator_contrast"])
def test_the_bundled_suites_load(name: str) -> None:
    suite = load_suite(name)
    assert kind_of_file(name) == "suite"
    assert suite.answer is not None
    assert suite.rounds == 2, "parts that ran once are not told apart by latency"


def test_the_two_prefix_controls_send_prompts_of_one_length() -> None:
    by_role = {part.role: part.workload.prompt for part in load_suite("three_controls").parts}
    a, b = by_role["repeated"], by_role["distinct"]
    assert (a.prefix_tokens, a.suffix_tokens) == (b.prefix_tokens, b.suffix_tokens)  # type: ignore[union-attr]
    assert a.families == 1  # type: ignore[union-attr]
    assert b.requests_per_family == 1  # type: ignore[union-attr]


def test_the_bundled_sweep_loads() -> None:
    assert kind_of_file("sweep_rate") == "sweep"
    workload = load_workload("sweep_rate")
    assert workload.sweep is not None
    assert workload.sweep.ladder.loads() == [2, 4, 8, 16, 32, 64, 128]


@pytest.mark.parametrize(
    ("ladder", "loads"),
    [
        ([2, 4, 8.5], [2, 4, 8.5]),
        ({"from": 2, "to": 20, "factor": 2}, [2, 4, 8, 16, 20]),
        ({"from": 1, "to": 3, "steps": 5}, [1, 1.5, 2, 2.5, 3]),
        ({"from": 2, "to": 8, "factor": 2}, [2, 4, 8]),
    ],
)
def test_ladders(ladder: object, loads: list[float]) -> None:
    found = Ladder.model_validate(ladder, strict=False)
    assert found.loads() == loads
    assert Ladder.model_validate(found.model_dump(mode="json"), strict=False) == found


@pytest.mark.parametrize(
    "ladder",
    [
        [],
        [4, 2],
        [0, 1],
        [True],
        ["2"],
        3,
        {"from": 2},
        {"from": 2, "to": 1, "factor": 2},
        {"from": 1, "to": 2, "factor": 2, "steps": 3},
        {"from": 1, "to": 10000, "factor": 1.01},
    ],
)
def test_what_is_no_ladder(ladder: object) -> None:
    with pytest.raises(ValidationError):
        Ladder.model_validate(ladder, strict=False)


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("sweep.users", "[1, 2]", "conflict"),
        ("arrival.closed.users", "3", "conflict"),
        ("sweep.rate", "[3, 2]", "bad_value"),
        ("sweep.sustain.ttft", "3", "wrong_type"),
        ("sweep.sustain.growht", "3", "unknown_key"),
        ("arrival.open", "{stages: [{rate: 2, for: 2s}]}", "conflict"),
    ],
)
def test_what_a_sweep_cannot_be(key: str, value: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_workload("sweep_rate", [Setting(key, value)])
    assert code in {p.code for p in caught.value.problems}
    assert all(p.fix for p in caught.value.problems)


def test_users_of_a_sweep_are_whole() -> None:
    closed = [Setting("arrival.closed.users", "1"), Setting("sweep", "{users: [1, 2.5]}")]
    with pytest.raises(UsageError, match="whole"):
        load_workload("sweep_rate", closed)


@pytest.mark.parametrize("name", ["three_controls", "block_size_sweep", "allocator_contrast", "sweep_rate"])
def test_the_schema_takes_what_the_reader_takes(name: str) -> None:
    jsonschema.validate(plain(bundled_workloads() / f"{name}.yaml"), workload_or_suite())


def test_the_schema_refuses_what_the_reader_refuses() -> None:
    document = plain(bundled_workloads() / "three_controls.yaml")
    document["suite"][0]["serve_arg"] = "--block-size 8"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, workload_or_suite())


def plain(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe", pure=True).load(path)
    return loaded


def workload_or_suite() -> dict[str, Any]:
    return with_suite(Workload.model_json_schema())
