"""The plan: sizes, purity, salt, order and what can be reused."""

from __future__ import annotations

import time
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.load.family_order import family_order
from kvprobe.load.filler import Filler
from kvprobe.load.job import Calibration, PlannedRequest
from kvprobe.load.prompts import STAMP_EXAMPLE, PromptSource
from kvprobe.load.token_view import InfinitePrefixCache, TokenView, split_pieces, token_counter
from kvprobe.load.words import HEADS, WORDS
from kvprobe.load.workload import Workload, load_workload

KINDS = ("shared_prefix", "distinct", "mixed_lengths", "timestamp_first")

BYTES = Calibration(
    source="tokenize",
    word_tokens={piece: len(piece.encode()) for piece in PromptSource.vocabulary},
    default_word_tokens=6.0,
    template_tokens=4,
    template_prefix_tokens=2,
    system_template_tokens=6,
    system_template_prefix_tokens=2,
)
"""As the bundled server's tokenizer: a byte a token, marks around each message."""

WORDWISE = Calibration(
    source="tokenize",
    word_tokens={piece: 1 + (len(piece) > 8) for piece in PromptSource.vocabulary} | {STAMP_EXAMPLE: 20},
    template_tokens=11,
    template_prefix_tokens=5,
    system_template_tokens=17,
    system_template_prefix_tokens=5,
)
ASSUMED = Calibration(source="assumed", template_tokens=None, template_prefix_tokens=None)


def source(name: str, calibration: Calibration = BYTES, salt: str = "s", **sets: str) -> PromptSource:
    changes = [(key.replace("__", "."), text) for key, text in sets.items()]
    return PromptSource(load_workload(name, changes), calibration, salt)


def plan(made: PromptSource, count: int | None = None) -> list[PlannedRequest]:
    total = made.total if count is None else count
    assert total is not None
    return [made.request(index) for index in range(total)]


def true_bytes(request: PlannedRequest) -> int:
    """What the bundled server counts: bytes of the texts and the marks of its template."""
    if request.prompt is not None:
        return 4 + len(request.prompt.encode())
    assert request.messages is not None
    return 2 + sum(len(m["content"].encode()) + 2 for m in request.messages)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_byte_tokens_are_hit_exactly(kind: str, endpoint: str) -> None:
    made = source(kind, endpoint=endpoint)
    for request in plan(made):
        assert request.asked_prompt_tokens == true_bytes(request)
        assert (request.prompt is None) == (endpoint == "chat")


def test_sizes_are_those_of_the_workload() -> None:
    assert {r.asked_prompt_tokens for r in plan(source("shared_prefix"))} == {2048 + 48 + 6}
    assert {r.asked_prompt_tokens for r in plan(source("distinct"))} == {2100}
    lengths = [r.asked_prompt_tokens for r in plan(source("mixed_lengths"))]
    assert len(set(lengths)) > 30
    assert min(lengths) >= 64
    assert max(lengths) <= 3000
    outputs = {r.asked_completion_tokens for r in plan(source("mixed_lengths"))}
    assert outputs <= set(range(8, 49))
    assert len(outputs) > 15


@given(st.integers(1, 400), st.integers(0, 50))
@settings(max_examples=60)
def test_any_size_is_hit_exactly_or_from_below(target: int, key: int) -> None:
    for calibration in (BYTES, WORDWISE):
        text, worth = Filler(calibration).fill(key.to_bytes(4, "big"), target)
        assert worth == token_counter(calibration)(text)
        # A single byte cannot be a word with its space; every other number can be made.
        assert worth == (0 if calibration is BYTES and target == 1 else target)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 40])
def test_the_smallest_prompts_still_say_what_they_are(size: int) -> None:
    for request in plan(source("distinct", prompt__tokens=str(size)), 20):
        assert request.asked_prompt_tokens == true_bytes(request)
    for request in plan(
        source("shared_prefix", prompt__suffix_tokens=str(size), prompt__prefix_tokens=str(size)), 20
    ):
        assert request.asked_prompt_tokens == true_bytes(request)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calibration", [BYTES, WORDWISE, ASSUMED], ids=["bytes", "words", "assumed"])
