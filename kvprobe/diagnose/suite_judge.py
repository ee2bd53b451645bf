"""From the runs of a suite to what they mean together: live, or read back from their directories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvprobe.diagnose.causes import HEALTHY
from kvprobe.diagnose.judge import diagnose_run
from kvprobe.diagnose.model import Diagnosis, Finding, Observation, Validity
from kvprobe.diagnose.step_validity import invalid_because
from kvprobe.diagnose.suite_answer import Answer, RunView, answer
from kvprobe.evidence.suitedir import SuiteData, SuiteRun
from kvprobe.summary.build import Summary, summarise
from kvprobe.summary.sweep import Axis, Limits, Step
from kvprobe.summary.sweep_result import SweepResult, sweep_result
from kvprobe.summary.sweep_steps import step_of

Judged = tuple[Summary, Diagnosis]
_RANK = {"certain": 0, "likely": 1, "suspected": 2}


@dataclass(slots=True)
class JudgedRun:
    """One run with its numbers and their meaning."""

    run: SuiteRun
    summary: Summary
    diagnosis: Diagnosis

    @property
    def valid(self) -> bool:
        return self.diagnosis.validity is None or self.diagnosis.validity.valid

    @property
    def label(self) -> str:
        """How messages call it."""
        return self.run.part if self.run.round == 1 else f"{self.run.part} (round {self.run.round})"


@dataclass(slots=True)
class SuiteResult:
    """All of a suite: its runs, the answer of all of them, or the sweep's."""

    data: SuiteData
    runs: list[JudgedRun] = field(default_factory=list)
    answer: Answer | None = None
    sweep: SweepResult | None = None

    @property
    def name(self) -> str:
        return str(self.data.plan.get("name") or "suite")


def judge_suite(data: SuiteData, known: Mapping[str, Judged] | None = None) -> SuiteResult:
    """`known` has what was already worked out, by the name of the run directory."""
    result = SuiteResult(data)
    for run in data.runs:
        found = (known or {}).get(run.data.path.name)
        if found is None:
            summary = summarise(run.data)
            found = (summary, diagnose_run(run.data, summary))
        result.runs.append(JudgedRun(run, *found))
    if data.plan.get("kind") == "sweep":
        result.sweep = _sweep(data.plan, result.runs)
    else:
        views = [
            (j.run.part, j.run.role, RunView(j.run.round, j.run.data, j.summary, j.valid))
            for j in result.runs
        ]
        result.answer = answer(data.plan.get("answer"), views)
    return result


def _sweep(plan: dict[str, Any], runs: list[JudgedRun]) -> SweepResult:
    import msgspec

    try:
        limits = msgspec.convert(plan.get("limits"), Limits)
    except (msgspec.ValidationError, TypeError):
        limits = Limits()
    some_ok = any(judged.summary.requests.ok for judged in runs)
    steps = [_step(judged, some_ok) for judged in runs if judged.run.load is not None]
    axis: Axis = "users" if plan.get("axis") == "users" else "rate"
    return sweep_result(axis, limits, steps, constant=plan.get("steady") is True)


def _step(judged: JudgedRun, some_ok: bool) -> Step:
    because = invalid_because(judged.summary, judged.diagnosis.validity, others_succeed=some_ok)
    assert judged.run.load is not None
    return step_of(judged.run.data, judged.summary, judged.run.load, valid=because is None, because=because)


def merged_diagnosis(result: SuiteResult) -> Diagnosis:
    """One diagnosis of all parts: a finding for each cause, with its parts; statements as observations.

    In a sweep an overloaded or invalid step is a result: only what every step shows is a finding.
    """
    reasons, warnings = [], []
    for judged in result.runs:
        validity = judged.diagnosis.validity
        if validity is not None:
            reasons += [f"{judged.label}: {text}" for text in validity.reasons]
            warnings += [f"{judged.label}: {text}" for text in validity.warnings]
    findings = _findings(result)
    observations = [Observation(id=s.id, text=s.text, facts=s.facts) for s in _statements(result)]
    primary = findings[0].cause if findings else HEALTHY
    return Diagnosis(
        primary=primary,
        findings=findings,
        observations=observations,
        validity=Validity(valid=not reasons, reasons=reasons, warnings=warnings),
        facts={"parts": [judged.run.part for judged in result.runs]},
    )


def _statements(result: SuiteResult) -> list[Any]:
    if result.answer is None:
        return []
    last = [result.answer.recommendation] if result.answer.recommendation is not None else []
    return [*result.answer.statements, *last]


def _findings(result: SuiteResult) -> list[Finding]:
    by_cause: dict[str, list[tuple[JudgedRun, Finding]]] = {}
    for judged in result.runs:
        for finding in judged.diagnosis.findings:
            if finding.role != "ruled_out":
                by_cause.setdefault(finding.cause, []).append((judged, finding))
    steps = {judged.run.load for judged in result.runs}
    found: list[tuple[bool, Finding]] = []
    for seen in by_cause.values():
        if result.sweep is not None and {judged.run.load for judged, _ in seen} != steps:
            continue
        best = min((finding for _, finding in seen), key=lambda f: _RANK[f.confidence])
        labels = ", ".join(dict.fromkeys(judged.label for judged, _ in seen))
        spoils = any(not judged.valid and finding.role == "primary" for judged, finding in seen)
        found.append((spoils, _renamed(best, "secondary", f"In {labels}: {best.why}")))
    # What makes a measurement invalid stands before whatever that measurement shows.
    found.sort(key=lambda pair: (not pair[0], _RANK[pair[1].confidence]))
    findings = [finding for _, finding in found]
    return [_renamed(f, "primary" if i == 0 else "secondary", f.why) for i, f in enumerate(findings)]


def _renamed(finding: Finding, role: Any, why: str) -> Finding:
    import msgspec

    return msgspec.structs.replace(finding, role=role, why=why)
