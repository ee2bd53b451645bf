"""Paired statistics against published examples and simulation; answers judged; files read."""

from __future__ import annotations

import json
import random
from itertools import product
from pathlib import Path

import pytest

from kvprobe.errors import UsageError
from kvprobe.quality import items
from kvprobe.quality.build import diagnose, one_pass
from kvprobe.quality.dataset import read_dataset
from kvprobe.quality.divergence import Divergence, divergence
from kvprobe.quality.given import Given
from kvprobe.quality.items import Item
from kvprobe.quality.judging import right, valid_json
from kvprobe.quality.model import Pass, Server
from kvprobe.quality.statistics import Paired, difference_interval, mcnemar_p, mean_interval, paired
from kvprobe.quality.verdict import judge


def test_mcnemar_is_the_coin() -> None:
    assert mcnemar_p(Paired(both=50, only_a=0, only_b=0, neither=2)) == 1.0
    assert mcnemar_p(Paired(both=0, only_a=5, only_b=0, neither=0)) == pytest.approx(2 / 2**5)
    assert mcnemar_p(Paired(both=0, only_a=8, only_b=2, neither=0)) == pytest.approx(2 * 56 / 2**10)
    assert mcnemar_p(Paired(both=9, only_a=4, only_b=4, neither=0)) == 1.0


def test_an_interval_of_no_discordance_is_not_empty_and_shrinks_with_n() -> None:
    few = difference_interval(Paired(both=20, only_a=0, only_b=0, neither=0))
    many = difference_interval(Paired(both=2_000, only_a=0, only_b=0, neither=0))
    assert few[0] < -0.05
    assert -0.005 < many[0] < 0 < many[1] < 0.005


def test_the_interval_covers() -> None:
    """Pairs with a true loss of 10 points: 95 % intervals hold it in about 95 of 100 draws."""
    rng, held, rounds = random.Random(4), 0, 400
    for _ in range(rounds):
        pairs = []
        for _ in range(100):
            u = rng.random()
            pairs.append((True, False) if u < 0.15 else (False, True) if u < 0.20 else (True, True))
        lo, hi = difference_interval(paired([a for a, _ in pairs], [b for _, b in pairs]))
        held += lo <= -0.10 <= hi
    assert 0.92 <= held / rounds <= 0.99


def test_a_mean_of_few_has_no_interval() -> None:
    assert mean_interval([1.0] * 7) is None
    assert mean_interval([0.0, 1.0] * 50) == pytest.approx((0.4, 0.6), abs=0.03)


@pytest.mark.parametrize(
    ("method", "answer", "given", "is_right"),
    [
        ("number", "43", "The answer is 43.", True),
        ("number", "4821", " 4 8 2 1", True),
        ("number", "43", "430", False),
        ("number", "43", "no idea", False),
        ("exact", "yes", " yes\n", True),
        ("contains", "Paris", "It is paris, I think", True),
        ("words", "oak pond rose", "Oak, pond, rose.", True),
        ("words", "oak pond rose", "oak pond", False),
        ("words", "oak pond rose", "oak rose pond", False),
        ("json", '{"name": "anna", "age": 31}', 'Sure:\n```json\n{"age": 31, "name": "Anna"}\n```', True),
        ("json", '{"name": "anna", "age": 31}', '{ " name " : " anna " , " age " : 31 }', True),
        ("json", '{"name": "anna", "age": 31}', '{"name": "anna"}', False),
        ("json", '{"name": "anna"}', "{" * 100_000, False),
    ],
)
def test_answers_are_judged(method: str, answer: str, given: str, is_right: bool) -> None:
    item = Item("1", "k", "?", answer, method, 8)  # type: ignore[arg-type]
    assert right(item, given) is is_right


def test_the_questions_are_made_again_and_can_be_answered() -> None:
    first = list(items.built_in(8, 1, 64))
    assert first == list(items.built_in(8, 1, 64))
    assert first != list(items.built_in(8, 2, 64))
    assert len({i.id for i in first}) == len(first) == 32
    assert {i.depth for i in first if i.kind == "needle"} == set(items.DEPTHS)
    for item in first:
        assert right(item, item.answer)
        if item.kind == "needle":
            assert item.answer in item.text
    assert not valid_json("no object")


def passes(a: list[bool], b: list[bool], kind: str = "needle") -> Pass:
    asked = [Item(str(n), kind, "?", "7", "number", 4) for n in range(len(a))]
    told = {True: Given(text="7"), False: Given(text="8")}
    return one_pass(asked, [told[x] for x in a], [told[x] for x in b], pressure=False)


NONE = Divergence(n=0)


def test_a_clear_loss_no_loss_and_too_few() -> None:
    assert judge([passes([True] * 40, [True] * 20 + [False] * 20)], NONE, 0.1)[0] == "loss"
    assert judge([passes([True] * 200, [True] * 199 + [False])], NONE, 0.1)[0] == "no_loss_shown"
    assert judge([passes([True] * 12, [True] * 12)], NONE, 0.1)[0] == "n_too_small"
    verdict, said = judge([passes([False] * 200, [False] * 200)], NONE, 0.1)
    assert verdict == "n_too_small"
    assert "0 of 200" in said
    # Better is no loss.
    assert judge([passes([True] * 100 + [False] * 100, [True] * 200)], NONE, 0.1)[0] == "no_loss_shown"