def test_a_request_is_a_pure_function_of_its_number(kind: str, calibration: Calibration) -> None:
    first, second = source(kind, calibration), source(kind, calibration)
    numbers = list(range(-3, 60))
    forwards = [first.request(n) for n in numbers]
    backwards = [second.request(n) for n in reversed(numbers)][::-1]
    assert forwards == backwards


@pytest.mark.parametrize("kind", KINDS)
def test_a_salt_changes_texts_but_neither_lengths_nor_order(kind: str) -> None:
    one, two = plan(source(kind, salt="a")), plan(source(kind, salt="b"))
    for a, b in zip(one, two, strict=True):
        assert (a.asked_prompt_tokens, a.asked_completion_tokens) == (
            b.asked_prompt_tokens,
            b.asked_completion_tokens,
        )
        assert a.prefix_id == b.prefix_id
    texts_a, texts_b = ({tuple(split_pieces(r.text())[20:28]) for r in requests} for requests in (one, two))
    assert not {t for t in texts_a & texts_b if len(t) == 8}


def test_runs_with_different_salts_share_no_block() -> None:
    for kind in ("shared_prefix", "distinct"):
        for calibration in (BYTES, WORDWISE):
            cache = InfinitePrefixCache(16)
            for _, row in source(kind, calibration, salt="a").token_rows(range(124)):
                cache.admit(row)
            rows = [row for _, row in source(kind, calibration, salt="b").token_rows(range(124))]
            fresh = InfinitePrefixCache(16)
            assert sum(map(cache.admit, rows)) == sum(map(fresh.admit, rows))


def test_salt_none_repeats_the_texts() -> None:
    assert plan(source("distinct", salt="a")) != plan(source("distinct", salt="b"))
    workload = load_workload("distinct", [("salt", "none")])
    assert plan(PromptSource(workload, BYTES, "a")) == plan(PromptSource(workload, BYTES, "b"))


def test_the_seed_changes_everything() -> None:
    assert source("distinct", seed="2").request(5).text() != source("distinct").request(5).text()
    one = [r.prefix_id for r in plan(source("shared_prefix"))]
    assert one != [r.prefix_id for r in plan(source("shared_prefix", seed="2"))]


# -- kinds -----------------------------------------------------------------------------------------


def test_families_share_their_prefix_and_nothing_else() -> None:
    requests = plan(source("shared_prefix"))
    measured = [r for r in requests if not r.warmup]
    systems: dict[str | None, set[str]] = {}
    for request in measured:
        assert request.messages is not None
        assert [m["role"] for m in request.messages] == ["system", "user"]
        systems.setdefault(request.prefix_id, set()).add(request.messages[0]["content"])
    assert len(systems) == 24
    assert all(len(texts) == 1 for texts in systems.values())
    assert Counter(r.prefix_id for r in measured) == {f"family-{n:05d}": 5 for n in range(24)}
    questions = [r.messages[1]["content"] for r in measured if r.messages]
    assert len(set(questions)) == len(questions)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("calibration", [BYTES, WORDWISE], ids=["bytes", "words"])
def test_warm_up_prompts_share_nothing_with_the_rest(kind: str, calibration: Calibration) -> None:
    made = source(kind, calibration)
    requests = plan(made)
    warm = [r for r in requests if r.warmup]
    assert [r.index for r in warm] == list(range(len(warm)))
    assert len(warm) == made._workload.warmup_requests > 0
    by_time = [made.request(-1 - n) for n in range(5)]
    assert all(r.warmup for r in by_time)
    grams: Counter[tuple[str, ...]] = Counter()
    unique = {r.text(): r for r in [*warm, *by_time]}
    assert len(unique) == len(warm) + 5
    for request in unique.values():
        pieces = split_pieces(request.text())[12:]
        grams.update({tuple(pieces[n : n + 8]) for n in range(len(pieces) - 7)})
    assert max(grams.values()) == 1
    for request in requests:
        if not request.warmup:
            pieces = split_pieces(request.text())[12:]
            assert not any(tuple(pieces[n : n + 8]) in grams for n in range(len(pieces) - 7))


