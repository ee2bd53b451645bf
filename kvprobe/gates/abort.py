"""Abort rules and budgets, judged in the parent while the load goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvprobe.errors import UsageError
from kvprobe.evidence.facts import Fact
from kvprobe.gates.live import Live, Moment
from kvprobe.gates.numbers import shown
from kvprobe.gates.rules import DEFAULT_GRACE_S, AbortRule, parse_rule

CHECK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """What may be used up. `name` is the key that sets it, and `limit` counts tokens or money."""

    name: str
    limit: float
    per_input: float = 1.0
    per_output: float = 1.0
    asked_input: float = 0.0
    asked_output: float = 0.0
    """Of one request, as planned: what those in flight will still cost."""

    def used(self, live: Live) -> float:
        """Used by the requests that ended, and by those in flight as planned."""
        spent, flying = live.spent, live.in_flight
        return self.per_input * (spent.input_tokens + flying * self.asked_input) + self.per_output * (
            spent.output_tokens + flying * self.asked_output
        )


@dataclass(slots=True)
class _State:
    rule: AbortRule
    held_since_s: float | None = None
    judged: int = 0
    last: float | None = None
    tripped: bool = False


@dataclass(frozen=True, slots=True)
class Tripped:
    """Why to stop, naming the rule and the value. A budget that is used up is no reason to cut off
    what is already paid for."""

    why: str
    at_once: bool


@dataclass(slots=True)
class AbortWatch:
    """Says when the load has to stop. `clock` is in seconds (CLOCK_MONOTONIC)."""

    folder: Path
    rules: Sequence[AbortRule]
    budgets: Sequence[TokenBudget] = ()
    clock: Callable[[], float] = time.monotonic
    _live: Live = field(init=False)
    _states: list[_State] = field(init=False)
    _next_s: float = 0.0
    _spent: str | None = None

    def __post_init__(self) -> None:
        self._live = Live(self.folder)
        self._states = [_State(rule) for rule in self.rules]

    def tripped(self) -> Tripped | None:
        """Null to go on. Cheap when called often."""
        if not self.rules and not self.budgets:
            return None
        now_s = self.clock()
        if now_s < self._next_s:
            return None
        self._next_s = now_s + CHECK_EVERY_S
        self._live.read(now_s)
        for state in self._states:
            if (why := self._judge(state, now_s)) is not None:
                return Tripped(why, at_once=True)
        over = self._over_budget()
        return Tripped(over, at_once=False) if over is not None else None

    def _judge(self, state: _State, now_s: float) -> str | None:
        gate = state.rule.when
        moment = self._live.value(gate, now_s)
        value = moment.value
        if value is None:
            if gate.of.form != "gauge":
                state.held_since_s = None  # the waits that it stood on have ended, too few to judge
            return None  # a page that does not come: a condition that held neither breaks nor begins
        state.judged, state.last = state.judged + 1, value
        if not gate.holds(value):
            state.held_since_s = None
            return None
        if state.held_since_s is None:
            state.held_since_s = now_s
        if now_s - state.held_since_s < state.rule.grace_s:
            return None
        state.tripped = True
        return _said(state.rule, moment, value)

    def _over_budget(self) -> str | None:
        for budget in self.budgets:
            if (used := budget.used(self._live)) >= budget.limit:
                self._spent = budget.name
                of = f"{used:,.6g} of {budget.limit:,.6g}, those in flight included"
                return f"`{budget.name}` is used up: {of}"
        return None

    def facts(self) -> list[Fact]:
        """What became of each rule: a rule that could never be judged must not look like one that held."""
        found = [
            Fact(
                name="abort_rule",
                source="run",
                value={
                    "rule": state.rule.text,
                    "judged": state.judged,
                    "last": state.last,
                    "tripped": state.tripped,
                },
                text=None if state.judged else "never judged: not exported, or too few requests ended",
            )
            for state in self._states
        ]
        if self.budgets:
            spent = self._live.spent
            value = {"input": spent.input_tokens, "output": spent.output_tokens, "spent": self._spent}
            found.append(Fact(name="tokens_spent", source="run", value=value, unit="tokens"))
        return found


def _said(rule: AbortRule, moment: Moment, value: float) -> str:
    gate = rule.when
    held = f" for {rule.grace_s:g} s" if rule.grace_s else ""
    least = "at least " if moment.waiting else ""
    told = f"abort rule `{gate.text}` held{held}: {gate.name} is {least}{shown(value, gate.of.kind)}"
    if gate.of.form == "gauge":
        return told
    rows = f"the latest {moment.n} requests" if moment.n > 1 else "one request"
    still = f", {moment.waiting} still waiting" if moment.waiting else ""
    return f"{told}, over {rows}{still}"


def rules_of(workload: Mapping[str, Any]) -> list[AbortRule]:
    """The abort rules of a resolved workload; what is none any more is left out."""
    found = []
    stated = workload.get("abort")
    for item in stated if isinstance(stated, list | tuple) else ():
        if not isinstance(item, Mapping):
            continue
        grace = item.get("grace_s", item.get("grace", DEFAULT_GRACE_S))
        try:
            rule = parse_rule(str(item.get("when")), "workload")
            seconds = float(str(grace).removesuffix("s"))
        except (UsageError, ValueError):
            continue
        found.append(AbortRule(rule.when, seconds))
    return found
