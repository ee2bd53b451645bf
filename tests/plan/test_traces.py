"""Lengths from traces of each known form, and from a run directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvprobe.errors import UsageError
from kvprobe.plan.lengths import parse_lengths


def write(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


FORMS = {
    "azure.csv": ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:17:03.97,4808,10", "x,100,8"),
    "burstgpt.csv": (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
        "5,,1,ChatGPT,4808,10,4818,API",
        "6,,1,ChatGPT,100,8,108,API",
    ),
    "vidur.csv": ("arrived_at,num_prefill_tokens,num_decode_tokens", "0.1,4808,10", "0.2,100,8"),
    "mooncake.jsonl": (
        json.dumps({"timestamp": 0, "input_length": 4808, "output_length": 10, "hash_ids": [1]}),
        json.dumps({"timestamp": 3, "input_length": 100, "output_length": 8, "hash_ids": [2]}),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_each_form_is_told_by_its_columns(tmp_path: Path, name: str) -> None:
    found = parse_lengths(write(tmp_path / name, *FORMS[name]))
    assert found.tokens == (108, 4818)  # prompt and answer together, at full growth
    assert found.requests == 2
    assert found.mean_tokens == 2463
    assert "full growth" in found.assumptions[0]


def test_rows_without_a_token_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "ContextTokens,GeneratedTokens", "0,0", "5,5")
    found = parse_lengths(path)
    assert (found.tokens, found.requests) == ((10,), 1)
    assert any("1 rows without a token" in note for note in found.assumptions)


@pytest.mark.parametrize(
    ("name", "lines", "line"),
    [
        ("a.csv", ("ContextTokens,GeneratedTokens", "5,5", "5,"), 3),
        ("a.csv", ("ContextTokens,GeneratedTokens", "5,x"), 2),
        ("a.csv", ("ContextTokens,GeneratedTokens", "-5,5"), 2),
        ("a.csv", ("ContextTokens,GeneratedTokens", "nan,5"), 2),
        ("a.jsonl", ('{"input_length": 5, "output_length": 5}', "[1]"), 2),
        ("a.jsonl", ('{"input_length": 5}',), 1),
        ("a.jsonl", ('{"input_length": 5, "output_length": 5}', "{broken"), 2),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, name: str, lines: tuple[str, ...], line: int) -> None:
    with pytest.raises(UsageError) as caught:
        parse_lengths(write(tmp_path / name, *lines))
    assert caught.value.problems[0].line == line
    assert caught.value.problems[0].path == str(tmp_path / name)


@pytest.mark.parametrize("lines", [("a,b", "1,2"), ("",), ("ContextTokens,GeneratedTokens",)])
def test_what_is_no_trace_is_refused(tmp_path: Path, lines: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        parse_lengths(write(tmp_path / "x.csv", *lines))


def test_a_run_directory_counts_what_ended_well(tmp_path: Path) -> None:
    from kvprobe.evidence import columns
    from kvprobe.evidence.records import RequestRecord

    def record(number: int, prompt: int | None, answer: int | None, **rest: object) -> RequestRecord:
        return RequestRecord(
            request_id=str(number),
            kind="chat",
            intended_ns=number,
            plan_index=number,
            prompt_tokens=prompt,
            completion_tokens=answer,
            **rest,  # type: ignore[arg-type]
        )

    rows = [
        record(1, 90, 10),
        record(2, 190, 10),
        record(3, 500, 500, warmup=True),
        record(4, 500, 3, failure="truncated"),
        record(5, None, None),
    ]
    columns.write_requests(tmp_path / "requests.parquet", rows)
    found = parse_lengths(str(tmp_path))
    assert (found.tokens, found.requests) == ((100, 200), 2)
    assert any("2 of 5 requests" in note for note in found.assumptions)


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        parse_lengths(str(tmp_path))
    assert "requests.parquet" in caught.value.problems[0].message
    (tmp_path / "requests.parquet").write_bytes(b"no parquet")
    with pytest.raises(UsageError):
        parse_lengths(str(tmp_path))
