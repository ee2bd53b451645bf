"""A diagnosis as Markdown, for a ticket.

Log lines stand in code fences that are longer than any run of backticks in them; all other foreign words
are escaped: no link, image, mention, heading or HTML can come out of a log.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvprobe.diagnose.model import Diagnosis, Evidence, Finding
from kvprobe.report.cause_words import CAUSE_WORDS, SYMPTOM_WORDS, facts_line, place
from kvprobe.report.diagnosis_text import once, read_words
from kvprobe.report.markdown_text import code, fence
from kvprobe.report.markdown_text import markdown as words
from kvprobe.report.sanitize import clean

LINE_CHARS = 1_000


def markdown_of(diagnosis: Diagnosis) -> str:
    """The whole answer: the same content as the terminal page."""
    findings = diagnosis.findings
    blocks = [_head(diagnosis)]
    if findings and findings[0].role == "primary":
        blocks.append(_primary(findings[0]))
    blocks += [_secondary(f) for f in findings if f.role == "secondary"]
    ruled_out = [f for f in findings if f.role == "ruled_out"]
    if ruled_out:
        blocks.append(
            "\n".join(["### Ruled out", "", *(f"- {code(f.cause)}: {words(f.why)}" for f in ruled_out)])
        )
    if diagnosis.observations:
        blocks.append("\n".join(["### Notes", "", *(f"- {words(o.text)}" for o in diagnosis.observations)]))
    if told := read_words(diagnosis):
        blocks.append("\n".join(["### Read", "", *(f"- {words(line)}" for line in told)]))
    return "\n\n".join(blocks) + "\n"


def _head(diagnosis: Diagnosis) -> str:
    meaning = CAUSE_WORDS.get(diagnosis.primary, diagnosis.primary)
    engine, version = diagnosis.read.get("engine"), diagnosis.read.get("engine_version")
    who = f"\n\nEngine: {words(engine)} {words(version or '')}".rstrip() if engine else ""
    return f"## {words(meaning[:1].upper() + meaning[1:])}\n\nCause: {code(diagnosis.primary)}{who}"


def _primary(finding: Finding) -> str:
    parts = [f"**{finding.confidence.capitalize()}.** {words(finding.why)}"]
    if finding.symptom is not None:
        parts.append(f"Symptom: {words(SYMPTOM_WORDS[finding.symptom])}.")
    proof = "\n\n".join(_evidence(e) for e in once(finding.evidence))
    parts.append(f"### Proof\n\n{proof}" if proof else "")
    parts.append(_list("Look first", finding.check_first))
    parts.append(_list("Remedies, in order", finding.remedy))
    parts.append(_list("What would refute this", finding.would_change_my_mind, ordered=False))
    return "\n\n".join(part for part in parts if part)


def _secondary(finding: Finding) -> str:
    meaning = CAUSE_WORDS.get(finding.cause, finding.cause)
    parts = [
        f"### Also: {words(meaning)}",
        f"{code(finding.cause)}, {finding.confidence}. {words(finding.why)}",
    ]
    parts += [_evidence(e) for e in once(finding.evidence)[:2]]
    parts.append(_list("Remedies", finding.remedy[:2], level=4))
    return "\n\n".join(part for part in parts if part)


def _list(title: str, steps: Sequence[str], *, ordered: bool = True, level: int = 3) -> str:
    if not steps:
        return ""
    lines = [f"{f'{i}.' if ordered else '-'} {words(step)}" for i, step in enumerate(steps, 1)]
    return "\n".join([f"{'#' * level} {title}", "", *lines])


def _evidence(piece: Evidence) -> str:
    text = clean(piece.text, limit=LINE_CHARS)
    numbers = facts_line(piece.facts)
    fenced = fence(text)
    return f"{code(place(piece))}\n\n{fenced}" + (f"\n\n{words(numbers)}" if numbers else "")
