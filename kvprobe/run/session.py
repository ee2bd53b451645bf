"""One run from start to end.

prepare (target, tokenizer, run directory) -> load (worker and sampler side by side) -> conclude
(prompt analysis, parquet, summary, diagnosis, STATUS last). Whatever happens after the first
request, the evidence is kept and judged; before it, nothing is left behind.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from contextlib import ExitStack

from kvprobe.errors import Exit, Problem, StorageError, gravest
from kvprobe.evidence.secrets import masked
from kvprobe.load.workload import load_workload
from kvprobe.run import guards
from kvprobe.run.conclude import conclude
from kvprobe.run.interrupts import Interrupted, Interrupts
from kvprobe.run.investigate import investigate
from kvprobe.run.loading import run_load
from kvprobe.run.logfile import log_to_file
from kvprobe.run.options import Given, LoadEnding, Prepared, RunOptions, RunOutcome
from kvprobe.run.prepare import prepare
from kvprobe.run.progress import Progress
from kvprobe.run.serving import follow, metrics_page

log = logging.getLogger("kvprobe.run")


def conduct(options: RunOptions, progress: Progress, given: Given | None = None) -> RunOutcome:
    """Run the workload. Raises `KvprobeError` for whatever is wrong before the first request.

    `given` is what a suite has ready for this run: the workload, and a server that goes on after it."""
    workload = load_workload(options.workload, options.sets) if given is None else given.workload
    workload = guards.with_gates(workload, options)
    if (idle := guards.idle_rules(workload)) is not None:
        progress.say(idle)
    with Interrupts() as interrupts, ExitStack() as stack:
        prepared: Prepared | None = None
        page = metrics_page(options, progress, stack)
        try:
            prepared = prepare(options, workload, progress, stack, lambda: interrupts.count > 1, given)
            interrupts.defer()
        except Interrupted as signalled:
            if prepared is not None:
                prepared.run_dir.discard()
            return RunOutcome(signalled.exit_code, problems=[_NOTHING_KEPT])
        if page is not None:
            follow(page, prepared)
        with log_to_file(prepared.run_dir.path / "log.txt"):
            ending = run_load(prepared, progress, interrupts)
            if ending.reason in ("usage", "refused") and ending.t_start_ns is None:
                return _never_begun(prepared, ending)
            if ending.reason in ("drained", "stopped") and ending.t_start_ns is None and interrupts.count:
                prepared.run_dir.discard()
                return RunOutcome(ending.exit_code, problems=[_NOTHING_KEPT])
            log.info("the load ended: %s (%s)", ending.reason, ending.detail or "as it should")
            if options.investigate and not interrupts.count:
                investigate(prepared, ending, progress)
            stack.close()  # the bundled server is stopped before its processor time is needed here
            try:
                interrupts.raise_at_second()
                outcome = conclude(prepared, ending, progress, interrupts)
            except Interrupted as signalled:
                return _cut_short(prepared, signalled)
            except Exception as error:
                log.info("the result could not be made: %s", masked(traceback.format_exc()))
                return _no_result(prepared, ending, error)
            log.info("exit code %d", outcome.exit_code)
            return outcome


_NOTHING_KEPT = Problem("interrupted", "stopped before the first request: there is nothing to keep")


def _never_begun(prepared: Prepared, ending: LoadEnding) -> RunOutcome:
    """A worker of another machine may not or cannot do its part: nothing was sent, nothing is kept."""
    prepared.run_dir.discard()
    return RunOutcome(ending.exit_code, problems=ending.problems)


def _no_result(prepared: Prepared, ending: LoadEnding, error: Exception) -> RunOutcome:
    """A defect of ours after the load: what was measured must not go unnamed with it."""
    with contextlib.suppress(StorageError):
        prepared.run_dir.write_status("partial")
    path = prepared.run_dir.path
    defect = Problem(
        "internal",
        f"internal error while the result was made: {type(error).__name__}: {masked(str(error))}",
        f"what was measured is kept; try `kvprobe report {path}`, and report the traceback in its log.txt",
        str(path),
    )
    return RunOutcome(gravest(Exit.INTERNAL, ending.exit_code), problems=[*ending.problems, defect])


def _cut_short(prepared: Prepared, signalled: Interrupted) -> RunOutcome:
    """Told twice to stop while the result was being made: the records are there, no result is."""
    with contextlib.suppress(StorageError):  # without STATUS, too, a run counts as killed
        prepared.run_dir.write_status("killed")
    path = prepared.run_dir.path
    problem = Problem(
        "interrupted",
        "stopped while the result was being written; what was measured is kept",
        f"see it with `kvprobe report {path}`",
        str(path),
    )
    return RunOutcome(signalled.exit_code, problems=[problem])
