"""A suite or a sweep from start to end: its runs in turn on one server, or on one for each set of options.

Each run is a whole run (`session.conduct`) into a directory of its own below the suite's folder. What
is wrong with the plan is told before anything is sent. After a run that was stopped, or whose target or
disk failed, no further one is begun; what was measured is kept and told.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from kvprobe.errors import Exit, KvprobeError, Problem, StorageError, UsageError, gravest
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.suitedir import PART, SuiteDir
from kvprobe.load.suite import Suite, kind_of_file, load_suite
from kvprobe.run.embedded import split_args
from kvprobe.run.guards import check_caps, with_gates
from kvprobe.run.interrupts import Interrupted, Interrupts
from kvprobe.run.options import Given, RunOptions, RunOutcome
from kvprobe.run.progress import Progress
from kvprobe.run.session import conduct
from kvprobe.run.settle import settle
from kvprobe.run.suite_items import Item, PartRun
from kvprobe.run.suite_server import SuiteServer
from kvprobe.run.sweep import SweepPlan

log = logging.getLogger("kvprobe.run")

_ENDS = frozenset({Exit.SIGINT, Exit.SIGTERM, Exit.STORAGE, Exit.INTERNAL, Exit.USAGE, Exit.TARGET})


@dataclass(slots=True)
class SuiteOutcome:
    """What came of it. Without a folder nothing was sent."""

    exit_code: Exit
    path: SuiteDir | None = None
    runs: list[PartRun] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    ended_early: str | None = None


def is_suite(options: RunOptions) -> bool:
    """Whether the file asks for several runs. `--set sweep=null` makes one run of a sweep's workload."""
    kind = kind_of_file(options.workload)
    if kind == "sweep":
        given = [setting[1].strip() for setting in options.sets if setting[0] == "sweep"]
        return not (given and given[-1] in ("null", "~"))
    return kind == "suite"


Next = Callable[[Sequence[PartRun]], Item | None]


def conduct_suite(options: RunOptions, progress: Progress) -> SuiteOutcome:
    """All runs of a suite or sweep. Raises `KvprobeError` for whatever is wrong before the first request."""
    if options.master:
        message = "several runs cannot be led over machines: each --worker serves one run of a master"
        fix = "run the parts one by one with --master; --processes works here"
        raise UsageError(Problem("conflict", message, fix))
    if kind_of_file(options.workload) == "suite":
        suite = load_suite(options.workload, options.sets)
        _check(options, suite)
        plan = suite_plan(options, suite)
        folder = (suite.name, suite.content_hash())
        document = _document(suite)
    else:
        sweep = SweepPlan.load(options)
        check_caps(with_gates(sweep.at(sweep.sweep.ladder.loads()[-1]), options))
        plan, folder, document = sweep.next_item, (sweep.name, sweep.content_hash()), sweep.document()
    return _Conductor(options, progress, plan).run(*folder, document)


def _check(options: RunOptions, suite: Suite) -> None:
    """What a suite cannot do with these options."""
    if options.target is not None and any(part.serve_args for part in suite.parts):
        message = f"{suite.name} starts the bundled server with options of its own for each part"
        fix = "leave out --target; or start your server with each setting and run the parts alone"
        raise UsageError(Problem("conflict", message, fix))
    for part in suite.parts:
        check_caps(with_gates(part.workload, options))


def _document(suite: Suite) -> dict[str, object]:
    """suite.json"""
    return {
        "kind": "suite",
        "name": suite.name,
        "description": suite.description,
        "hash": suite.content_hash(),
        "answer": suite.answer,
        "rounds": suite.rounds,
        "parts": [{"name": part.name, "role": part.role} for part in suite.parts],
        "runs": len(suite.order()),
    }


def suite_plan(options: RunOptions, suite: Suite) -> Next:
    """The runs of a suite in their order."""
    order = suite.order()
    shared = suite.server_args if options.serve_args is None else tuple(split_args(options.serve_args))

    compares_servers = any(part.serve_args for part in suite.parts)

    def following(runs: Sequence[PartRun]) -> Item | None:
        if len(runs) >= len(order):
            return None
        number, part = order[len(runs)]
        # Where a round turns, a part follows itself: its cache would be full, the other parts' are empty.
        turns = compares_servers and bool(runs) and runs[-1].item.part == part.name
        told = f", round {number}" if suite.rounds > 1 else ""
        return Item(
            part=part.name,
            role=part.role,
            round=number,
            load=None,
            workload=part.workload,
            server_args=shared + part.serve_args,
            fresh_server=turns or part.workload.salt == "none",
            says=f"run {len(runs) + 1} of {len(order)}: {part.name}{told}",
        )

    return following