def test_a_loss_in_one_kind_alone_is_found_after_the_correction() -> None:
    """A needle that fails behind 400 short answers that do not."""
    asked = [Item(f"e{n}", "exact", "?", "7", "number", 4) for n in range(400)]
    asked += [Item(f"n{n}", "needle", "?", "7", "number", 4) for n in range(12)]
    good = [Given(text="7")] * 412
    bad = [Given(text="7")] * 400 + [Given(text="8")] * 12
    assert judge([one_pass(asked, good, bad, pressure=False)], NONE, 0.1)[0] == "loss"


def test_false_alarms_are_as_rare_as_stated() -> None:
    """Both sides flip 10 % of their answers by chance: a loss is claimed in at most a few of 100."""
    rng, alarms, rounds = random.Random(9), 0, 200
    for _ in range(rounds):
        a = [rng.random() > 0.1 for _ in range(100)]
        b = [rng.random() > 0.1 for _ in range(100)]
        alarms += judge([passes(a, b)], NONE, 0.1)[0] == "loss"
    assert alarms / rounds <= 0.06


def test_log_probabilities_far_apart_are_damage_without_right_answers() -> None:
    a = [Given(text="x y", tokens=["x", "y"], logprobs=[-1.0, -1.0]) for _ in range(30)]
    near = [Given(text="x y", tokens=["x", "y"], logprobs=[-1.02, -1.01]) for _ in range(30)]
    far = [Given(text="x y", tokens=["x", "y"], logprobs=[-2.0, -1.9]) for _ in range(30)]
    asked = [Item(str(n), "exact", "?", "7", "number", 4) for n in range(30)]
    noise = divergence(a, a)
    assert judge([one_pass(asked, a, far, pressure=False)], noise, 0.1)[0] == "loss"
    assert judge([one_pass(asked, a, near, pressure=False)], noise, 0.1)[0] == "n_too_small"


def test_where_texts_part() -> None:
    a = [Given(text="abc", tokens=["a", "b", "c"]), Given(text="x", tokens=["x"]), Given(error="gone")]
    b = [
        Given(text="abd", tokens=["a", "b", "d"]),
        Given(text="x", tokens=["x"]),
        Given(text="z", tokens=["z"]),
    ]
    found = divergence(a, b)
    assert (found.n, found.identical, found.first_same) == (2, 0.5, 1.0)
    assert found.matched_share == pytest.approx((2 / 3 + 1) / 2)
    assert found.logprob_difference is None


@pytest.mark.parametrize(
    ("formats", "verdict", "primary"),
    [
        (("fp16", "int8"), "loss", "kv_quant_error"),
        (("fp16", "fp16"), "loss", "unknown"),
        ((None, "int8"), "loss", "kv_quant_error"),
        (("fp16", "int8"), "no_loss_shown", "healthy_baseline"),
        (("fp16", "int8"), "n_too_small", "unknown"),
    ],
)
def test_the_cause_follows_from_verdict_and_formats(
    formats: tuple[str | None, str | None], verdict: str, primary: str
) -> None:
    sides = [Server(url="http://a", model="m", kv_dtype=f) for f in formats]
    found = diagnose(verdict, "so much", sides[0], sides[1], certain=True)  # type: ignore[arg-type]
    assert found.primary == primary
    if formats[0] is None and found.findings:
        assert found.findings[0].confidence == "suspected"


def test_a_dataset_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    rows = [
        {"prompt": "2+2?", "answer": 4, "match": "number"},
        {
            "messages": [{"role": "user", "content": "capital?"}],
            "answer": "Paris",
            "kind": "facts",
            "id": "x",
        },
    ]
    path.write_text("\ufeff" + "\n".join(map(json.dumps, rows)) + "\n\n", encoding="utf-8")
    found = read_dataset(path, None).items
    assert [(i.kind, i.answer, i.method) for i in found] == [
        ("dataset", "4", "number"),
        ("facts", "Paris", "contains"),
    ]
    assert len(read_dataset(path, 1).items) == 1


def test_all_mistakes_of_a_dataset_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    rows = [
        '{"prompt": "a"}',
        "nonsense",
        '{"answer": "x"}',
        '{"prompt": "a", "answer": "b", "match": "regex"}',
    ]
    rows += ['{"prompt": "a", "answer": "b", "max_tokens": 0}', "[1]"]
    path.write_text("\n".join(rows))
    with pytest.raises(UsageError) as caught:
        read_dataset(path, None)
    assert [p.line for p in caught.value.problems] == [1, 2, 3, 4, 5, 6]
    path.write_text("\n")
    with pytest.raises(UsageError, match="no question"):
        read_dataset(path, None)
    with pytest.raises(UsageError, match="no file"):
        read_dataset(tmp_path, None)


