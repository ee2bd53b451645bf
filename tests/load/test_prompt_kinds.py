"""Documents, conversations, tools and traces as prompts: sizes, purity, what is shared and in which order."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.errors import UsageError
from kvprobe.load.job import Calibration, PlannedRequest
from kvprobe.load.prompt_layout import analyse_prompts
from kvprobe.load.prompts import PromptSource
from kvprobe.load.token_view import split_pieces
from kvprobe.load.tool_list import TOOL_LINES
from kvprobe.load.workload import load_workload
from tests.load import test_prompts as basic

KINDS = (
    "rag_documents",
    "multi_turn",
    "long_conversation",
    "tool_calls_reordered",
    "trace_replay",
    "system_prompt_2k",
    "burst",
)

BYTES = msgspec.structs.replace(
    basic.BYTES,
    turn_template_tokens=4,
    word_tokens=basic.BYTES.word_tokens | {line: len(line.encode()) for line in TOOL_LINES},
)
WORDWISE = msgspec.structs.replace(
    basic.WORDWISE,
    turn_template_tokens=11,
    word_tokens=basic.WORDWISE.word_tokens | dict.fromkeys(TOOL_LINES, 31),
)
CALIBRATIONS = pytest.mark.parametrize("calibration", [BYTES, WORDWISE], ids=["bytes", "words"])


def source(name: str, calibration: Calibration = BYTES, salt: str = "s", **sets: str) -> PromptSource:
    changes = [(key.replace("__", "."), text) for key, text in sets.items()]
    return PromptSource(load_workload(name, changes), calibration, salt)


def plan(made: PromptSource) -> list[PlannedRequest]:
    return [made.request(n) for n in range(made.total or 70)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_byte_tokens_are_hit_exactly(kind: str, endpoint: str) -> None:
    for request in plan(source(kind, endpoint=endpoint)):
        assert request.asked_prompt_tokens == basic.true_bytes(request)
        assert (request.prompt is None) == (endpoint == "chat")
        assert request.asked_completion_tokens > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calibration", [BYTES, WORDWISE, basic.ASSUMED], ids=["bytes", "words", "assumed"])
def test_a_request_is_a_pure_function_of_its_number(kind: str, calibration: Calibration) -> None:
    first, second = source(kind, calibration), source(kind, calibration)
    numbers = list(range(-3, first.total or 60))
    backwards = [second.request(n) for n in reversed(numbers)][::-1]
    assert [first.request(n) for n in numbers] == backwards


@pytest.mark.parametrize("kind", KINDS)
def test_a_salt_changes_texts_but_neither_lengths_nor_order(kind: str) -> None:
    one, two = plan(source(kind, salt="a")), plan(source(kind, salt="b"))
    for a, b in zip(one, two, strict=True):
        # Tools change their texts, and with them by a token or two their sizes.
        assert abs(a.asked_prompt_tokens - b.asked_prompt_tokens) <= (8 if kind.startswith("tool") else 0)
        assert (a.asked_completion_tokens, a.session, a.turn, a.prefix_id) == (
            b.asked_completion_tokens,
            b.session,
            b.turn,
            b.prefix_id,
        )
    grams = [
        {tuple(split_pieces(r.text())[n : n + 8]) for r in requests for n in (30, 60)}
        for requests in (one, two)
    ]
    # The frame of a tool's definition is the same for all; words are not.
    assert not {g for g in grams[0] & grams[1] if len(g) == 8 and '"' not in g}


@CALIBRATIONS
@pytest.mark.parametrize("kind", ["rag_documents", "multi_turn", "long_conversation", "trace_replay"])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_in_the_plan_s_order_an_endless_cache_gets_what_is_aimed_at(
    kind: str, calibration: Calibration, endpoint: str
) -> None:
    made = source(kind, calibration, endpoint=endpoint)
    assert made.total is not None
    aimed, ceiling = made.aimed_hit_rate(16), made.ceiling_hit_rate(range(made.total), 16)
    assert aimed is not None
    assert aimed > 0.6
    # Texts part within a word, which may end a block more.
    assert ceiling == pytest.approx(aimed, abs=0.012)


@CALIBRATIONS
@pytest.mark.parametrize("kind", KINDS)
def test_the_layout_calls_nothing_unstable_but_tools_out_of_order(
    kind: str, calibration: Calibration
) -> None:
    made = source(kind, calibration)
    (fact,) = analyse_prompts(plan(made), made.tokens_of, 16, calibration.system_template_prefix_tokens or 0)
    value: dict[str, Any] = fact.value
    assert value["diverge_token"] is None
    assert value["ceiling_if_moved"] == value["ceiling_as_sent"]
    if kind != "tool_calls_reordered":
        assert value["ceiling_if_ordered"] == value["ceiling_as_sent"]
        assert value["reordered_prompts"] is None
        return
    aimed = made.aimed_hit_rate(16)
    assert value["ceiling_as_sent"] < 0.2
    assert value["ceiling_if_ordered"] == pytest.approx(aimed, abs=0.03)
    assert value["reordered_prompts"] >= 25
    assert value["reordered_from_token"] == pytest.approx(98, abs=8)


# -- documents -------------------------------------------------------------------------------------


def test_popular_documents_are_asked_about_in_proportion() -> None:
    made = source("rag_documents", requests="4000", prompt__documents="10", prompt__document_tokens="40")
    counts = Counter(r.prefix_id for r in plan(made) if not r.warmup)
    harmonic = sum(1 / n for n in range(1, 11))
    for rank in (1, 2, 5, 10):
        assert counts[f"document-{rank - 1:05d}"] / 4000 == pytest.approx(1 / rank / harmonic, rel=0.15)
    flat = source("rag_documents", requests="4000", prompt__documents="10", prompt__zipf="0")
    shares = Counter(flat.request(n).prefix_id for n in range(3, 1003)).values()
    assert max(shares) < 2 * min(shares)


def test_a_document_is_the_same_for_each_of_its_questions() -> None:
    by_document: dict[str | None, set[str]] = {}
    requests = [r for r in plan(source("rag_documents")) if not r.warmup]
    assert len({r.messages[0]["content"] for r in requests if r.messages}) == 1
    for request in requests:
        assert request.messages is not None
        by_document.setdefault(request.prefix_id, set()).add(request.messages[1]["content"].split("\n")[0])
    assert all(len(texts) == 1 for texts in by_document.values())
    assert len({next(iter(texts)) for texts in by_document.values()}) == len(by_document)


# -- conversations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["multi_turn", "long_conversation", "tool_calls_reordered"])
def test_each_turn_carries_all_turns_before_it(kind: str) -> None:
    sessions: dict[str | None, list[PlannedRequest]] = {}
    for request in plan(source(kind)):
        if not request.warmup:
            sessions.setdefault(request.session, []).append(request)
    for turns in sessions.values():
        assert [r.turn for r in turns] == list(range(1, len(turns) + 1))
        for earlier, later in pairwise(turns):
            assert earlier.messages is not None
            assert later.messages is not None
            assert later.messages[1 : len(earlier.messages)] == earlier.messages[1:]
            roles = [m["role"] for m in later.messages]
            assert roles == ["system", *["user", "assistant"] * (len(roles) // 2 - 1), "user"]
            answer = later.messages[-2]["content"]
            assert len(answer.encode()) == earlier.asked_completion_tokens


def test_sessions_are_whole_and_cover_the_plan() -> None:
    made = source("multi_turn")
    seen: list[int] = []
    number = 0
    while turns := made.session_turns(number):
        assert all(made.session_number(index) == number for index in turns)
        seen.extend(turns)
        number += 1
    assert number == 3 + 12
    assert seen == list(range(made.total or 0))
    assert made.session_number(-1) is None
    sizes = [len(made.session_turns(n) or ()) for n in range(3, 15)]
    assert set(sizes) <= set(range(4, 9))
    assert len(set(sizes)) > 2


def test_a_number_of_requests_cuts_the_last_session_and_goes_beyond_the_round() -> None:
    made = source("multi_turn", requests="10")
    assert made.total == 13
    assert [i for n in range(20) for i in made.session_turns(n) or ()] == list(range(13))
    longer = source("multi_turn", requests="500")
    assert longer.total == 503
    assert len({longer.request(n).session for n in range(3, 503)}) > 60
    endless = source("multi_turn", duration="60s")
    assert endless.total is None
    assert len(endless.session_turns(1000) or ()) >= 4


def test_conversations_end_at_the_context() -> None:
    requests = [r for r in plan(source("long_conversation")) if not r.warmup]
    sizes = [r.asked_prompt_tokens + r.asked_completion_tokens for r in requests]
    assert max(sizes) <= 6000
    assert max(sizes) > 5000
    assert max(r.turn or 0 for r in requests) < 40


def test_tools_change_their_order_and_nothing_else() -> None:
    lists = [
        r.messages[0]["content"].splitlines()[1:] for r in plan(source("tool_calls_reordered")) if r.messages
    ]
    told = [[json.dumps(json.loads(line), sort_keys=True) for line in lines] for lines in lists]
    assert all(sorted(lines) == sorted(told[0]) and len(lines) == 8 for lines in told)
    assert len({tuple(lines) for lines in lists}) == len(lists)
    tools_only = plan(source("tool_calls_reordered", prompt__shuffle="tools"))
    lines = {line for r in tools_only if r.messages for line in r.messages[0]["content"].splitlines()[1:]}
    assert len(lines) == 8


@CALIBRATIONS
def test_tools_that_keep_their_order_cost_nothing(calibration: Calibration) -> None:
    made = source("tool_calls_reordered", calibration, prompt__shuffle="none")
    assert made.total is not None
    aimed = made.aimed_hit_rate(16)
    assert aimed == pytest.approx(made.ceiling_hit_rate(range(made.total), 16), abs=0.03)
    shuffled = source("tool_calls_reordered", calibration)
    assert shuffled.aimed_hit_rate(16) == pytest.approx(aimed, abs=0.01)


# -- traces ----------------------------------------------------------------------------------------


def replay(path: Path, calibration: Calibration = BYTES, **sets: str) -> PromptSource:
    return source("trace_replay", calibration, prompt__trace=str(path), **{"warmup": "{requests: 0}"} | sets)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def common(a: Any, b: Any) -> int:
    pairs = zip(a, b, strict=False)
    return next((n for n, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=4), st.integers(0, 63)), min_size=1, max_size=7),
    st.sampled_from([BYTES, WORDWISE]),
)
@settings(max_examples=40, deadline=None)
def test_prompts_share_exactly_the_blocks_that_their_ids_share(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[list[int], int]], calibration: Calibration
) -> None:
    """A node of a tree is a block; what fills no block is the same only in equal prompts."""
    block = 64
    rows: list[dict[str, Any]] = []
    for number, (branches, rest) in enumerate(shapes):
        ids, node = [], 7
        for branch in branches:
            node = node * 3 + branch
            ids.append(node)
        tokens = max(len(ids) * block + rest, 20)
        ids += [1_000_000 + node * 64 + rest] if tokens % block else []
        rows.append({"t": number, "in": tokens, "out": 1, "hash_ids": ids, "block": block})
    made = replay(write_rows(tmp_path_factory.mktemp("t") / "t.jsonl", rows), calibration)
    sent = list(made.token_rows(range(len(rows))))
    before = calibration.template_prefix_tokens or 0
    for i, (planned, row) in enumerate(sent):
        full = rows[i]["in"] // block
        assert planned.asked_prompt_tokens == len(row)
        wanted = max(rows[i]["in"], full * block + (calibration.template_tokens or 0))
        # A rest of one byte cannot be a word.
        assert wanted - (calibration is BYTES) <= len(row) <= wanted
        for j in range(i):
            both = min(full, rows[j]["in"] // block)
            shared = common(rows[i]["hash_ids"][:both], rows[j]["hash_ids"][:both])
            got = common(row, sent[j][1])
            if (rows[i]["hash_ids"], rows[i]["in"]) == (rows[j]["hash_ids"], rows[j]["in"]):
                assert got == len(row)
            else:
                # They part within the first words of the block that differs.
                assert before + shared * block <= got < before + shared * block + 24


def test_many_blocks_at_one_place_part_within_a_few_words(tmp_path: Path) -> None:
    rows = [{"t": n, "in": 256, "out": 1, "hash_ids": [1, 1000 + n], "block": 128} for n in range(1500)]
    made = replay(write_rows(tmp_path / "t", rows))
    ceiling = made.ceiling_hit_rate(range(1500), 16)
    # The blocks of 16 lie askew to those of the trace: by 2 tokens of the template.
    assert ceiling == pytest.approx(1499 * 128 / (1500 * 260), abs=0.002)


def test_lengths_and_times_are_those_of_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "v.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n1,374,44\n2.5,396,109\n9,5000,7\n")
    made = replay(path)
    assert made.total == 2
    assert made.trace_facts() is not None
    assert (made.trace_facts() or {})["dropped"] == {"more than 4,000 tokens": 1}
    assert [(r.asked_prompt_tokens, r.asked_completion_tokens) for r in plan(made)] == [(374, 44), (396, 109)]
    assert list(made.instants()) == [0, 1.5]
    assert made.session_turns(0) is None
    assert made.aimed_hit_rate(16) == 0
    half = replay(path, prompt__scale_len="0.5")
    assert [r.asked_prompt_tokens for r in plan(half)] == [187, 198, 2500]


def test_rows_of_a_session_stay_together_and_the_warm_up_is_the_first_rows(tmp_path: Path) -> None:
    rows = [
        {"t": n, "in": 90, "out": 2} | s
        for n, s in enumerate(({"session": "a"}, {}, {"session": "b"}, {"session": "a"}))
    ]
    path = write_rows(tmp_path / "t", rows)
    made = replay(path, warmup="{requests: 1}")
    assert [list(made.session_turns(n) or ()) for n in range(4)] == [[0, 3], [1], [2], []]
    assert [made.session_number(n) for n in range(4)] == [0, None, 1, 0]
    assert [r.warmup for r in plan(made)] == [True, False, False, False]
    assert [r.turn for r in plan(made)] == [1, None, 1, 2]
    assert made.request(-2).warmup
    assert made.request(-2).text() not in {r.text() for r in plan(made)}


def test_a_trace_with_too_few_rows_is_refused_with_what_was_left_out(tmp_path: Path) -> None:
    rows = [{"t": n, "in": 90, "out": n % 2} for n in range(10)]
    path = write_rows(tmp_path / "t", rows)
    with pytest.raises(UsageError) as caught:
        replay(path, requests="6")
    (problem,) = caught.value.problems
    assert "has 5 rows that can be sent, and the workload asks for 6" in problem.message
    assert "5 no answer tokens" in problem.message
    assert problem.fix == "write `requests: 5`"
    assert replay(path, requests="3").total == 3


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"t": 0, "in": 2_000_000, "out": 1}, "a prompt of 2,000,000 tokens"),
        ({"t": 0, "in": 1, "out": 300_000}, "an answer of 300,000 tokens"),
        ({"t": 0, "in": 0, "out": 3}, "holds no request that can be sent (1: no prompt tokens)"),
    ],
)
def test_what_no_server_can_take_is_refused(tmp_path: Path, row: dict[str, int], words: str) -> None:
    path = write_rows(tmp_path / "t", [row])
    with pytest.raises(UsageError) as caught:
        replay(path, prompt__max_request_tokens="null")
    assert words in caught.value.problems[0].message


def test_the_trace_that_is_shipped_is_made_by_its_script() -> None:
    import subprocess
    import sys

    folder = Path(__file__).parents[2] / "workloads" / "traces"
    made = subprocess.run([sys.executable, folder / "make_small.py"], capture_output=True, check=True)
    assert made.stdout == (folder / "small.jsonl").read_bytes()
