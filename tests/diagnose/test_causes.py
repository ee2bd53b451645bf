"""The vocabulary is closed, and each cause stands under one symptom at most."""

from __future__ import annotations

from typing import get_args

import pytest

from kvprobe.diagnose.causes import CAUSES, SYMPTOM_OF
from kvprobe.diagnose.model import Symptom
from kvprobe.diagnose.rules.base import finding


def test_every_symptom_is_one_of_the_contract() -> None:
    assert {s for s in SYMPTOM_OF.values() if s is not None} == set(get_args(Symptom))
    assert len(CAUSES) == 54


def test_an_unknown_id_cannot_become_a_finding() -> None:
    with pytest.raises(KeyError):
        finding("gremlins", "certain", "", [], check_first=[], remedy=[], would_change_my_mind=[])
