"""A user's own questions as files come: other line ends, repeats, answers that cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvprobe.errors import UsageError
from kvprobe.quality.dataset import MAX_LINE_CHARS, MAX_PROBLEMS, read_dataset
from kvprobe.quality.items import Item
from kvprobe.quality.judging import numbers, right


def written(folder: Path, *rows: Any, end: str = "\n", mark: bytes = b"") -> Path:
    path = folder / "d.jsonl"
    text = end.join(row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_bytes(mark + text.encode("utf-8", "surrogatepass"))
    return path


def problems(path: Path, limit: int | None = None) -> list[tuple[int | None, str]]:
    with pytest.raises(UsageError) as caught:
        read_dataset(path, limit)
    return [(p.line, p.message) for p in caught.value.problems]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\n\n \n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_a_byte_order_mark(tmp_path: Path, end: str, mark: bytes) -> None:
    rows = [{"prompt": f"Frage {n}: größer?\u2028 \U0001f600", "answer": "ß"} for n in range(3)]
    found = read_dataset(written(tmp_path, *rows, end=end, mark=mark), None)
    assert [i.text for i in found.items] == [row["prompt"] for row in rows]


def test_a_repeated_question_counts_once(tmp_path: Path) -> None:
    """Ten questions fifty times are ten: a greedy server gives each the same answer again."""
    rows = [{"prompt": f"q{n % 10}", "answer": "x", "id": n % 3} for n in range(500)]
    found = read_dataset(written(tmp_path, *rows), 50)
    assert (len(found.items), found.repeated, found.left) == (10, 490, 0)
    other = [{"prompt": "q", "answer": "x"}, {"prompt": "q", "answer": "y"}]
    assert len(read_dataset(written(tmp_path, *other), None).items) == 2


def test_what_is_left_of_a_file_is_counted(tmp_path: Path) -> None:
    rows = [{"prompt": f"q{n}", "answer": "x"} for n in range(120)]
    found = read_dataset(written(tmp_path, *rows), 50)
    assert (len(found.items), found.left) == (50, 70)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "q", "answer": "four", "match": "number"}, "no number"),
        ({"prompt": "q", "answer": "four", "match": "last_number"}, "no number"),
        ({"prompt": "q", "answer": "...", "match": "words"}, "no word"),
        ({"prompt": "q", "answer": "[1]", "match": "json"}, "no JSON object"),
        ({"prompt": "q", "answer": {"a": 1}}, "`answer`"),
        ({"prompt": "q", "answer": True}, "`answer`"),
        ({"prompt": "q", "answer": " "}, "`answer`"),
        ({"prompt": "q", "answer": None}, "`answer`"),
        ({"prompt": ["q"], "answer": "x"}, "`prompt`"),
        ({"messages": [], "answer": "x"}, "`prompt`"),
        ({"messages": [{"role": "system", "content": "q"}], "answer": "x"}, "`prompt`"),
        ({"prompt": "q", "answer": "x", "max_tokens": True}, "`max_tokens`"),
        ({"prompt": "q", "answer": "x", "max_tokens": 1e3}, "`max_tokens`"),
        ({"prompt": "q", "answer": "x", "match": ["exact"]}, "`match`"),
        ({"prompt": "q", "answer": "x", "kind": "all"}, "`kind`"),
        ("[" * 5_000, "no JSON object"),
        ("x" * (MAX_LINE_CHARS + 1), "longer than"),
        ('{"prompt": "q", "answer": "x"', "no JSON object"),
    ],
)
def test_questions_that_could_not_be_judged_are_refused(tmp_path: Path, row: Any, said: str) -> None:
    (found,) = problems(written(tmp_path, {"prompt": "good", "answer": "x"}, row))
    assert found[0] == 2
    assert said in found[1]


def test_a_file_of_nonsense_is_left_early(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b"\x00\xff\n" * 100_000)
    assert len(problems(path)) == MAX_PROBLEMS
    path.write_bytes(b"")
    assert "no question" in problems(path)[0][1]


def test_an_object_is_the_answer_of_a_json_question(tmp_path: Path) -> None:
    row = {"prompt": "q", "answer": {"a": 1, "b": "x"}, "match": "json"}
    (item,) = read_dataset(written(tmp_path, row), None).items
    assert right(item, 'Here: {"b": "x", "a": 1}.')
    assert not right(item, '{"b": "x", "a": 2}')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("4 8 2 1", ["4821"]),
        ("1,234,567 and 1,2345", ["1234567", "1", "2345"]),
        ("It is -5.", ["-5"]),
        ("\u22125", ["-5"]),
        ("2024-05-01", ["2024", "05", "01"]),
        ("x-5, a(b)-5", ["5", "5"]),
        ("3.50 or 4.0 or 0042", ["3.5", "4", "0042"]),
        ("$1,234.50, of 3, 4", ["1234.5", "3", "4"]),
        ("none", []),
        ("1" + " 1" * 20_000, None),
        ("1" + ",111" * 20_000, None),
    ],
)
def test_numbers_of_a_text(text: str, found: list[str] | None) -> None:
    assert numbers(text) == found if found is not None else numbers(text)


@pytest.mark.parametrize(
    ("method", "answer", "given", "is_right"),
    [
        ("number", "3.5", "3.7", False),
        ("number", "-5", "5", False),
        ("number", "1234", "1,234", True),
        ("number", "no", "idea", False),
        ("last_number", "18", "First 3 x 6, so 9 + 9 = 18.", True),
        ("last_number", "18", "18 is wrong, it is 19", False),
        ("last_number", "1200", "#### 1,200", True),
        ("words", "!", "anything", False),
        ("exact", "y", "", False),
        ("json", '{"a": 1}', '{"a":' + "[" * 800 + "]" * 800 + "}", False),
    ],
)
def test_what_is_right(method: Any, answer: str, given: str, is_right: bool) -> None:
    assert right(Item("1", "k", "?", answer, method, 8), given) is is_right
