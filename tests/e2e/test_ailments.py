"""Servers with a known illness, blind: the public command names the documented cause, and no cause for a
healthy server. One of each family of ailments here; all of them are `make matrix`.

A run that calls itself INVALID is repeated. On a machine that stays disturbed the answer is that the
measurement is invalid: then no other cause may be primary, and a healthy server may have none at all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from diagnosis_matrix import AILMENTS, HEALTHY, Case, Result, diagnose

from reference_server.ailments import NAMES


def told(result: Result) -> str:
    return f"{result.case.name}: {result.primary}; {[(f['cause'], f['why']) for f in result.findings]}"


@pytest.mark.parametrize("case", [c for c in AILMENTS if c.in_ci], ids=lambda c: c.name)
def test_the_documented_cause_is_primary(case: Case, tmp_path: Path) -> None:
    result = diagnose(case, tmp_path)
    assert result.honest, told(result)


@pytest.mark.parametrize("case", [c for c in HEALTHY if c.in_ci], ids=lambda c: c.name)
def test_a_healthy_server_has_no_finding(case: Case, tmp_path: Path) -> None:
    result = diagnose(case, tmp_path)
    assert result.honest, told(result)


def test_the_matrix_has_every_ailment_and_twenty_healthy_runs() -> None:
    named = {option for case in AILMENTS for option in case.serve}
    assert set(NAMES) <= named
    assert sum(case.repeats for case in HEALTHY) >= 20
    families = {case.family for case in AILMENTS if case.family != "quality"}
    assert families == {case.family for case in AILMENTS if case.in_ci}
