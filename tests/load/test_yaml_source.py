"""The YAML reader against hostile and mistaken texts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.errors import UsageError
from kvprobe.load.yaml_source import MAX_DEPTH, MAX_NODES, YamlDocument, parse_yaml
from kvprobe.load.yaml_text import MAX_BYTES, read_text, resolve_scalar
from kvprobe.load.yaml_write import write_yaml


def parse(text: str, environ: dict[str, str] | None = None) -> YamlDocument:
    return parse_yaml(text, "w.yaml", environ or {})


def refused(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse(text)
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("Yes", "Yes"),
        ("12:30:00", "12:30:00"),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        ("0o17", 15),
        ("0x1F", 31),
        ("017", 17),
        ("-3", -3),
        ("+.5", 0.5),
        ("5.", 5.0),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("null", None),
        (".", "."),
        ("-", "-"),
        ("1.2.3", "1.2.3"),
        ("2026-03-01", "2026-03-01"),
    ],
)
def test_scalars_follow_yaml_1_2_core(text: str, value: object) -> None:
    got = resolve_scalar(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize("text", ["9" * 5000, ".inf", "-.INF", ".nan", "1e999"])
def test_absurd_numbers_are_refused(text: str) -> None:
    assert [p.code for p in parse(f"a: {text}").problems] == ["bad_value"]


def test_values_and_places() -> None:
    document = parse("a: 1\nb:\n  - x\n  - c: 'no'\n")
    assert document.value == {"a": 1, "b": ["x", {"c": "no"}]}
    mark = document.marks["b", 1, "c"]
    assert (mark.line, mark.column, mark.source_line) == (4, 8, "  - c: 'no'")
    assert (document.key_marks["b", 1, "c"].line, document.key_marks["b", 1, "c"].column) == (4, 5)
    assert ("b", 1, "c") in document.quoted


def test_the_nearest_place_stands_for_what_is_absent() -> None:
    document = parse("a:\n  b: 1\n")
    mark = document.mark_at(("a", "missing", "deeper"))
    assert mark is not None
    assert mark.line == 2


def test_duplicate_keys_are_all_told() -> None:
    document = parse("a: 1\nb: 2\na: 3\nc: {d: 1, d: 2}\n")
    assert [(p.code, p.line, p.column) for p in document.problems] == [
        ("duplicate_key", 3, 1),
        ("duplicate_key", 4, 11),
    ]
    assert document.value["a"] == 1


def test_tab_indentation_names_every_line() -> None:
    error = refused("a:\n\tb: 1\n  c:\n\t\td: 2\n")
    assert [(p.code, p.line, p.column) for p in error.problems] == [
        ("tab_indent", 2, 1),
        ("tab_indent", 4, 1),
    ]


def test_a_tab_inside_a_text_block_is_content() -> None:
    assert parse("a: |\n  x\n  \ty\n").value == {"a": "x\n\ty\n"}


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object:os.system x",
        "a: !!python/object/apply:os.system ['true']",
        "a: !local 1",
        "a: !!str 1",
        "a: !!binary aGk=",
    ],
)
def test_tags_are_refused(text: str) -> None:
    document = parse(text)
    assert [p.code for p in document.problems] == ["tag_refused"]
    assert document.problems[0].line == 1


def test_several_documents_are_refused() -> None:
    document = parse("a: 1\n---\nb: 2\n")
    assert [(p.code, p.line) for p in document.problems] == [("several_documents", 2)]


def test_aliases_work_within_bounds() -> None:
    assert parse("a: &x {b: 1}\nc: *x\n").value == {"a": {"b": 1}, "c": {"b": 1}}


def test_an_alias_bomb_is_refused_quickly() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    text = "\n".join(lines)
    assert len(text) < 1000
    error = refused(text)
    assert error.problems[0].code == "too_many_nodes"
    assert f"{MAX_NODES:,}" in error.problems[0].message


def test_aliases_that_cannot_be_resolved() -> None:
    assert [p.code for p in parse("a: *nobody").problems] == ["bad_alias"]
    recursive = parse("a: &a [1, *a]")
    assert [p.code for p in recursive.problems] == ["bad_alias"]
    assert "contains itself" in recursive.problems[0].message


def test_a_chain_of_aliases_cannot_go_deeper_than_the_limit() -> None:
    lines = ["a0: &a0 [1]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 100)]
    assert refused("\n".join(lines)).problems[0].code == "too_deep"


@pytest.mark.parametrize(
    "text", ["[" * 3000, "{a: " * 3000, "".join(" " * n + "k:\n" for n in range(3000)), "- " * 3000 + "x"]
)
def test_deep_nesting_is_a_clean_error(text: str) -> None:
    error = refused(text)
    assert error.problems[0].code == "too_deep"
    assert str(MAX_DEPTH) in error.problems[0].message


def test_syntax_errors_have_a_place() -> None:
    problem = refused("a: 1\nb: [1, 2\nc: 3\n").problems[0]
    assert problem.code == "yaml_syntax"
    assert problem.line in (2, 3)
    assert problem.source_line


def test_control_characters_have_a_place() -> None:
    problem = refused("a: 1\nb: x\x07y\n").problems[0]
    assert (problem.code, problem.line, problem.column) == ("bad_character", 2, 5)
    assert "U+0007" in problem.message


def test_keys_must_be_words() -> None:
    assert [p.code for p in parse("? [1, 2]\n: x\nb: 1\n").problems] == ["bad_key"]


def test_merge_keys_are_named() -> None:
    assert [p.code for p in parse("a: &a {b: 1}\nc:\n  <<: *a\n").problems] == ["merge_key"]


def test_variables_are_filled_in_and_their_source_kept() -> None:
    document = parse('a: ${WORD}\nb: "x-${WORD}-$${WORD}"\nc: 1\n', {"WORD": "s3cret"})
    assert document.value == {"a": "s3cret", "b": "x-s3cret-${WORD}", "c": 1}
    assert document.unexpanded == {("a",): "${WORD}", ("b",): "x-${WORD}-$${WORD}"}


def test_a_variable_gives_text_never_a_type() -> None:
    assert parse("a: ${N}", {"N": "true"}).value == {"a": "true"}


def test_missing_variables_are_all_named() -> None:
    document = parse("a: ${ONE}\nb: ${TWO} ${THREE}\nc: ${\n")
    told = [(p.code, p.line) for p in document.problems]
    assert told == [
        ("missing_variable", 1),
        ("missing_variable", 2),
        ("missing_variable", 2),
        ("bad_value", 3),
    ]
    assert "ONE" in document.problems[0].message
    assert {("a",), ("b",), ("c",)} <= document.spoilt


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_has_no_value(text: str) -> None:
    assert parse(text).value is None


def test_long_lines_are_not_shown() -> None:
    assert parse(f"a: {'x' * 5000}\na: 1\n").problems[0].source_line == "a: 1"
    assert parse(f"b: [{'x, ' * 500} !t 1]").problems[0].source_line is None


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"a: 1\0\n", "binary"),
        ("a: 1\n".encode("utf-16"), "encoding"),
        ("a: 1\n".encode("utf-16-le"), "encoding"),
        (b"a: \xff\xfe\n", "encoding"),
        (b"a: 1\nb: caf\xe9\n", "encoding"),
        (b"#" * (MAX_BYTES + 1), "too_large"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, data: bytes, code: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        read_text(path, "w.yaml")
    assert caught.value.problems[0].code == code
    assert caught.value.problems[0].fix


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(100 << 20)
    began = time.perf_counter()
    with pytest.raises(UsageError, match="larger than"):
        read_text(path, "huge.yaml")
    assert time.perf_counter() - began < 5


def test_a_byte_order_mark_and_crlf_are_harmless(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\na: 2\r\n")
    document = parse(read_text(path, "w.yaml"))
    assert document.value == {"a": 1}
    assert document.problems[0].source_line == "a: 2"


@pytest.mark.parametrize("name", [".", "absent.yaml"])
def test_what_is_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError):
        read_text(tmp_path / name, name)


_TEXT = st.text(max_size=20)
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(_TEXT.filter(lambda k: k != "<<"), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(_TEXT.filter(lambda k: k != "<<"), _VALUES, max_size=5))
def test_what_is_written_reads_back(value: dict[str, object]) -> None:
    document = parse(write_yaml(value, {}))
    assert document.problems == []
    assert (document.value or {}) == value


@given(st.text(max_size=200))
def test_any_text_gives_a_document_or_a_usage_error(text: str) -> None:
    try:
        told = parse(text).problems
    except UsageError as error:
        told = list(error.problems)
        fatal = True
    else:
        fatal = False
    assert all(p.code and p.message and p.line for p in told)
    assert told or not fatal


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('a: 1\nb: "\\UFFFFFFFF"\n', 2),
        ('a: "\\U00110000"\n', 1),
        (f"%YAML 1.{'1' * 5000}\n--- x\n", 1),
    ],
)
def test_what_the_parser_itself_trips_over(text: str, line: int) -> None:
    (problem,) = refused(text).problems
    assert (problem.code, problem.line) == ("yaml_syntax", line)


@pytest.mark.parametrize("form", ["!{} x", "!<{}> x", "!{}!b x", "%TAG !{}! tag:x\n--- x"])
def test_a_tag_of_a_megabyte_takes_no_time(form: str) -> None:
    started = time.monotonic()
    problem = refused(form.format("a" * 1_000_000)).problems[0]
    assert problem.code == "too_large"
    assert time.monotonic() - started < 2


def test_lines_are_counted_as_yaml_counts_them() -> None:
    for end in ("\n", "\r", "\r\n"):
        (problem,) = parse(f"a: 1{end}b: 2{end}a: 3{end}").problems
        assert (problem.line, problem.source_line) == (3, "a: 3")


def test_half_characters_are_refused_where_they_stand() -> None:
    first, second = parse('a: "\\ud800"\n"\\udfff": 1\n').problems
    assert (first.code, first.line, first.column) == ("bad_character", 1, 4)
    assert (second.code, second.line) == ("bad_character", 2)
    (third,) = parse("a: x${BYTES}\n", {"BYTES": "\udcff"}).problems
    assert third.code == "encoding"
    assert parse('a: "\\U0001F600"\n').value == {"a": "\U0001f600"}
