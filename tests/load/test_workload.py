"""Workload files: what is accepted, what is refused and how that is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kvprobe.errors import Problem, UsageError
from kvprobe.load.workload import Workload, load_workload
from kvprobe.load.workload_sets import Setting
from kvprobe.load.workload_values import Length, Lognormal, format_duration, parse_duration
from kvprobe.load.yaml_source import parse_yaml

BUNDLED = (
    "shared_prefix",
    "distinct",
    "mixed_lengths",
    "timestamp_first",
    "system_prompt_2k",
    "rag_documents",
    "multi_turn",
    "long_conversation",
    "tool_calls_reordered",
    "burst",
    "cancellations",
    "trace_replay",
)

GOOD = """\
name: mine
kind: distinct
prompt:
  tokens: 100
output:
  tokens: 8
arrival:
  closed:
    users: 2
requests: 10
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "w.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def problems_of(tmp_path: Path, text: str, *sets: tuple[str, str]) -> list[Problem]:
    with pytest.raises(UsageError) as caught:
        load_workload(write(tmp_path, text), sets)
    return list(caught.value.problems)


def only(problems: list[Problem]) -> Problem:
    assert len(problems) == 1, problems
    return problems[0]


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_workloads_load_and_round_trip(tmp_path: Path, name: str) -> None:
    workload = load_workload(name)
    assert workload.name == name
    again = load_workload(write(tmp_path, workload.resolved_yaml()))
    assert again == workload
    assert again.content_hash() == workload.content_hash()
    assert again.resolved_yaml() == workload.resolved_yaml()


@pytest.mark.parametrize("name", BUNDLED)
def test_a_worker_gets_the_same_workload_from_the_job(name: str) -> None:
    workload = load_workload(name)
    sent = json.loads(json.dumps(workload.model_dump(mode="json")))
    assert Workload.model_validate(sent) == workload


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_workloads_obey_the_printed_schema(name: str) -> None:
    schema = Workload.model_json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    path = Path(__file__).parents[2] / "workloads" / f"{name}.yaml"
    value = parse_yaml(path.read_text(), "w", {}).value
    jsonschema.validate(value, schema)
    value["prompt"]["nonsense"] = 1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schema)


def test_every_field_of_the_schema_says_what_it_is() -> None:
    schema = Workload.model_json_schema()
    for where in (schema, *schema["$defs"].values()):
        for key, field in where.get("properties", {}).items():
            part = schema["$defs"].get(field.get("$ref", "").rpartition("/")[2], {})
            assert field.get("description") or part.get("description"), f"{where.get('title')}.{key}"


def test_the_kind_decides_what_a_prompt_may_hold() -> None:
    schema = Workload.model_json_schema()
    value = parse_yaml(GOOD, "w", {}).value
    jsonschema.validate(value, schema)
    value["kind"] = "shared_prefix"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, schema)


