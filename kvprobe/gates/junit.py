"""A run's thresholds as a JUnit file: one test case each, and one that says whether the run may be quoted.

Foreign text (workload names, server errors) is stripped of what XML cannot carry, and of secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import quoteattr

from kvprobe.diagnose.model import Diagnosis
from kvprobe.evidence.secrets import masked
from kvprobe.gates.judge import GateResult
from kvprobe.gates.numbers import sentence, verdict_word
from kvprobe.report.sanitize import clean
from kvprobe.summary.build import Summary

_LIMIT = 1_000


def render_junit(summary: Summary, diagnosis: Diagnosis, results: Sequence[GateResult]) -> str:
    """The XML text. A threshold that was not kept is a `failure`; an INVALID or cut run is an `error`."""
    return render_junit_of([(summary, diagnosis, results)])


def render_junit_of(runs: Iterable[tuple[Summary, Diagnosis, Sequence[GateResult]]]) -> str:
    """The XML text of several runs (a suite, a sweep): a `testsuite` each."""
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', "<testsuites>"]
    for summary, diagnosis, results in runs:
        lines += _suite(summary, diagnosis, results)
    return "\n".join([*lines, "</testsuites>"]) + "\n"


def _suite(summary: Summary, diagnosis: Diagnosis, results: Sequence[GateResult]) -> list[str]:
    cases = [_measurement(summary, diagnosis), *(_case(result) for result in results)]
    failures = sum(1 for r in results if not r.passed)
    errors = sum(1 for case in cases if "<error" in case)
    seconds = summary.window.seconds or 0.0
    name = f"kvprobe {summary.workload or 'run'}"
    head = (
        f'<testsuite name={_attribute(name)} tests="{len(cases)}" failures="{failures}" '
        f'errors="{errors}" skipped="0" time="{seconds:.3f}">'
    )
    facts = [
        ("run_dir", summary.run_dir),
        ("target", summary.target),
        ("model", summary.model),
        ("workload_hash", summary.workload_hash),
        ("status", summary.status),
        ("primary", diagnosis.primary),
    ]
    properties = [
        f"    <property name={_attribute(name)} value={_attribute(value)}/>" for name, value in facts if value
    ]
    return [
        f"  {head}",
        "   <properties>",
        *properties,
        "   </properties>",
        *cases,
        "  </testsuite>",
    ]


def _measurement(summary: Summary, diagnosis: Diagnosis) -> str:
    """Whether the numbers may be trusted at all stands beside them."""
    validity = diagnosis.validity
    reasons = list(validity.reasons) if validity is not None else []
    if summary.status != "complete":
        detail = summary.window.finish_detail or summary.window.finish_reason or "it was cut short"
        reasons.append(f"the run is {summary.status}: {detail}")
    if not reasons:
        return '   <testcase classname="kvprobe.validity" name="the measurement is valid"/>'
    message = _attribute("; ".join(reasons))
    return (
        '   <testcase classname="kvprobe.validity" name="the measurement is valid">'
        f'<error type="invalid" message={message}/></testcase>'
    )


def _case(result: GateResult) -> str:
    head = f'   <testcase classname="kvprobe.thresholds" name={_attribute(result.threshold)}'
    if result.passed:
        return f"{head}/>"
    told = f"{verdict_word(result)}: {sentence(result)}" + (f" ({result.why})" if result.why else "")
    return f"{head}><failure type={_attribute(result.verdict)} message={_attribute(told)}/></testcase>"


def _attribute(text: str) -> str:
    """Quoted and escaped; `clean` leaves no control character."""
    shown = clean(masked(text), limit=_LIMIT)
    return quoteattr("".join(c for c in shown if _in_xml(ord(c))))


def _in_xml(code: int) -> bool:
    """The characters of XML 1.0 that need no line of their own."""
    return code == 9 or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000
