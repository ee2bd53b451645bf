"""The plan of a sweep: up the ladder until a load is too much, then between that and the last good one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvprobe.errors import Problem, UsageError
from kvprobe.load.sweep import Sweep
from kvprobe.load.workload import Workload, load_workload
from kvprobe.run.embedded import split_args
from kvprobe.run.options import RunOptions
from kvprobe.run.suite_items import Item, PartRun
from kvprobe.summary.sweep import Limits, Step, judge, load_text, next_load

RETRIES = 1
"""Further runs of a load whose measurement was invalid."""


@dataclass(frozen=True)
class SweepPlan:
    """A workload that is run at one load after the other."""

    workload: Workload
    sweep: Sweep
    server_args: tuple[str, ...]

    @classmethod
    def load(cls, options: RunOptions) -> SweepPlan:
        """Raises UsageError for the file, and for options that a sweep has no use for."""
        for setting in options.sets:
            option = getattr(setting, "option", None)
            if option in ("--users", "--rate", "KVPROBE_USERS", "KVPROBE_RATE"):
                message = f"{option} sets one load, and this workload sweeps over several"
                fix = "use --set sweep.rate=[2,4,8], or --set sweep=null for one load"
                raise UsageError(Problem("conflict", message, fix))
        workload = load_workload(options.workload, options.sets)
        assert workload.sweep is not None
        args = workload.server_args if options.serve_args is None else tuple(split_args(options.serve_args))
        return cls(workload, workload.sweep, args)

    @property
    def name(self) -> str:
        return self.workload.name

    def content_hash(self) -> str:
        """Of what is sent at any load, and of the loads."""
        text = json.dumps([self.workload.content_hash(), self.sweep.model_dump(mode="json")], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def document(self) -> dict[str, Any]:
        """suite.json"""
        return {
            "kind": "sweep",
            "name": self.name,
            "description": self.workload.description,
            "hash": self.content_hash(),
            "answer": None,
            "axis": self.sweep.axis,
            "ladder": self.sweep.ladder.loads(),
            "limits": limits_document(self.sweep),
            "steady": _is_constant(self.workload),
        }

    def next_item(self, runs: Sequence[PartRun]) -> Item | None:
        """The run to make next; null when the search is over."""
        if len(runs) >= self.sweep.max_steps:
            return None
        load = self._again(runs)
        if load is None:
            load = next_load(self._steps(runs, _some_ok(runs)), self.sweep.ladder.loads(), self.sweep.refine)
        if load is None:
            return None
        unit = "req/s" if self.sweep.axis == "rate" else "users"
        number = sum(1 for run in runs if run.item.load == load) + 1
        again = f", run {number}" if number > 1 else ""
        return Item(
            part=f"{self.name[:40]}-{_folder_text(load)}",
            role=None,
            round=number,
            load=load,
            workload=self.at(load),
            server_args=self.server_args,
            fresh_server=self.workload.salt == "none",
            says=f"step {len(runs) + 1}: {load_text(load)} {unit}{again}",
        )

    def _again(self, runs: Sequence[PartRun]) -> float | None:
        """The last load once more: for `repeat`, or because its measurement was invalid."""
        if not runs or runs[-1].item.load is None:
            return None
        load = runs[-1].item.load
        here = [run for run in runs if run.item.load == load]
        wanted = self.sweep.repeat
        if not any(step.valid for step in self._steps(here, _some_ok(runs))):
            wanted += RETRIES
        return load if len(here) < wanted else None

    def _steps(self, runs: Sequence[PartRun], some_ok: bool) -> list[Step]:
        steps = [step_of_run(run, some_ok) for run in runs]
        limits = limits_of(limits_document(self.sweep))
        for step in steps:
            step.verdict, step.why = judge(step, self.sweep.axis, limits)
        return steps

    def at(self, load: float) -> Workload:
        """The workload of one step."""
        arrival = self.workload.arrival
        if arrival.open is not None:
            changed: dict[str, Any] = {"open": arrival.open.model_copy(update={"rate": load})}
        else:
            assert arrival.closed is not None
            changed = {"closed": arrival.closed.model_copy(update={"users": int(load)})}
        name = f"{self.name[:40]}-{_folder_text(load)}"
        update = {"name": name, "sweep": None, "arrival": arrival.model_copy(update=changed)}
        return self.workload.model_copy(update=update)


def _folder_text(load: float) -> str:
    """A load in a folder's name: 11.3 is 11_3."""
    return f"{load:g}".replace(".", "_").replace("+", "")


def _is_constant(workload: Workload) -> bool:
    return workload.arrival.open is not None and workload.arrival.open.process == "constant"


def _some_ok(runs: Sequence[PartRun]) -> bool:
    return any(run.succeeded for run in runs)


def step_of_run(run: PartRun, some_ok: bool) -> Step:
    """The step of one run; a run without a result is an invalid one. `some_ok`: at some load of the sweep
    requests have ended well."""
    from kvprobe.diagnose.step_validity import invalid_because
    from kvprobe.summary.sweep_steps import step_of

    load, outcome = run.item.load or 0.0, run.outcome
    if outcome.data is None or outcome.summary is None:
        why = outcome.problems[0].message if outcome.problems else "there is no result"
        return Step(load=load, valid=False, invalid_because=why)
    validity = outcome.diagnosis.validity if outcome.diagnosis is not None else None
    because = invalid_because(outcome.summary, validity, others_succeed=some_ok)
    return step_of(outcome.data, outcome.summary, load, valid=because is None, because=because)


def limits_document(sweep: Sweep) -> dict[str, Any]:
    sustain = sweep.sustain
    return {
        "growth_share": sustain.growth,
        "failed_share": sustain.failures,
        "ttft_s": sustain.ttft_s,
        "tpot_s": sustain.tpot_s,
        "percentile": sustain.percentile,
    }


def limits_of(document: dict[str, Any]) -> Limits:
    """Back from suite.json; what is not as expected is the default."""
    import msgspec

    try:
        return msgspec.convert(document, Limits)
    except (msgspec.ValidationError, TypeError):
        return Limits()