def test_all_problems_come_at_once_each_with_its_place(tmp_path: Path) -> None:
    text = """\
name: mine
kind: shared_prefix
prompt:
  familes: 3
  requests_per_family: many
  prefix_tokens: 2048
  suffix_tokens: 48
output: {tokens: 0, ignore_eos: no}
arrival:
  closed: {users: 12:30:00, think_time: 5}
name: twice
drain: 99h
timeouts: {conect: 3s}
"""
    problems = problems_of(tmp_path, text)
    told = [(p.code, p.line, p.column) for p in problems]
    assert told == [
        ("missing_key", 4, 3),
        ("unknown_key", 4, 3),
        ("wrong_type", 5, 24),
        ("bad_value", 8, 18),
        ("wrong_type", 8, 33),
        ("wrong_type", 10, 19),
        ("wrong_type", 10, 41),
        ("duplicate_key", 11, 1),
        ("bad_value", 12, 8),
        ("unknown_key", 13, 12),
    ]
    by_place = {(p.line, p.code): p for p in problems}
    assert by_place[4, "unknown_key"].fix == "did you mean `families`?"
    assert by_place[4, "missing_key"].fix == "rename `familes` to `families`"
    assert "write false" in (by_place[8, "wrong_type"].fix or "")
    assert by_place[12, "bad_value"].message == "`drain` must be at most 3600s, and `99h` is not"
    assert by_place[13, "unknown_key"].source_line == "timeouts: {conect: 3s}"
    assert all(p.path == str(tmp_path / "w.yaml") for p in problems)


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("users: 2", "users: two", "wrong_type", "`two` is text"),
        ("users: 2", 'users: "2"', "wrong_type", "`2` is text"),
        ("users: 2", "users: 2.0", "wrong_type", "decimal"),
        ("users: 2", "users: 1e3", "wrong_type", "decimal"),
        ("users: 2", "users: true", "wrong_type", "true or false"),
        ("users: 2", "users:", "wrong_type", "nothing"),
        ("users: 2", "users: [2]", "wrong_type", "a list"),
        ("users: 2", "users: 0", "bad_value", "at least 1"),
        ("users: 2", "users: 5001", "bad_value", "at most 5,000"),
        ("tokens: 100", "tokens: 2000000", "bad_value", "at most 1,000,000"),
        ("tokens: 100", "tokens: {uniform: [9, 3]}", "bad_value", "above the upper"),
        ("tokens: 100", "tokens: {}", "bad_value", "exactly one"),
        ("tokens: 100", "tokens: {fixed: 3, uniform: [1, 2]}", "bad_value", "exactly one"),
        ("tokens: 100", "tokens: {uniform: [1, 2, 3]}", "bad_value", "two numbers"),
        ("tokens: 100", "tokens: lots", "wrong_type", "not a length"),
        (
            "tokens: 100",
            "tokens: {lognormal: {median: 5, sigma: 1, min: 6, max: 9}}",
            "bad_value",
            "between",
        ),
        ("tokens: 8", "tokens: 900000", "bad_value", "more than 200,000"),
        ("kind: distinct", "kind: distict", "bad_value", "cannot be `distict`"),
        ("kind: distinct", "kind: 5", "bad_value", "cannot be `5`"),
        ("requests: 10", "requests: 10\nsalt: off", "bad_value", "salt"),
        ("requests: 10", "", "missing_key", "when the run ends"),
        ("name: mine", "", "missing_key", "`name` is missing"),
        ("name: mine", "name: ../../etc", "bad_value", "cannot be a name"),
        ("name: mine", "name: CON", "bad_value", "cannot be a name"),
        ("name: mine", "name: con", "bad_value", "reserved"),
        ("name: mine", "name: -x", "bad_value", "cannot be a name"),
        ("name: mine", f"name: {'a' * 65}", "bad_value", "cannot be a name"),
        ("name: mine", 'name: "a\\n"', "bad_value", "cannot be a name"),
        ("  closed:\n    users: 2", "  {}", "missing_key", "needs `closed` or `open`"),
        ("requests: 10", "requests: 10\ndrain: 30", "wrong_type", "needs a unit"),
        ("requests: 10", "requests: 10\nduration: -5s", "wrong_type", "not a duration"),
        ("requests: 10", "requests: 10\nduration: 0s", "bad_value", "more than 0s"),
        ("requests: 10", "requests: 10\ntimeouts: {gap: 20m}", "bad_value", "never fire"),
        ("requests: 10", "requests: 10\nwarmup: {requests: 1, duration: 2s}", "conflict", "both"),
        (
            "requests: 10",
            "requests: 10\nrequest: {extra_body: {stream: false}}",
            "bad_value",
            "kvprobe itself",
        ),
        ("requests: 10", "requests: 10\nrequest: {extra_body: {api_key: x}}", "bad_value", "secret"),
        ("requests: 10", "requests: 10\nserver_args: [--block-size, 8]", "wrong_type", "must be text"),
        ("requests: 10", 'requests: 10\nserver_args: "--x \'y"', "bad_value", "quotes"),
        ("requests: 10", "requests: 10\nusers: 3", "unknown_key", "unknown key `users`"),
        ("prompt:\n  tokens: 100", "prompt: 5", "wrong_type", "a mapping"),
        ("  tokens: 8", "  tokens: 0", "bad_value", "`output.tokens` must be at least 1, and `0` is not"),
        ("requests: 10", "requests: .nan", "bad_value", "not a finite number"),
    ],
)
def test_each_mistake_gives_one_problem(tmp_path: Path, old: str, new: str, code: str, words: str) -> None:
    assert old in GOOD
    problem = only(problems_of(tmp_path, GOOD.replace(old, new, 1)))
    assert problem.code == code
    assert words in problem.message
    assert problem.line is not None
    assert problem.fix


