"""One run from start to end.

prepare (target, tokenizer, run directory) -> load (worker and sampler side by side) -> conclude
(prompt analysis, parquet, summary, diagnosis, STATUS last). Whatever happens after the run
directory exists, the evidence in it is kept and judged.
"""

from __future__ import annotations

from contextlib import ExitStack

from kvprobe.load.workload import load_workload
from kvprobe.run.conclude import conclude
from kvprobe.run.interrupts import Interrupted, Interrupts
from kvprobe.run.loading import run_load
from kvprobe.run.options import RunOptions, RunOutcome
from kvprobe.run.prepare import prepare
from kvprobe.run.progress import Progress


def conduct(options: RunOptions, progress: Progress) -> RunOutcome:
    """Run the workload. Raises `KvprobeError` for whatever is wrong before the first request."""
    workload = load_workload(options.workload, options.sets)
    with Interrupts() as interrupts, ExitStack() as stack:
        try:
            prepared = prepare(options, workload, progress, stack)
            interrupts.defer()
        except Interrupted as signalled:
            return RunOutcome(signalled.exit_code)
        ending = run_load(prepared, progress, interrupts)
        stack.close()  # the bundled server is stopped before its processor time is needed here
        return conclude(prepared, ending, progress)
