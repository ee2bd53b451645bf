"""Where prompts part: told from texts alone."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.load import prompt_layout
from kvprobe.load.job import Calibration, PlannedRequest
from kvprobe.load.prompt_layout import analyse_prompts
from kvprobe.load.prompts import PromptSource
from kvprobe.load.reuse_distance import ReuseDistances
from kvprobe.load.token_view import split_pieces
from kvprobe.load.words import WORDS
from kvprobe.load.workload import load_workload
from tests.load.test_prompts import ASSUMED, BYTES, WORDWISE, brute_force_ceiling

CALIBRATIONS = pytest.mark.parametrize(
    "calibration", [BYTES, WORDWISE, ASSUMED], ids=["bytes", "words", "assumed"]
)


def by_bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))


def by_pieces(text: str) -> int:
    return len(split_pieces(text))


def words(seed: object, count: int) -> str:
    return "".join(random.Random(repr(seed)).choices(WORDS, k=count)).strip()


def requests_of(texts: list[str], tokens_of: Any = by_bytes) -> list[PlannedRequest]:
    return [
        PlannedRequest(
            index=n, kind="x", prompt=text, asked_prompt_tokens=tokens_of(text), asked_completion_tokens=1
        )
        for n, text in enumerate(texts)
    ]


def layout(
    texts: list[str], block: int | None = 16, tokens_of: Any = by_bytes, template: int = 0
) -> dict[str, Any]:
    facts = analyse_prompts(requests_of(texts, tokens_of), tokens_of, block, template)
    assert [f.name for f in facts] == ["prompt_layout"]
    value: dict[str, Any] = facts[0].value
    return value


def of_workload(name: str, calibration: Calibration) -> dict[str, Any]:
    source = PromptSource(load_workload(name), calibration, "salt")
    planned = [source.request(n) for n in range(source.total or 0)]
    facts = analyse_prompts(planned, source.tokens_of, 16, calibration.template_prefix_tokens or 0)
    value: dict[str, Any] = facts[0].value
    return value


# -- the bundled workloads, never told which is which ----------------------------------------------


@CALIBRATIONS
def test_a_shared_prefix_is_stable(calibration: Calibration) -> None:
    value = of_workload("shared_prefix", calibration)
    assert value["diverge_token"] is None
    assert value["ceiling_as_sent"] == pytest.approx(0.778, abs=0.01)
    assert value["ceiling_if_moved"] == value["ceiling_as_sent"]
    assert value["shared_prefix_tokens"] == pytest.approx(2050, abs=30)
    assert value["groups"] == 24


@CALIBRATIONS
@pytest.mark.parametrize("name", ["distinct", "mixed_lengths"])
def test_distinct_prompts_have_neither_reuse_nor_instability(name: str, calibration: Calibration) -> None:
    value = of_workload(name, calibration)
    assert value["diverge_token"] is None
    assert value["ceiling_as_sent"] == value["ceiling_if_moved"] == 0
    assert value["groups"] == 0
    assert value["shared_prefix_tokens"] is None


@CALIBRATIONS
def test_a_changing_first_line_is_found_and_shown(calibration: Calibration) -> None:
    value = of_workload("timestamp_first", calibration)
    assert value["ceiling_as_sent"] < 0.03
    assert value["ceiling_if_moved"] > 0.4
    assert value["diverge_token"] < 50
    assert value["changing_tokens"] < 40
    assert value["shared_body_tokens"] == pytest.approx(2050, abs=30)
    one, other = value["diverge_texts"]
    assert "Current time: 2026" in value["diverge_before"]
    assert one[0] != other[0], "the texts start at the first character that differs"


# -- layouts of other people's prompts ---------------------------------------------------------------


def test_a_changing_line_in_the_middle() -> None:
    head, tail = words("head", 150), words("tail", 250)
    texts = [f"{head}\nrequest {n * 7919} at {n}\n{tail} {words(('q', n), 12)}" for n in range(1, 30)]
    value = layout(texts)
    index = len(head) + len("\nrequest ")
    assert value["diverge_token"] == pytest.approx(index, abs=5)
    assert value["shared_body_tokens"] == pytest.approx(len(tail), abs=10)
    before, after = value["ceiling_as_sent"], value["ceiling_if_moved"]
    assert before == pytest.approx(len(head) / len(texts[0]), abs=0.05)
    assert after == pytest.approx((len(head) + len(tail)) / len(texts[0]), abs=0.06)


def test_an_id_at_the_very_start() -> None:
    body = words("body", 300)
    texts = [f"{random.Random(n).getrandbits(64):016x}: {body} {words(('q', n), 10)}" for n in range(20)]
    value = layout(texts, template=5)
    assert value["ceiling_as_sent"] < 0.02
    assert value["ceiling_if_moved"] > 0.8
    assert value["diverge_token"] in range(5, 8)
    assert value["changing_tokens"] in range(14, 22)


def test_two_changing_lines_close_together_are_one_segment() -> None:
    body = words("body", 300)
    texts = [f"id {n * 37}\ntime 10:{n:02d}\n{body} {words(('q', n), 10)}" for n in range(10, 40)]
    assert layout(texts)["ceiling_if_moved"] > 0.8


def test_several_bodies_each_spoilt() -> None:
    bodies = [words(("body", f), 200) for f in range(6)]
    texts = [f"now 12:{n:02d}:{n * 7 % 60:02d}\n{bodies[n % 6]} {words(('q', n), 8)}" for n in range(60)]
    value = layout(texts)
    assert value["ceiling_as_sent"] < 0.05
    assert value["ceiling_if_moved"] > 0.75


def test_ordinary_questions_are_not_unstable() -> None:
    system = words("system", 300)
    texts = [f"{system}\n{words(('q', n), 5 + n)}" for n in range(40)]
    value = layout(texts)
    assert value["diverge_token"] is None
    assert value["groups"] == 1


def test_questions_with_a_short_common_ending_are_not_unstable() -> None:
    system = words("system", 300)
    texts = [f"{system}\n{words(('q', n), 20)}\nAnswer in one short sentence, please." for n in range(40)]
    assert layout(texts)["diverge_token"] is None


def test_many_questions_on_several_documents_are_not_unstable() -> None:
    system = words("system", 60)
    documents = [words(("doc", d), 200) for d in range(8)]
    texts = [f"{system}\n{documents[n * 5 % 8]}\n{words(('q', n), 12)}" for n in range(64)]
    value = layout(texts)
    assert value["diverge_token"] is None
    assert value["ceiling_as_sent"] > 0.7


def test_growing_conversations_are_not_unstable() -> None:
    texts = []
    for session in range(8):
        history = words("system", 50)
        for turn in range(6):
            history += f"\n{words((session, turn), 40)}"
            texts.append(history)
    value = layout(texts)
    assert value["diverge_token"] is None
    assert value["ceiling_as_sent"] > 0.5


def test_equal_prompts_are_not_unstable() -> None:
    value = layout([words("same", 200)] * 10)
    assert value["diverge_token"] is None
    assert value["ceiling_as_sent"] > 0.85


def test_a_stamp_at_the_end_is_where_it_should_be() -> None:
    body = words("body", 300)
    assert layout([f"{body}\nnow 12:{n:02d}" for n in range(30)])["diverge_token"] is None


def test_scripts_without_spaces() -> None:
    body = "".join(chr(0x4E00 + random.Random("zh").randrange(3000) + n % 50) for n in range(600))
    texts = [f"时间{n:04d}。{body}问题{words(n, 5)}" for n in range(20)]
    value = layout(texts, tokens_of=by_pieces)
    assert value["ceiling_as_sent"] < 0.05
    assert value["ceiling_if_moved"] > 0.8


# -- bounds ------------------------------------------------------------------------------------------


def test_no_prompts_no_fact() -> None:
    assert analyse_prompts([], by_bytes, 16, 0) == []


def test_empty_and_tiny_prompts() -> None:
    value = layout(["", "", "a", "a", "a b", "\ud800"], block=1)
    assert value["diverge_token"] is None
    assert 0 <= value["ceiling_as_sent"] <= 1


def test_the_block_size_is_assumed_when_it_is_not_known() -> None:
    value = layout([words("same", 100)] * 3, block=None)
    assert (value["block_size"], value["block_size_assumed"]) == (16, True)


def test_caps_are_kept_and_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_layout, "MAX_PROMPTS", 5)
    value = layout([words(n, 30) for n in range(9)])
    assert (value["prompts"], value["analysed"], value["max_prompts"]) == (9, 5, 5)
    monkeypatch.setattr(prompt_layout, "MAX_BYTES", 300)
    assert layout([words(n, 30) for n in range(9)])["analysed"] < 3


def test_hostile_repetition_stays_linear() -> None:
    """Doubling the input may not make it four times slower (with room for a busy machine)."""

    def cost(size: int) -> float:
        texts = [f"{n} " + "ab " * size + f"{n}" for n in range(20)]
        began = time.process_time()
        layout(texts)
        return time.process_time() - began

    cost(1_000)
    assert cost(16_000) < 8 * 3.5 * max(cost(2_000), 0.02)


@given(
    st.lists(
        st.lists(st.sampled_from(["aa", " bb", " c", "\n", "1", " aa bb c 1"]), max_size=12).map("".join),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 6),
    st.integers(0, 3),
)
@settings(max_examples=150, deadline=None)
def test_the_ceiling_as_sent_agrees_with_brute_force(texts: list[str], block: int, template: int) -> None:
    rows = [[-1] * template + list(text.encode()) for text in texts]
    planned = requests_of(texts)
    for request, row in zip(planned, rows, strict=True):
        request.asked_prompt_tokens = len(row)
    value = analyse_prompts(planned, by_bytes, block, template)[0].value
    total = sum(map(len, rows))
    expected = brute_force_ceiling(rows, block) / total if total else 0
    assert value["ceiling_as_sent"] == pytest.approx(expected)


@given(st.integers(0, 10_000), st.integers(0, 2), st.integers(12, 40))
@settings(max_examples=15, deadline=None)
def test_moving_never_loses_and_gains_what_brute_force_says(seed: int, where: int, count: int) -> None:
    """A changing segment at a random place in a body: moved by hand, the oracle gives the gain."""
    body = words(("body", seed), 240).split(" ")
    at = where * 80
    heads, tails = " ".join(body[:at]), " ".join(body[at:])
    stamps = [f"<{random.Random(repr((seed, n))).getrandbits(40):010x}>" for n in range(count)]
    questions = [words(("q", seed, n), 6) for n in range(count)]
    texts = [f"{heads} {stamp} {tails} {q}" for stamp, q in zip(stamps, questions, strict=True)]
    by_hand = [f"{heads}  {tails} {q} {stamp}" for stamp, q in zip(stamps, questions, strict=True)]
    value = layout(texts)
    total = sum(len(text) for text in texts)
    oracle = brute_force_ceiling([list(text.encode()) for text in by_hand], 16) / total
    assert value["ceiling_if_moved"] == pytest.approx(oracle, abs=0.03)
    assert value["diverge_token"] is not None


# -- how far apart reuses are ------------------------------------------------------------------------


def lru_hits(rows: list[list[int]], block: int, capacity_blocks: int) -> int:
    """Blocks served by a cache that drops the block unused for longest; slow and plain."""
    cache: list[tuple[int, ...]] = []
    hits = 0
    for row in rows:
        hitting, usable = True, (len(row) - 1) // block
        for index in range(len(row) // block):
            key = tuple(row[: (index + 1) * block])
            hitting = hitting and key in cache
            hits += hitting and index < usable
        for index in range(len(row) // block):
            key = tuple(row[: (index + 1) * block])
            if key in cache:
                cache.remove(key)
            cache.append(key)
        del cache[: max(len(cache) - capacity_blocks, 0)]
    return hits


@pytest.mark.parametrize("seed", range(4))
def test_reuse_distances_say_what_a_cache_of_any_size_would_serve(seed: int) -> None:
    rng = random.Random(seed)
    heads = [[rng.randrange(10**6) for _ in range(rng.choice([8, 12, 20]))] for _ in range(6)]
    rows = [rng.choice(heads) + [rng.randrange(10**6) for _ in range(5)] for _ in range(20)]
    distances = ReuseDistances(4, len(rows))
    for row in rows:
        distances.admit(row, counted=True)
    found = distances.quantiles()
    assert found is not None
    assert found == sorted(found)
    everything = lru_hits(rows, 4, 10**6)
    for capacity in (10, 20, 40, 80):
        served = sum(1 for d in found if d < 4 * capacity) / len(found)
        # Blocks of one prompt enter the cache together: a prompt's own length is the only difference.
        low = lru_hits(rows, 4, max(capacity - 7, 0)) / everything
        high = lru_hits(rows, 4, capacity + 7) / everything
        assert low - 0.06 <= served <= high + 0.06


def test_no_reuse_has_no_distance() -> None:
    assert layout([words(i, 40) for i in range(5)])["reuse_distance_tokens"] is None
    again = layout([words(0, 40), words(0, 40)])["reuse_distance_tokens"]
    assert set(again) == {0}
    between = layout([words(0, 40), words(1, 40), words(0, 40)])["reuse_distance_tokens"]
    assert set(between) == {16 * (len(words(1, 40)) // 16)}
