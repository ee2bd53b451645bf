"""Traces of every known format: what is told, what is refused with its line, what is counted."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.errors import Problem, UsageError
from kvprobe.traces import lines as trace_lines
from kvprobe.traces.read import NO_ANSWER, NO_PROMPT, open_trace
from kvprobe.traces.rows import TraceRow
from kvprobe.traces.write import as_line, write_rows


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def problem_of(path: Path, **options: object) -> Problem:
    with pytest.raises(UsageError) as caught:
        list(open_trace(path, **options).rows())  # type: ignore[arg-type]
    assert len(caught.value.problems) == 1
    return caught.value.problems[0]


AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens",
    "2023-11-16 18:17:03.9799600,4808,10",
    "2023-11-16 18:17:04.0319600,3180,8",
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens",
    "2024-05-10 00:00:00.009930+00:00,2162,5",
    "2024-05-10 00:00:00.017335+00:00,2399,6",
)
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",
    "5,7,1.2,ChatGPT,472,18,490,Conversation log",
    "45,,1.0,ChatGPT,1087,230,1317,API log",
    "118,7,1.0,GPT-4,417,276,693,Conversation log",
    "120,,0.1,GPT-4,417,0,417,API log",
)
VIDUR = ("arrived_at,num_prefill_tokens,num_decode_tokens", "0.25,374,44", "4.5,396,109")
MOONCAKE = (
    json.dumps({"timestamp": 3000, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 48]}),
    json.dumps({"timestamp": 3052, "input_length": 1024, "output_length": 26, "hash_ids": [46, 47]}),
)


def chat(chat_id: int, parent: int, at_s: float, tokens: int, turn: int | None = None) -> str:
    ids = list(range(-(-tokens // 16)))
    row = {"chat_id": chat_id, "parent_chat_id": parent, "timestamp": at_s, "input_length": tokens}
    row |= {"output_length": 9, "type": "text", "hash_ids": ids}
    return json.dumps(row | ({"turn": turn} if turn is not None else {}))


def test_azure_times_count_from_the_first_row(tmp_path: Path) -> None:
    for name, rows in (("2023", AZURE), ("2024", AZURE_2024)):
        trace = open_trace(write(tmp_path / name, *rows))
        found = list(trace.rows())
        assert trace.format == "azure"
        assert found[0].t_s == 0
        assert found[1].t_s == pytest.approx(0.052 if name == "2023" else 0.007405, abs=1e-6)
        assert [r.line for r in found] == [2, 3]
    assert (found[0].in_tokens, found[0].out_tokens, found[0].hash_ids) == (2162, 5, None)


def test_burstgpt_sessions_count_their_turns_and_failures_are_dropped(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "b.csv", *BURSTGPT))
    found = list(trace.rows())
    assert trace.format == "burstgpt"
    assert [(r.t_s, r.session, r.turn) for r in found] == [(0, "7", 1), (40, None, None), (113, "7", 2)]
    assert trace.dropped == {NO_ANSWER: 1}


def test_vidur_is_in_seconds_and_mooncake_in_milliseconds(tmp_path: Path) -> None:
    vidur = list(open_trace(write(tmp_path / "v.csv", *VIDUR)).rows())
    assert [(r.t_s, r.in_tokens, r.out_tokens) for r in vidur] == [(0, 374, 44), (4.25, 396, 109)]
    mooncake = list(open_trace(write(tmp_path / "m.jsonl", *MOONCAKE)).rows())
    assert [r.t_s for r in mooncake] == pytest.approx([0, 0.052])
    assert mooncake[0].hash_ids == (46, 47, 48)
    assert (mooncake[0].block_tokens, mooncake[0].full_blocks) == (512, 2)
    assert mooncake[1].full_blocks == 2


def test_qwen_parents_become_sessions(tmp_path: Path) -> None:
    rows = [
        chat(1, -1, 0.5, 20),
        chat(2, 1, 1.5, 40),
        chat(3, -1, 2, 16),
        chat(4, 2, 3, 70),
        chat(5, 99, 4, 5),
    ]
    trace = open_trace(write(tmp_path / "q.jsonl", *rows))
    found = list(trace.rows())
    assert trace.format == "qwen"
    assert [(r.session, r.turn) for r in found] == [("1", 1), ("1", 2), ("3", 1), ("1", 3), ("99", 1)]
    assert trace.orphans == 1
    assert found[1].block_tokens == 16


def test_a_turn_that_qwen_states_is_kept(tmp_path: Path) -> None:
    rows = [chat(7, 6, 0, 20, turn=4), chat(8, 7, 1, 40, turn=5)]
    assert [r.turn for r in open_trace(write(tmp_path / "q.jsonl", *rows)).rows()] == [4, 5]


def test_our_own_form_says_everything(tmp_path: Path) -> None:
    row = {"t": 1.5, "in": 100, "out": 3, "hash_ids": [5, 6], "block": 64, "session": "a", "turn": 2}
    trace = open_trace(write(tmp_path / "k.jsonl", json.dumps(row), json.dumps({"t": 2, "in": 5, "out": 6})))
    assert list(trace.rows()) == [
        TraceRow(0.0, 100, 3, (5, 6), 64, "a", 2, 1),
        TraceRow(0.5, 5, 6, None, None, None, None, 2),
    ]


def test_requests_without_tokens_are_counted_not_sent(tmp_path: Path) -> None:
    lines = [{"t": n, "in": i, "out": o} for n, (i, o) in enumerate([(0, 5), (5, 0), (5, 5), (0, 0)])]
    trace = open_trace(write(tmp_path / "k.jsonl", *map(json.dumps, lines)))
    assert [(r.t_s, r.line) for r in trace.rows()] == [(0, 3)]
    assert trace.dropped == {NO_PROMPT: 2, NO_ANSWER: 1}
    assert len(list(trace.rows())) == 1
    assert trace.dropped.total() == 3, "a second pass counts anew"


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        ((*VIDUR, "1.0,5,5"), 4, "came before the one above it"),
        ((VIDUR[0], "0,5"), 2, "2 cells where the header has 3"),
        ((VIDUR[0], "0,5,x"), 2, "`x` for `num_decode_tokens`"),
        ((VIDUR[0], "0,-5,5"), 2, "`-5` for `num_prefill_tokens`"),
        ((VIDUR[0], "0,5.5,5"), 2, "`5.5`"),
        ((VIDUR[0], "nan,5,5"), 2, "`nan` for `arrived_at`"),
        ((VIDUR[0], "-1,5,5"), 2, "no time from 0 to"),
        ((VIDUR[0], "1e300,5,5"), 2, "no time from 0 to"),
        ((VIDUR[0], "0,5,99999999999999"), 2, "no whole number"),
        ((VIDUR[0], '0,"5,5'), 2, "no CSV"),
        ((AZURE[0], "yesterday,5,5"), 2, "no date and time"),
        ((AZURE[0], "2023-13-16 18:17:03.97,5,5"), 2, "no date and time"),
        ((AZURE[0], "1823-11-16 18:17:03.97,5,5"), 2, "before 1970"),
        ((MOONCAKE[0], "{broken"), 2, "no JSON"),
        ((MOONCAKE[0], "[1]"), 2, "no JSON object"),
        (
            (MOONCAKE[0], "", json.dumps({"timestamp": 1, "input_length": 5})),
            3,
            "nothing for `output_length`",
        ),
        (
            ('{"timestamp": 1, "input_length": 1100, "output_length": 1, "hash_ids": [1]}',),
            1,
            "make 3 blocks of 512",
        ),
        (
            ('{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [-1]}',),
            1,
            "no list of whole numbers",
        ),
        (
            ('{"timestamp": 1, "input_length": 5, "output_length": 1, "hash_ids": [true]}',),
            1,
            "no list of whole",
        ),
        (('{"t": 0, "in": true, "out": 5}',), 1, "no whole number"),
        (('{"t": 0, "in": 5, "out": 5, "hash_ids": [1]}',), 1, "no `block`"),
        (('{"t": 0, "in": 5, "out": 5, "hash_ids": [1], "block": 0}',), 1, "no tokens"),
        (('{"t": 0, "in": 5, "out": 5, "turn": 1}',), 1, "no `session`"),
        (('{"t": 0, "in": 5, "out": 5, "session": "a", "turn": 0}',), 1, "turns count from 1"),
        (('{"t": 0, "in": 5, "out": 5, "session": ["a"]}',), 1, "no name"),
        (("[" * 5000,), 1, "no columns of a known trace"),
        (('{"t": ' + "[" * 100_000,), 1, "no JSON"),
        (('{"input_length": 5, "output_length": 5, "timestamp": 1}',), 1, "seconds or milliseconds"),
        (("a,b", "1,2"), 1, "no columns of a known trace"),
        (("ContextTokens,GeneratedTokens,ContextTokens", "1,2,3"), 1, "two columns"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(
    tmp_path: Path, lines: tuple[str, ...], line: int, words: str
) -> None:
    path = write(tmp_path / "x", *lines)
    problem = problem_of(path)
    assert (problem.path, problem.line) == (str(path), line)
    assert words in problem.message
    assert problem.fix
    assert len(problem.message) < 500


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is empty"),
        (b"\n \n\n", "is empty"),
        (b"\x1f\x8b\x08\x00abc", "gzip"),
        (b"PAR1....", "parquet"),
        ("t,in".encode("utf-16"), "UTF-16"),
        (b"\x00\x01\x02\xff\xfe", "no columns"),
    ],
)
def test_files_that_are_no_trace(tmp_path: Path, data: bytes, words: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    assert words in problem_of(path).message


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    assert "no regular file" in problem_of(tmp_path).message
    assert "cannot be read" in problem_of(tmp_path / "missing").message
    assert "cannot be read" in problem_of(Path("a\0b")).message


def test_a_line_without_end_is_cut_off_by_its_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_lines, "MAX_LINE_BYTES", 1 << 20)
    path = tmp_path / "x.jsonl"
    path.write_text('{"t": 0, "in": 5, "out": 5}\n{"t": "' + "x" * (2 << 20) + '"}\n')
    problem = problem_of(path)
    assert problem.line == 2
    assert "more than 1 MiB" in problem.message


def test_a_bom_and_windows_line_ends_are_no_part_of_a_cell(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(VIDUR).encode() + b"\r\n")
    assert [r.in_tokens for r in open_trace(path).rows()] == [374, 396]


def test_a_format_can_be_named(tmp_path: Path) -> None:
    plain = '{"input_length": 5, "output_length": 5, "timestamp": 1000}'
    path = write(tmp_path / "x", plain, plain.replace("1000", "2000"))
    assert [r.t_s for r in open_trace(path, "mooncake").rows()] == [0, 1]
    assert "known formats" in (problem_of(path, format="nonsense").fix or "")
    assert "no columns of vidur" in problem_of(write(tmp_path / "y", *AZURE), format="vidur").message


def test_lengths_alone_need_neither_times_nor_hash_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "x", '{"input_length": 5000, "output_length": 5, "hash_ids": [1]}')
    (row,) = open_trace(path, lengths_only=True).rows()
    assert (row.t_s, row.in_tokens, row.hash_ids) == (0, 5000, None)


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    import hashlib

    path = write(tmp_path / "x", *VIDUR)
    assert open_trace(path).digest == hashlib.sha256(path.read_bytes()).hexdigest()


# -- scaling ---------------------------------------------------------------------------------------


def test_time_and_length_are_scaled(tmp_path: Path) -> None:
    path = write(tmp_path / "v", *VIDUR)
    rows = list(open_trace(path, scale_time=0.5, scale_len=0.01).rows())
    assert [(r.t_s, r.in_tokens, r.out_tokens) for r in rows] == [(0, 4, 1), (2.125, 4, 1)]
    for options in (
        {"scale_time": 0.0},
        {"scale_len": -1.0},
        {"scale_len": float("nan")},
        {"scale_time": 1e9},
    ):
        assert "cannot be scaled" in problem_of(path, **options).message


ROWS = st.lists(
    st.tuples(st.integers(1, 900), st.integers(0, 3), st.integers(1, 300)), min_size=1, max_size=8
)


def chained(path: Path, sizes: list[tuple[int, int, int]], block: int) -> Path:
    """Rows whose lists of ids are the starts of a few chains, as conversations have them."""
    lines = []
    for number, (tokens, chain, answer) in enumerate(sizes):
        ids = [chain * 1000 + n for n in range(tokens // block)]
        ids += [10_000 + number] if tokens % block else []
        lines.append(json.dumps({"t": number, "in": tokens, "out": answer, "hash_ids": ids, "block": block}))
    return write(path, *lines)


def shared_blocks(a: TraceRow, b: TraceRow) -> int:
    pairs = zip((a.hash_ids or ())[: a.full_blocks], (b.hash_ids or ())[: b.full_blocks], strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(a.full_blocks, b.full_blocks))


@given(ROWS, st.sampled_from([16, 64, 512]), st.sampled_from([0.25, 0.5, 0.75, 1.5, 3.0]))
@settings(max_examples=40, deadline=None)
def test_scaling_keeps_what_prompts_share(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int, int]], block: int, factor: float
) -> None:
    path = chained(tmp_path_factory.mktemp("t") / "t", sizes, block)
    before = list(open_trace(path).rows())
    after = list(open_trace(path, scale_len=factor).rows())
    for a, b in zip(before, after, strict=True):
        assert b.block_tokens == round(block * factor)
        assert b.full_blocks == a.full_blocks or (a.full_blocks == 0 and b.in_tokens == 1)
        assert (b.hash_ids or ())[: b.full_blocks] == (a.hash_ids or ())[: b.full_blocks]
        assert abs(b.in_tokens - a.in_tokens * factor) <= 1
        assert len(b.hash_ids or ()) <= len(a.hash_ids or ())
    for i in range(len(before)):
        for j in range(i):
            assert shared_blocks(before[i], before[j]) == shared_blocks(after[i], after[j])


def test_a_block_that_cannot_follow_is_refused_with_a_factor_that_works(tmp_path: Path) -> None:
    path = chained(tmp_path / "t", [(40, 0, 5)], 16)
    problem = problem_of(path, scale_len=0.1)
    assert "blocks of 16 tokens" in problem.message
    assert "0.125" in (problem.fix or "")
    assert [r.block_tokens for r in open_trace(path, scale_len=0.125).rows()] == [2]


# -- round trip ------------------------------------------------------------------------------------

_WRITTEN = st.builds(
    lambda gap, size, answer, block, session: (gap, size, answer, block, session),
    st.integers(0, 10_000_000),
    st.integers(1, 3000),
    st.integers(1, 5000),
    st.sampled_from([None, 16, 100, 512]),
    st.sampled_from([None, "a", "b\u00fc", 'x,"y\n']),
)


@given(st.lists(_WRITTEN, min_size=1, max_size=10))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, given_rows: list[tuple]
) -> None:  # type: ignore[type-arg]
    rows, micros, turns = [], 0, dict[str, int]()
    for number, (gap, size, answer, block, session) in enumerate(given_rows, start=1):
        micros += gap if rows else 0
        ids = (
            tuple(random.Random(number).randrange(1 << 62) for _ in range(-(-size // block)))
            if block
            else None
        )
        turn = None
        if session is not None:
            turn = turns[session] = turns.get(session, 0) + 1
        rows.append(TraceRow(micros / 1e6, size, answer, ids, block, session, turn, number))
    path = tmp_path_factory.mktemp("t") / "t.jsonl"
    with open(path, "w", encoding="utf-8") as out:
        assert write_rows(rows, out) == len(rows)
    found = list(open_trace(path).rows())
    assert [(r.line, as_line(r)) for r in found] == [(r.line, as_line(r)) for r in rows]


def test_every_format_converts_to_the_one_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from kvprobe.traces.__main__ import main

    for name, lines in (
        ("a", AZURE),
        ("b", BURSTGPT),
        ("v", VIDUR),
        ("m", MOONCAKE),
        ("q", (chat(1, -1, 3, 20),)),
    ):
        path, out = write(tmp_path / name, *lines), tmp_path / f"{name}.jsonl"
        assert main([str(path), "-o", str(out)]) == 0
        again = open_trace(out)
        assert again.format == "kvprobe"
        assert [as_line(r) for r in again.rows()] == [as_line(r) for r in open_trace(path).rows()]
    said = capsys.readouterr().err
    assert "burstgpt: 3 rows written; dropped: 1 no answer tokens" in said
    assert main([str(path), "-o", str(path)]) == 2
    assert main([str(write(tmp_path / "bad", *VIDUR, "0,1,1"))]) == 2
    assert "bad:4" in capsys.readouterr().err.replace(" ", "")


def test_memory_stays_bounded_however_long_the_trace(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "long.csv"
    with open(path, "w", encoding="utf-8") as file:
        file.write(VIDUR[0] + "\n")
        file.writelines(f"{n * 0.01:.2f},{n % 900 + 1},5\n" for n in range(15_000))
    tracemalloc.start()
    try:
        assert sum(1 for _ in open_trace(path).rows()) == 15_000
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


_JUNK = st.text(alphabet='0123456789.,{}[]":-eTinout hash_ids\\\x00\u2028\ud7ff', max_size=60)


@given(st.sampled_from([AZURE, BURSTGPT, VIDUR, MOONCAKE]), st.lists(_JUNK, max_size=4), st.integers(0, 4))
@settings(max_examples=150, deadline=None)
def test_whatever_a_file_holds_it_is_rows_or_a_problem_with_its_path(
    tmp_path_factory: pytest.TempPathFactory, good: tuple[str, ...], junk: list[str], at: int
) -> None:
    path = tmp_path_factory.mktemp("t") / "t"
    lines = [*good[:at], *junk, *good[at:]]
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    rows: list[TraceRow] = []
    told: tuple[Problem, ...] = ()
    try:
        rows.extend(open_trace(path).rows())
    except UsageError as error:
        told = error.problems
    assert all(p.path == str(path) and p.fix for p in told)
    assert all(r.in_tokens > 0 and r.out_tokens > 0 and r.t_s >= 0 for r in rows)
    assert [r.t_s for r in rows] == sorted(r.t_s for r in rows)