def test_closed_and_open_exclude_each_other(tmp_path: Path) -> None:
    problem = only(problems_of(tmp_path, GOOD.replace("requests: 10", "  open: {rate: 2}\nrequests: 10")))
    assert (problem.code, problem.line) == ("conflict", 10)


@pytest.mark.parametrize(
    ("new", "fix"),
    [
        ("users: 12:30:00", "base 60"),
        ('users: "2"', "remove the quotes: 2"),
        ("users: 1e3", "1000"),
        ("users: 1_000", "1000"),
        ("users: 4 users", "without a unit"),
    ],
)
def test_traps_of_yaml_numbers_are_explained(tmp_path: Path, new: str, fix: str) -> None:
    assert fix in (only(problems_of(tmp_path, GOOD.replace("users: 2", new))).fix or "")


def test_a_key_in_the_wrong_place_is_sent_to_the_right_one(tmp_path: Path) -> None:
    assert only(problems_of(tmp_path, GOOD + "users: 3\n")).fix == "`users` belongs under `arrival.closed`"
    nested = GOOD.replace("    users: 2", "    users: 2\n    requests_per_family: 3")
    assert only(problems_of(tmp_path, nested)).fix == "`requests_per_family` belongs under `prompt`"


def test_a_mistyped_kind_does_not_hide_the_rest(tmp_path: Path) -> None:
    problems = problems_of(
        tmp_path, GOOD.replace("kind: distinct", "kind: distnct").replace("tokens: 100", "tokns: 1")
    )
    assert [p.code for p in problems] == ["bad_value", "missing_key", "unknown_key"]
    assert problems[0].fix == "did you mean `distinct`?"


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words\n"])
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str) -> None:
    assert only(problems_of(tmp_path, text)).code == "wrong_type"


def test_unknown_names_suggest_a_bundled_workload() -> None:
    with pytest.raises(UsageError) as caught:
        load_workload("shared_prefx")
    problem = caught.value.problems[0]
    assert (problem.code, problem.fix) == ("not_found", "did you mean `shared_prefix`?")
    with pytest.raises(UsageError, match="no workload file"):
        load_workload("../../nowhere/at_all.yaml")
    with pytest.raises(UsageError, match="NUL"):
        load_workload("a\0b")


# -- --set -----------------------------------------------------------------------------------------


def test_sets_overlay_the_file(tmp_path: Path) -> None:
    sets = [
        ("arrival.closed.users", "7"),
        ("output.tokens", "{uniform: [4, 9]}"),
        ("request.extra_body.top_k", "5"),
        ("timeouts.gap", "5s"),
    ]
    workload = load_workload(write(tmp_path, GOOD), sets)
    assert workload.arrival.closed is not None
    assert workload.arrival.closed.users == 7
    assert workload.output.tokens.uniform == (4, 9)
    assert workload.request.extra_body == {"top_k": 5}
    assert workload.timeouts.gap_s == 5.0


def test_an_option_replaces_the_alternative_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + "warmup: {requests: 2}\n")
    workload = load_workload(
        path, [("arrival.open.rate", "5"), ("duration", "60s"), ("warmup.duration", "1s")]
    )
    assert workload.arrival.closed is None
    assert workload.arrival.open is not None
    assert (workload.requests, workload.duration_s) == (None, 60.0)
    assert (workload.warmup.requests, workload.warmup.duration_s) == (None, 1.0)
    both = load_workload(path, [("requests", "5"), ("duration", "60s")])
    assert (both.requests, both.duration_s) == (5, 60.0)
    with pytest.raises(UsageError, match="both given"):
        load_workload(path, [("arrival.open.rate", "5"), ("arrival.closed.users", "5")])


