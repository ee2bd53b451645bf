"""After the load: analyse the prompts that were sent, make the files final, summarise, diagnose.

STATUS is written last. A storage failure does not take the result away: it is judged from what
was spooled and printed, and the exit code says that the directory is not complete.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from kvprobe.errors import Exit, KvprobeError, Problem, StorageError, gravest
from kvprobe.evidence.environment import read_clocks
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.rundata import RunData, Status
from kvprobe.load.job import Calibration, PlannedRequest
from kvprobe.load.prompt_layout import analyse_prompts
from kvprobe.load.prompts import PromptSource
from kvprobe.prefixes.ceilings import Conditions
from kvprobe.prefixes.of_run import prefix_facts
from kvprobe.run import logs_beside
from kvprobe.run.interrupts import Interrupts
from kvprobe.run.options import LoadEnding, Prepared, RunOutcome
from kvprobe.run.progress import Progress
from kvprobe.summary.memory import memory

if TYPE_CHECKING:
    from kvprobe.diagnose.model import Diagnosis
    from kvprobe.gates.judge import GateResult
    from kvprobe.summary.build import Summary

log = logging.getLogger("kvprobe.run")

T = TypeVar("T")
_BLOCK_SIZE = re.compile(r"[1-9][0-9]{0,8}\Z")


def conclude(
    prepared: Prepared, ending: LoadEnding, progress: Progress, interrupts: Interrupts
) -> RunOutcome:
    """Never raises for the disk: a failure to store is a problem beside the result."""
    progress.say("reading the records ...")
    storage = _Storage()
    try:
        data = prepared.run_dir.load()
    except KvprobeError as error:  # somebody removed or damaged the directory meanwhile
        code = gravest(Exit.STORAGE, ending.exit_code)
        return RunOutcome(code, problems=[*ending.problems, *error.problems])
    kept = storage.get(lambda: logs_beside.keep(prepared.log_marks, prepared.run_dir.path))
    log_facts, gone = kept if kept is not None else ([], [])
    facts = facts_of_load(prepared, ending, data) + log_facts
    for fact in facts:
        data.facts.append(fact)
        storage.attempt(lambda fact=fact: prepared.run_dir.add_fact(fact))  # type: ignore[misc]
    summary, diagnosis = _judged(data, _status(ending, interrupts.count))
    storage.attempt(prepared.run_dir.finalise)
    # A signal that comes later than this finds the work done.
    signalled, status = interrupts.exit_code or Exit.OK, _status(ending, interrupts.count)
    if status != data.status:
        summary, diagnosis = _judged(data, status)
    storage.attempt(lambda: _write_results(prepared, data, summary, diagnosis))
    if storage.problems:
        data.status = "partial" if data.status == "complete" else data.status
    storage.attempt(lambda: prepared.run_dir.write_status(data.status))
    valid = diagnosis.validity is None or diagnosis.validity.valid
    stored = Exit.STORAGE if storage.problems else Exit.OK
    thresholds = _thresholds(data, summary)
    passed = Exit.OK if all(t.passed for t in thresholds) else Exit.CHECK_FAILED
    return RunOutcome(
        exit_code=gravest(signalled, ending.exit_code, stored, Exit.OK if valid else Exit.INVALID, passed),
        data=data,
        summary=summary,
        diagnosis=diagnosis,
        problems=[*ending.problems, *gone, *storage.problems],
        thresholds=thresholds,
    )


def _thresholds(data: RunData, summary: Summary) -> list[GateResult]:
    from kvprobe.gates.judge import judged

    return judged(data, summary)


def _judged(data: RunData, status: Status) -> tuple[Summary, Diagnosis]:
    from kvprobe.diagnose.judge import diagnose_run
    from kvprobe.summary.build import summarise

    data.status = status
    summary = summarise(data)
    return summary, diagnose_run(data, summary)


class _Storage:
    """Tries each write; the first refusal is kept, the rest are still tried."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def attempt(self, write: Callable[[], None]) -> None:
        self.get(write)

    def get(self, write: Callable[[], T]) -> T | None:
        """What it gives back; null where storage refused."""
        try:
            return write()
        except StorageError as error:
            log.info("storage: %s", error)
            if not self.problems:
                self.problems.extend(error.problems)
            return None