@pytest.mark.parametrize("calibration", [BYTES, WORDWISE], ids=["bytes", "words"])
@pytest.mark.parametrize("kind", ["distinct", "mixed_lengths"])
def test_distinct_prompts_never_share_a_block(kind: str, calibration: Calibration) -> None:
    made = source(kind, calibration, requests="1100")
    order = range(-20, 1100)
    assert made.ceiling_hit_rate(order, 16) == 0
    assert made.aimed_hit_rate(16) == 0


def test_distinct_prompts_differ_from_the_first_word_on() -> None:
    texts = [source("distinct").request(n).text() for n in range(300)]
    assert len({t.split()[0] for t in texts}) == 300
    for start in range(0, 280, 20):
        assert len({t[0] for t in texts[start : start + 20]}) >= 16
    later = [source("distinct", requests="100000").request(n).text() for n in range(0, 100_000, 1997)]
    assert len({tuple(t.split()[:3]) for t in later}) == len(later)


def test_first_words_of_distinct_prompts_part_within_a_block_of_bytes() -> None:
    made = source("distinct", requests="5000")
    heads = [made.request(n).text()[:14] for n in range(5000)]
    assert len(set(heads)) == 5000


def test_every_time_stamp_is_different_and_stands_first() -> None:
    requests = [
        *plan(source("timestamp_first")),
        *(source("timestamp_first").request(-1 - n) for n in range(9)),
    ]
    lines = [r.text().split("\n")[0] for r in requests]
    assert len(set(lines)) == len(lines)
    assert all(len(line) == len(STAMP_EXAMPLE) and line.startswith("Current time: 2026-") for line in lines)
    bodies = Counter(
        r.messages[0]["content"].split("\n", 1)[1] for r in requests if r.messages and r.prefix_id
    )
    assert len(bodies) == 24
    assert set(bodies.values()) == {2}


def test_a_run_by_time_goes_on_with_new_families() -> None:
    made = source("shared_prefix", duration="60s")
    assert made.total is None
    first = {made.request(4 + n).prefix_id for n in range(120)}
    second = {made.request(4 + 120 + n).prefix_id for n in range(120)}
    assert len(first) == len(second) == 24
    assert not first & second


def test_total_counts_the_warm_up() -> None:
    assert source("shared_prefix").total == 124
    assert source("distinct").total == 43


def test_lengths_are_independent_of_each_other() -> None:
    made = source("mixed_lengths", requests="2000")
    pairs = [(r.asked_prompt_tokens, r.asked_completion_tokens) for r in plan(made)]
    prompts, outputs = zip(*pairs, strict=True)
    mean_p, mean_o = sum(prompts) / len(pairs), sum(outputs) / len(pairs)
    assert mean_o == pytest.approx(28, abs=1)
    cov = sum((p - mean_p) * (o - mean_o) for p, o in pairs)
    var_p, var_o = (sum((x - m) ** 2 for x in xs) for xs, m in ((prompts, mean_p), (outputs, mean_o)))
    assert abs(cov / (var_p * var_o) ** 0.5) < 0.1


def test_making_a_warm_request_is_cheap() -> None:
    """A generous bound (ten times what it takes on a slow machine) against work per prefix byte."""
    made = source("shared_prefix")
    plan(made)
    began = time.process_time()
    for _ in range(10):
        plan(made)
    assert (time.process_time() - began) / 1240 < 1e-3


# -- order -----------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 12), st.integers(0, 5))
def test_orders_are_complete(families: int, per_family: int, gap: int, seed: int) -> None:
    order = family_order(families, per_family, gap, str(seed))
    assert Counter(order) == dict.fromkeys(range(families), per_family)
    assert order == family_order(families, per_family, gap, str(seed))


@given(st.integers(8, 40), st.integers(2, 8), st.integers(0, 5))
def test_the_second_request_of_a_family_keeps_its_distance(families: int, per_family: int, seed: int) -> None:
    gap = families // 3
    places: dict[int, list[int]] = {}
    for position, family in enumerate(family_order(families, per_family, gap, str(seed))):
        places.setdefault(family, []).append(position)
    assert all(p[1] - p[0] >= gap for p in places.values())


