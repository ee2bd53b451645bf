"""Two languages: the Chinese catalogue is complete, and keeps every number."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import kvprobe.report
from kvprobe.diagnose.causes import SYMPTOM_OF
from kvprobe.diagnose.model import Confidence, Role
from kvprobe.gates.judge import Verdict as GateVerdict
from kvprobe.report.words import words
from kvprobe.report.zh.catalogue import ZH
from kvprobe.report.zh.causes import ADVICE, CAUSES
from kvprobe.report.zh.sentences import SENTENCES
from kvprobe.summary.sweep import Verdict as StepVerdict

ROOM = Path(kvprobe.report.__file__).parent
HOLES = re.compile(r"\{[a-z0-9_]*\}")


def literals(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from literals(node.body)
        yield from literals(node.orelse)


def sayings() -> set[str]:
    """Every literal that the source hands to `w(...)`."""
    found = set()
    for path in ROOM.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args:
                name = node.func
                called = name.id if isinstance(name, ast.Name) else getattr(name, "attr", "")
                if called == "w":
                    found.update(literals(node.args[0]))
    return found


def test_every_word_of_the_pages_is_in_the_catalogue() -> None:
    said = sayings()
    assert len(said) > 300, "the walk finds the words"
    assert not said - set(ZH)


def test_words_that_are_data_are_in_the_catalogue() -> None:
    data = {*get_args(Role), *get_args(Confidence), *get_args(GateVerdict), *get_args(StepVerdict)}
    assert not data - set(ZH)


def test_a_translation_keeps_the_holes() -> None:
    for english, chinese in ZH.items():
        assert sorted(HOLES.findall(english)) == sorted(HOLES.findall(chinese)), english


def test_every_cause_has_its_chinese() -> None:
    assert set(CAUSES) == set(SYMPTOM_OF)
    assert set(ADVICE) <= set(CAUSES)


def test_the_sentences_of_rules_keep_their_numbers() -> None:
    for english, chinese in SENTENCES.items():
        holes = english.count("{}")
        used = re.findall(r"\{(\d*)\}", chinese)
        assert len(used) == holes, english
        assert not any(used) or sorted(map(int, used)) == list(range(holes)), english


def test_a_known_sentence_is_told_in_chinese_with_its_numbers_and_others_are_left_alone() -> None:
    w = words("zh")
    assert w.known("n too small: 120, p99 needs 299") == "样本不足：120，p99 至少需要 299"
    told = w.known(
        "KV memory was not the limit: at most 6.5 % of the pool was in use and nothing waited. "
        "This load says nothing about how the server behaves when the pool is full."
    )
    assert told is not None
    assert "6.5 %" in told
    assert w.known("something that no rule says") is None
    assert words("en").known("something that no rule says") == "something that no rule says"


def test_a_long_hostile_sentence_costs_no_time() -> None:
    """The patterns are linear enough for what a server can put into a finding."""
    assert words("zh").known("The KV pool " + "in use in of " * 4_000) is None