def test_mcnemar_against_every_outcome_of_the_coins() -> None:
    """All 2^n ways in which n fair coins fall: how many are as lopsided as what was seen?"""
    for tosses in range(1, 11):
        for heads in range(tosses + 1):
            seen = abs(tosses - 2 * heads)
            extreme = sum(
                abs(tosses - 2 * way.count(True)) >= seen for way in product((True, False), repeat=tosses)
            )
            found = mcnemar_p(Paired(both=3, only_a=heads, only_b=tosses - heads, neither=1))
            assert found == pytest.approx(extreme / 2**tosses)


@pytest.mark.parametrize("pressed", [False, True])
def test_false_alarms_over_all_kinds_and_passes(pressed: bool) -> None:
    """Without any difference, a loss is claimed in at most 5 of 100, however many tests are made."""
    rng, alarms, rounds = random.Random(21), 0, 150
    kinds = ("exact", "needle", "chain", "json")
    told = {True: Given(text="7"), False: Given(text="8")}
    asked = [Item(str(n), kinds[n % 4], "?", "7", "number", 4) for n in range(80)]
    for _ in range(rounds):
        answers = [[told[rng.random() > 0.3] for _ in asked] for _ in range(4 if pressed else 2)]
        found = [one_pass(asked, *answers[:2], pressure=False)]
        found += [one_pass(asked, *answers[2:], pressure=True)] if pressed else []
        alarms += judge(found, NONE, 0.1)[0] == "loss"
    assert alarms / rounds <= 0.09  # 5 %, and two standard errors of so many rounds


@pytest.mark.parametrize(("loss", "n", "least"), [(0.4, 50, 0.9), (0.1, 500, 0.9)])
def test_a_loss_of_known_size_is_found(loss: float, n: int, least: float) -> None:
    """And never taken for none."""
    rng, found = random.Random(5), []
    for _ in range(40):
        a = [rng.random() < 0.9 for _ in range(n)]
        b = [x and rng.random() > loss for x in a]
        found.append(judge([passes(a, b)], NONE, 0.05)[0])
    assert found.count("loss") >= least * 40
    assert "no_loss_shown" not in found


def test_a_small_loss_among_few_is_not_told_from_none() -> None:
    a = [True] * 20
    assert judge([passes(a, [True] * 19 + [False])], NONE, 0.1)[0] == "n_too_small"


def test_what_one_side_did_not_answer_is_in_no_test() -> None:
    asked = [Item(str(n), "exact", "?", "7", "number", 4) for n in range(40)]
    good, none = Given(text="7"), Given(error="gone")
    found = one_pass(asked, [good] * 40, [good] * 30 + [none] * 10, pressure=False)
    assert (found.tests[0].n, found.unanswered, found.unpaired) == (30, (0, 10), (0, 10))
    assert "not judged" in judge([found], NONE, 0.1)[1]
    nothing = one_pass(asked, [none] * 40, [none] * 40, pressure=False)
    together = nothing.tests[0]
    assert (together.difference, together.p, together.difference_ci) == (None, None, None)
    assert judge([nothing], NONE, 0.1) == ("n_too_small", "n too small: no question was answered by both")


def test_where_texts_part_the_alternatives_are_compared() -> None:
    """A damaged cache often changes the very first token: then this is all that can be compared."""
    a = Given(text="x", tokens=["x"], logprobs=[-0.2])
    listed = Given(text="y", tokens=["y"], logprobs=[-0.1], alternatives=[{"y": -0.1, "x": -3.2}])
    unlisted = Given(text="y", tokens=["y"], logprobs=[-0.1], alternatives=[{"y": -0.1, "z": -2.2}])
    alone = Given(text="y", tokens=["y"], logprobs=[-0.1])
    assert divergence([a], [listed]).logprob_difference == pytest.approx(3.0)
    assert divergence([a], [unlisted]).logprob_difference == pytest.approx(2.0)  # at least
    assert divergence([a], [alone]).logprob_difference is None


def test_an_answer_that_ends_at_once_does_not_hide_the_tokens_of_others() -> None:
    told = Given(text="x", tokens=["x"], logprobs=[-0.2])
    for empty in (Given(), Given(tokens=[], logprobs=[])):
        found = divergence([told, empty], [told, empty])
        assert (found.unit, found.logprob_tokens, found.identical) == ("tokens", 1, 1.0)


@pytest.mark.parametrize(
    "other", [{"model": "other"}, {"engine": "sglang"}, {"engine": "vllm", "engine_version": "2"}]
)
def test_what_else_differs_could_be_the_cause_as_well(other: dict[str, str]) -> None:
    """Another model, engine or version beside another format: the format is no more than suspected."""
    same = {"url": "http://a", "model": "m", "engine": "vllm", "engine_version": "1"}
    a, b = Server(**same, kv_dtype="fp16"), Server(**{**same, **other}, kv_dtype="fp8")
    (found,) = diagnose("loss", "so much", a, b, certain=True).findings
    assert found.confidence == "suspected"
    assert "differ as well" in found.why
    (found,) = diagnose("loss", "so much", a, Server(**same, kv_dtype="fp8"), certain=True).findings
    assert found.confidence == "certain"