def test_cold_requests_are_spread_over_the_run() -> None:
    measured = [r.prefix_id for r in plan(source("shared_prefix")) if not r.warmup]
    firsts = sorted({name: measured.index(name) for name in set(measured)}.values())
    assert len(firsts) == 24
    quarters = Counter(first * 4 // 120 for first in firsts)
    assert all(quarters[quarter] >= 4 for quarter in range(4))


def test_the_distance_grows_with_the_users() -> None:
    for users in (2, 8, 20):
        measured = [
            r.prefix_id
            for r in plan(source("shared_prefix", arrival__closed__users=str(users)))
            if not r.warmup
        ]
        for name in set(measured):
            first = measured.index(name)
            assert measured.index(name, first + 1) - first > users


# -- what can be reused ----------------------------------------------------------------------------


def test_aimed_and_ceiling_of_a_shared_prefix() -> None:
    made = source("shared_prefix")
    expected = 96 * ((2048 + 4) // 16 * 16) / (120 * 2102)
    assert made.aimed_hit_rate(16) == pytest.approx(expected)
    assert made.aimed_hit_rate(None) == pytest.approx(expected)
    order = range(4, 124)
    assert made.ceiling_hit_rate(order, 16) == pytest.approx(expected, abs=0.001)
    assert made.ceiling_hit_rate(order, 4096) == 0
    assert made.ceiling_hit_rate([], 16) is None
    once = sorted({made.request(n).prefix_id: n for n in order}.values())
    assert made.ceiling_hit_rate(once, 16) == 0


def test_a_time_stamp_spoils_what_is_aimed_at() -> None:
    made = source("timestamp_first")
    assert made.total is not None
    aimed, ceiling = made.aimed_hit_rate(16), made.ceiling_hit_rate(range(made.total), 16)
    assert aimed is not None
    assert ceiling is not None
    assert aimed > 0.45
    assert ceiling < 0.03


def test_assumed_sizes_give_the_same_ceiling() -> None:
    exact, assumed = source("shared_prefix"), source("shared_prefix", ASSUMED)
    one, two = (s.ceiling_hit_rate(range(124), 16) for s in (exact, assumed))
    assert one == pytest.approx(two, abs=0.01)


def brute_force_ceiling(rows: list[list[int]], block: int) -> int:
    """Longest common prefix with any earlier row, in full blocks, at most all tokens but the last."""
    reused = 0
    for number, row in enumerate(rows):
        best = 0
        for earlier in rows[:number]:
            common = 0
            while common < min(len(row), len(earlier)) and row[common] == earlier[common]:
                common += 1
            best = max(best, common // block * block)
        reused += min(best, max(len(row) - 1, 0) // block * block)
    return reused


_ROWS = st.lists(st.lists(st.integers(0, 1), max_size=14), max_size=10)


@given(_ROWS, st.integers(1, 5))
def test_the_cache_agrees_with_brute_force(rows: list[list[int]], block: int) -> None:
    cache = InfinitePrefixCache(block)
    assert sum(map(cache.admit, rows)) == brute_force_ceiling(rows, block)


@given(st.lists(st.text(alphabet="ab c1.\n", max_size=30), max_size=8), st.integers(1, 4))
def test_stand_ins_for_byte_tokens_share_what_bytes_share(texts: list[str], block: int) -> None:
    view = TokenView(lambda text: len(text.encode()))
    cache = InfinitePrefixCache(block)
    rows = [list(text.encode()) for text in texts]
    got = [cache.admit(view.text(text)) for text in texts]
    assert [len(view.text(text)) for text in texts] == [len(row) for row in rows]
    assert sum(got) == brute_force_ceiling(rows, block)


@given(st.text(max_size=60))
def test_pieces_lose_nothing(text: str) -> None:
    assert "".join(split_pieces(text)) == text


def test_the_word_list() -> None:
    assert len(WORDS) == len(set(WORDS)) == 256
    assert len(HEADS) == len(set(HEADS)) == 512
    long = [w.strip() for w in WORDS if len(w.strip()) > 2]
    assert all(a[:3] != b[:3] for a, b in combinations(long, 2))


def test_workload_type_is_what_the_job_carries() -> None:
    workload = Workload.model_validate(load_workload("shared_prefix").model_dump(mode="json"))
    assert PromptSource(workload, BYTES, "s").request(9) == source("shared_prefix").request(9)