def test_an_option_with_a_name_of_its_own_is_named_by_it(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    for option, shown in (("--users", "--users many"), ("KVPROBE_USERS", "KVPROBE_USERS=many")):
        with pytest.raises(UsageError) as caught:
            load_workload(path, [Setting("arrival.closed.users", "many", option)])
        (problem,) = caught.value.problems
        assert (problem.path, problem.source_line) == (shown, shown)
        assert problem.column == shown.index("many") + 1
        assert problem.message.startswith(f"`{option}` must be")


def test_a_value_of_any_length_gives_a_message_of_one_screen(tmp_path: Path) -> None:
    problem = only(problems_of(tmp_path, GOOD, ("description", "a" * 5000)))
    assert (problem.code, problem.fix) == ("bad_value", "make it shorter")
    assert len(repr(problem)) < 1000


def test_secrets_are_found_at_any_depth_and_never_shown(tmp_path: Path) -> None:
    text = GOOD + "request:\n  extra_body:\n    a: [{b: {Api-Key: sk-canary}}]\n"
    problem = only(problems_of(tmp_path, text))
    assert (problem.code, problem.source_line) == ("bad_value", None)
    assert "`Api-Key`" in problem.message
    assert "canary" not in repr(problem)
    for key, value in (
        ("request.extra_body.x_api_key", "sk-canary"),
        ("request.extra_body", "{secret: sk-canary}"),
    ):
        assert "canary" not in repr(problems_of(tmp_path, GOOD, (key, value)))
    assert problems_of(tmp_path, GOOD, ("request.extra_body.api_key", "[sk-canary")) != []
    assert "canary" not in repr(problems_of(tmp_path, GOOD, ("request.extra_body.api_key", "[sk-canary")))


@pytest.mark.parametrize(
    ("key", "text", "code"),
    [
        ("arrival.closed.users", "many", "wrong_type"),
        ("arrival.closed.usrs", "2", "unknown_key"),
        ("prompt.tokens", "[1", "yaml_syntax"),
        ("prompt.tokens", "!!int 3", "tag_refused"),
        ("prompt..tokens", "3", "bad_key"),
        ("", "3", "bad_key"),
        ("name", "${NOT_SET_ANYWHERE}", "missing_variable"),
        ("requests.deeper", "1", "wrong_type"),
    ],
)
def test_problems_of_an_option_point_to_the_option(tmp_path: Path, key: str, text: str, code: str) -> None:
    problem = only(problems_of(tmp_path, GOOD, (key, text)))
    assert problem.code == code
    assert problem.path == f"--set {key}={text}"
    assert problem.source_line == problem.path


def test_problems_of_file_and_options_come_together(tmp_path: Path) -> None:
    text = GOOD.replace("tokens: 8", "tokens: none")
    problems = problems_of(tmp_path, text, ("requests", "x"))
    assert [p.path for p in problems] == [str(tmp_path / "w.yaml"), "--set requests=x"]


# -- the environment -------------------------------------------------------------------------------


def test_variables_never_reach_what_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_TEST_USER", "s3cr3t")
    monkeypatch.setenv("KV_TEST_DRAIN", "7s")
    text = (
        GOOD + "drain: ${KV_TEST_DRAIN}\nrequest: {extra_body: {user: 'u-${KV_TEST_USER}', tag: '$${x}'}}\n"
    )
    workload = load_workload(write(tmp_path, text))
    assert workload.drain_s == 7.0
    assert workload.request.extra_body == {"user": "u-s3cr3t", "tag": "${x}"}
    written = workload.resolved_yaml()
    assert "s3cr3t" not in written
    assert "${KV_TEST_DRAIN}" in written
    assert load_workload(write(tmp_path, written)) == workload
    before = workload.content_hash()
    monkeypatch.setenv("KV_TEST_USER", "another")
    assert load_workload(write(tmp_path, text)).content_hash() == before
    monkeypatch.setenv("KV_TEST_DRAIN", "8s")
    assert load_workload(write(tmp_path, text)).content_hash() != before


def test_variables_never_reach_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_TEST_SECRET", "s3cr3t")
    text = GOOD.replace("users: 2", "users: ${KV_TEST_SECRET}").replace(
        "name: mine", "name: ${KV_TEST_SECRET}/x"
    )
    text = (
        text.replace("kind: distinct", "kind: ${KV_TEST_SECRET}")
        + "drain: ${KV_TEST_SECRET}\nsalt: '${KV_TEST_SECRET}'\n"
    )
    problems = problems_of(tmp_path, text)
    assert len(problems) >= 4
    assert "s3cr3t" not in repr(problems)
    assert any("KV_TEST_SECRET" in p.message for p in problems)


def test_pydantic_itself_never_shows_inputs() -> None:
    with pytest.raises(ValidationError) as caught:
        Workload.model_validate({"name": "s3cr3t!"})
    assert "s3cr3t" not in str(caught.value)


# -- values ----------------------------------------------------------------------------------------


def test_content_hash_follows_what_is_sent(tmp_path: Path) -> None:
    base = load_workload(write(tmp_path, GOOD)).content_hash()
    assert len(base) == 64
    same = [
        ("name", "other"),
        ("description", "words"),
        ("sampling.metrics_interval", "2s"),
        ("server_args", "--blocks 99"),
        ("breaker.window", "9"),
        ("limits.rate", "9"),
    ]
    assert load_workload(write(tmp_path, GOOD), same).content_hash() == base
    for key, text in (
        ("seed", "2"),
        ("prompt.tokens", "101"),
        ("arrival.closed.users", "3"),
        ("salt", "none"),
    ):
        assert load_workload(write(tmp_path, GOOD), [(key, text)]).content_hash() != base


def test_a_workload_cannot_be_changed(tmp_path: Path) -> None:
    workload: Any = load_workload(write(tmp_path, GOOD))
    with pytest.raises(ValidationError):
        workload.seed = 2


def test_families_plan_one_round() -> None:
    assert load_workload("shared_prefix").requests == 120
    assert load_workload("shared_prefix", [("prompt.families", "30")]).requests == 150
    timed = load_workload("shared_prefix", [("duration", "5s")])
    assert (timed.requests, timed.duration_s) == (None, 5.0)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("60s", 60.0), ("2m", 120.0), ("1h", 3600.0), ("0.25s", 0.25), ("1.5m", 90.0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@given(st.floats(min_value=0, max_value=1e6).map(lambda x: round(x, 6)))
def test_durations_read_back_exactly(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


def test_server_args_take_one_line_or_a_list(tmp_path: Path) -> None:
    line = load_workload(write(tmp_path, GOOD + "server_args: --block-size 8 --no-prefix-caching\n"))
    listed = load_workload(write(tmp_path, GOOD + "server_args: [--block-size, '8', --no-prefix-caching]\n"))
    assert line.server_args == listed.server_args == ("--block-size", "8", "--no-prefix-caching")


@given(st.integers(1, 500), st.integers(0, 500), st.floats(0, 1, exclude_max=True))
def test_uniform_lengths_stay_inside(low: int, width: int, u: float) -> None:
    length = Length.model_validate({"uniform": [low, low + width]})
    assert low <= length.quantile(u) <= low + width == length.largest()


def test_uniform_lengths_are_equally_likely() -> None:
    length = Length.model_validate({"uniform": [3, 6]})
    drawn = [length.quantile((n + 0.5) / 400) for n in range(400)]
    assert {value: drawn.count(value) for value in set(drawn)} == {3: 100, 4: 100, 5: 100, 6: 100}


def test_lognormal_lengths_have_their_median_and_their_bounds() -> None:
    wide = Lognormal(median=500, sigma=0.9, min=1, max=1_000_000)
    assert wide.quantile(0.5) == pytest.approx(500, abs=1)
    assert wide.quantile(0.8413447) == pytest.approx(500 * 2.718281828**0.9, rel=0.01)
    cut = Lognormal(median=500, sigma=0.9, min=64, max=3000)
    drawn = [cut.quantile((n + 0.5) / 2000) for n in range(2000)]
    assert min(drawn) >= 64
    assert max(drawn) <= 3000
    assert drawn == sorted(drawn)
    assert drawn.count(3000) < 10