def _status(ending: LoadEnding, signals: int) -> Status:
    if ending.reason == "stopped" or signals > 1:
        return "killed"
    return "complete" if ending.reason == "planned" and signals == 0 else "partial"


def facts_of_load(prepared: Prepared, ending: LoadEnding, data: RunData) -> list[Fact]:
    """How the load ended, and what its prompts share."""
    return _ending_facts(prepared, ending) + _prompt_facts(prepared, data)


def _ending_facts(prepared: Prepared, ending: LoadEnding) -> list[Fact]:
    facts = [
        Fact(
            name="load_finished",
            source="run",
            text=ending.detail,
            value={
                "reason": ending.reason,
                "detail": ending.detail,
                "t_start_ns": ending.t_start_ns,
                "t_drain_ns": ending.t_drain_ns,
                "t_end_ns": ending.t_end_ns,
                "intended": ending.intended,
            },
        ),
        Fact(name="clock_at_end", source="run", value=read_clocks()),
        *ending.facts,
    ]
    if prepared.server is not None and ending.server_exit_code is not None:
        facts.append(Fact(name="server_exit_code", source="run", value=ending.server_exit_code))
    return facts


def _prompt_facts(prepared: Prepared, data: RunData) -> list[Fact]:
    """What the prompts that were really sent could share. The prompts are made again from their
    plan indices: they are a pure function of workload, calibration and salt."""
    source = PromptSource(prepared.workload, prepared.calibration, prepared.salt)
    sent = sorted((r for r in data.records if r.sent_ns is not None), key=lambda r: r.sent_ns or 0)
    planned = [source.request(r.plan_index) for r in sent]
    for request, record in zip(planned, sent, strict=True):
        request.warmup = record.warmup
    block_size = _block_size(data)
    lead = _template_prefix_tokens(prepared.calibration, planned)
    facts = analyse_prompts(planned, source.tokens_of, block_size, lead)
    facts += prefix_facts(
        planned,
        sent,
        source.tokens_of,
        prepared.calibration,
        lead,
        Conditions(block_tokens=block_size, pool_tokens=memory(data).kv_pool_tokens),
        prepared.workload.request.extra_body,
    )
    aimed = source.aimed_hit_rate(block_size)
    warmup = {r.plan_index for r in sent if r.warmup}
    ceiling = source.ceiling_hit_rate([r.plan_index for r in sent], block_size, warmup)
    facts.append(Fact(name="prefix_hit_rate_aimed", value=aimed, unit="ratio", source="workload"))
    facts.append(Fact(name="prefix_hit_rate_ceiling", value=ceiling, unit="ratio", source="prompts sent"))
    return facts


def _template_prefix_tokens(calibration: Calibration, planned: Sequence[PlannedRequest]) -> int:
    """Tokens before the first text: a chat with a system message begins otherwise than one without."""
    system = any(r.messages is not None and r.messages[0]["role"] == "system" for r in planned)
    known = calibration.system_template_prefix_tokens if system else calibration.template_prefix_tokens
    return known or 0


def _block_size(data: RunData) -> int | None:
    for fact in data.facts:
        if fact.name == "cache_config" and isinstance(fact.value, dict):
            text = str(fact.value.get("block_size", ""))
            return int(text) if _BLOCK_SIZE.match(text) else None
    return None


def _write_results(prepared: Prepared, data: RunData, summary: Summary, diagnosis: Diagnosis) -> None:
    from kvprobe.report.document import diagnosis_document, run_document
    from kvprobe.report.html import render_html
    from kvprobe.report.terminal import banner

    document = run_document(data, summary, diagnosis)
    # The numbers first: they must not fall with a page that could not be drawn.
    prepared.run_dir.write_json("summary.json", document)
    prepared.run_dir.write_json("diagnosis.json", diagnosis_document(diagnosis))
    page = render_html(summary, diagnosis, banner(data), data=data, document=document)
    prepared.run_dir.write_text("report.html", page)