_NOTHING_KEPT = Problem("interrupted", "stopped before the first request: there is nothing to keep")


def _fruitless(item: Item) -> Problem:
    message = f"{item.says}: not one request has ended well: no further load is tried"
    return Problem("no_success", message, "a smaller load may not help: look at how they failed")


class _Conductor:
    """Makes the runs that a plan asks for, one after the other."""

    def __init__(self, options: RunOptions, progress: Progress, plan: Next) -> None:
        self._options, self._progress, self._plan = options, progress, plan
        self._out = SuiteOutcome(Exit.OK)

    def run(self, name: str, content_hash: str, document: dict[str, object]) -> SuiteOutcome:
        home = SuiteDir.make(self._options.out, name, content_hash, document)
        self._out.path = home
        with Interrupts() as interrupts, ExitStack() as stack:
            try:
                server = SuiteServer(home.path, self._progress, lambda: interrupts.count > 1)
                stack.callback(server.stop)
                self._all(home, server)
            except Interrupted as signalled:
                if not self._out.runs:
                    self._out.problems.append(_NOTHING_KEPT)
                self._end(signalled.exit_code, "stopped by a signal between two runs")
            except KvprobeError as error:
                if not self._out.runs:
                    home.discard()
                    raise
                self._out.problems.extend(error.problems)
                self._end(error.exit_code, str(error))
            interrupts.raise_at_second()  # the server's end is waited for, unless told twice
            with contextlib.suppress(Interrupted):
                stack.close()
            if interrupts.exit_code is not None:
                self._out.exit_code = gravest(interrupts.exit_code, self._out.exit_code)
        if not any(run.outcome.data is not None for run in self._out.runs):
            home.discard()
            self._out.path = None
        return self._out

    def _all(self, home: SuiteDir, server: SuiteServer) -> None:
        while (item := self._plan(self._out.runs)) is not None:
            self._progress.say(item.says)
            if self._options.target is None:
                server.ready(item.server_args, fresh=item.fresh_server)
            if self._out.runs:  # before the first one there is nothing to wait for, and no guard has looked
                settle(self._options, server.base_url, self._progress)
            outcome = self._one(home, item, server)
            self._out.runs.append(PartRun(item, outcome))
            self._judge(item, outcome, server)
            if self._out.ended_early is not None:
                return

    def _one(self, home: SuiteDir, item: Item, server: SuiteServer) -> RunOutcome:
        said = {"suite": home.path.name, "part": item.part, "role": item.role, "round": item.round}
        fact = Fact(name=PART, source="suite.json", value={**said, "load": item.load})
        options = replace(self._options, out=home.path, workload=item.part, sets=(), junit=None)
        return conduct(
            options, self._progress, Given(workload=item.workload, server=server.server, facts=(fact,))
        )

    def _judge(self, item: Item, outcome: RunOutcome, server: SuiteServer) -> None:
        """Whether to go on after a run, and what its end means for the suite's exit code."""
        named = [replace(p, message=f"{item.says}: {p.message}") for p in outcome.problems]
        self._out.problems.extend(named)
        code = outcome.exit_code
        too_much = item.load is not None and code in (Exit.ABORTED, Exit.INVALID)
        runs = self._out.runs
        fruitless = too_much and runs[-1].failed and not any(run.succeeded for run in runs)
        # In a sweep, a load that is too much, or could not be measured, is a result and no failure.
        if not too_much or fruitless:
            self._out.exit_code = gravest(self._out.exit_code, code)
        if fruitless:
            self._out.problems.append(_fruitless(item))
        stopped = code == Exit.ABORTED and (item.load is None or server.gone)
        if code in _ENDS or stopped or fruitless:
            self._end(code, f"ended after {item.says}")

    def _end(self, code: Exit, why: str) -> None:
        log.info("the suite ends early: %s", why)
        self._out.exit_code = gravest(self._out.exit_code, code)
        self._out.ended_early = why


def keep_results(outcome: SuiteOutcome, document: dict[str, object]) -> None:
    """summary.json, report.html and STATUS; a disk that refuses means exit code 6, the result is shown."""
    from kvprobe.report.suite_page import render_suite_page

    home = outcome.path
    if home is None:
        return
    try:
        home.write_json("summary.json", document)
        home.write_text("report.html", render_suite_page(document))
        home.write_status("partial" if document.get("status") != "complete" else "complete")
    except StorageError as error:
        outcome.problems.extend(error.problems)
        outcome.exit_code = gravest(outcome.exit_code, Exit.STORAGE)
