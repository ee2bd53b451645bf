"""From the rules to one answer.

Validity outranks every cause: of an invalid run only what does not rest on the client's clock may be
said, and never as the primary finding. The one exception is a run that is invalid for nothing else than
that the target failed every request: then what made it fail them is the answer. Exactly one finding is
primary; when nothing is wrong there is none, and the answer is `healthy_baseline`. Failures that no rule
explains are `unknown`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvprobe.diagnose.causes import HEALTHY, UNKNOWN
from kvprobe.diagnose.experiments import separating, with_experiments
from kvprobe.diagnose.issues import Issue
from kvprobe.diagnose.joint import of_log, ordered, without_excluded
from kvprobe.diagnose.log_answer import facts_of
from kvprobe.diagnose.model import Diagnosis, Evidence, Finding, Validity
from kvprobe.diagnose.rules import stream
from kvprobe.diagnose.rules.base import Candidate, Outcome, Rule, finding
from kvprobe.diagnose.rules.cancelled import cancelled
from kvprobe.diagnose.rules.client import client_bound
from kvprobe.diagnose.rules.context_words import context_limit
from kvprobe.diagnose.rules.failures import of_target, unexplained_failures
from kvprobe.diagnose.rules.fragmented import fragmented
from kvprobe.diagnose.rules.host_cpu import host_cpu_bound
from kvprobe.diagnose.rules.neighbour import neighbour
from kvprobe.diagnose.rules.pool import kv_pool
from kvprobe.diagnose.rules.pool_words import pool_words
from kvprobe.diagnose.rules.prediction_off import prediction_off
from kvprobe.diagnose.rules.prefill import prefill_twice
from kvprobe.diagnose.rules.prefix import prefix_row
from kvprobe.diagnose.rules.prefix_effect import prefix_effect
from kvprobe.diagnose.rules.queue_limit import queue_limit
from kvprobe.diagnose.rules.reserved import reserved_unused
from kvprobe.diagnose.rules.server_host import server_host
from kvprobe.diagnose.run_logs import log_view
from kvprobe.diagnose.validity import check
from kvprobe.diagnose.view import View
from kvprobe.evidence.rundata import RunData
from kvprobe.summary.build import Summary

RULES: tuple[Rule, ...] = (
    prefix_row,
    prefix_effect,
    reserved_unused,
    fragmented,
    cancelled,
    queue_limit,
    kv_pool,
    pool_words,
    context_limit,
    prefill_twice,
    server_host,
    host_cpu_bound,
    neighbour,
    prediction_off,
    stream.stream_defect,
)


def diagnose_run(run: RunData, summary: Summary, logs: Sequence[str] = ()) -> Diagnosis:
    """What the evidence of this run means, the server's log beside it included; `logs` are further ones."""
    view = View(run, summary, log_view(run, logs))
    validity, issues = check(view)
    outcome = _gather(view)
    findings = _rank(view, validity, issues, outcome)
    return Diagnosis(
        primary=findings[0].cause if findings else HEALTHY,
        findings=findings,
        observations=outcome.observations if validity.valid else [],
        validity=validity,
        facts=_facts(view),
        read=_read(view),
    )


def _gather(view: View) -> Outcome:
    total = Outcome()
    for rule in RULES:
        outcome = rule(view)
        total.candidates += outcome.candidates
        total.observations += outcome.observations
    total.candidates += of_log(view.log)
    return total


def _rank(view: View, validity: Validity, issues: list[Issue], outcome: Outcome) -> list[Finding]:
    """Findings, the primary one first, with their roles set; what is ruled out stands behind."""
    kept, ruled_out = without_excluded(outcome.candidates)
    weighed = with_experiments(view, kept)
    kept = [c for c in weighed if c.finding.role != "ruled_out"]
    ruled_out += [c.finding for c in weighed if c.finding.role == "ruled_out"]
    candidates = ordered(kept)
    explained = frozenset(kind for c in candidates for kind in c.explains)
    failing = unexplained_failures(view, explained)
    rest, named_first = ([failing] if failing else []), [c.finding for c in candidates]
    if not validity.valid:
        named = [c.finding for c in candidates if c.timing_free and c.finding.cause != UNKNOWN]
        if _why_all_failed(view, issues, candidates):
            findings = named
        else:
            first = client_bound(issues) or _no_cause_named(issues, failing)
            findings = [first, *named, *(f for f in rest if first.cause != UNKNOWN)]
    else:
        # What failed comes before other things that nobody can explain.
        findings = [*(f for f in named_first if f.cause != UNKNOWN), *rest]
        findings += [f for f in named_first if f.cause == UNKNOWN]
    roles = ["primary"] + ["secondary"] * len(findings)
    placed = [msgspec.structs.replace(f, role=role) for f, role in zip(findings, roles, strict=False)]
    if not placed:
        return []
    causes = {f.cause for f in placed}
    return [*_with_separation(placed), *(f for f in ruled_out if f.cause not in causes)]


def _why_all_failed(view: View, issues: list[Issue], candidates: Sequence[Candidate]) -> bool:
    """The measurement is invalid only because the target failed every request that was sent, and the first
    candidate is why it failed all of them."""
    codes = {i.code for i in issues if i.level == "invalid"}
    if codes != {"no_success"} or not of_target(view) or not candidates:
        return False
    first = candidates[0]
    return first.timing_free and first.finding.cause != UNKNOWN and not of_target(view, first.explains)


def _with_separation(findings: list[Finding]) -> list[Finding]:
    """Where several causes remain that are not certain, the experiment that would separate them."""
    first, *others = findings
    open_ones = [f.cause for f in others if f.confidence != "certain" and f.cause != UNKNOWN]
    told = separating(first.cause, open_ones) if first.confidence != "certain" else None
    if told is None:
        return findings
    return [msgspec.structs.replace(first, check_first=[*first.check_first, told]), *others]


def _no_cause_named(issues: list[Issue], failing: Finding | None) -> Finding:
    """The measurement is invalid for a reason that lies outside the client."""
    reasons = [i for i in issues if i.level == "invalid"]
    told = [Evidence(source="validity", text=i.text, facts=i.facts) for i in reasons]
    return finding(
        UNKNOWN,
        "suspected",
        f"No cause is named, because the measurement is invalid: {reasons[0].text}.",
        [*told, *(failing.evidence if failing else [])],
        check_first=failing.check_first if failing else ["the reason why the measurement is invalid"],
        remedy=failing.remedy if failing else ["mend that, and run again"],
        would_change_my_mind=["a valid run"],
    )


def _facts(view: View) -> dict[str, Any]:
    """What the engine said about itself."""
    return {
        "engine": {"name": view.summary.engine, "version": view.summary.engine_version},
        "cache_config": view.config or None,
        "log": facts_of(view.log) if view.log is not None else None,
        # What the prompts share, and where reuse goes (kvprobe.prefixes.of_run); null for older runs.
        "prefix_analysis": view.fact("prefix_analysis"),
        "not_exported": sorted({str(f.value) for f in view.facts("metric_not_exported")}),
    }


def _read(view: View) -> dict[str, Any]:
    run = view.run
    return {
        "bytes": view.log.read.get("bytes") if view.log is not None else None,
        "lines": view.log.read.get("lines") if view.log is not None else None,
        "engine": view.summary.engine,
        "engine_version": view.summary.engine_version,
        "skipped": run.bad_lines,
        "requests": len(run.records),
        "samples": len(run.samples),
        "facts": len(run.facts),
    }
