"""Abort rules: `error_rate > 50% for 10s` -> a condition and how long it must hold."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvprobe.errors import UsageError
from kvprobe.gates.expressions import Gate, leading
from kvprobe.gates.limits import ExpressionError
from kvprobe.gates.metrics import METRICS, SECONDS_UNITS

DEFAULT_GRACE_S = 5.0
MAX_GRACE_S = 3600.0
_FOR = re.compile(r"[ \t]+for[ \t]+([0-9]{1,9}(?:\.[0-9]{1,9})?)[ \t]?(ms|s|m|h)[ \t]*\Z")


@dataclass(frozen=True, slots=True)
class AbortRule:
    """Stop the load when `when` has held without a break for `grace_s` seconds."""

    when: Gate
    grace_s: float = DEFAULT_GRACE_S

    @property
    def text(self) -> str:
        """`error_rate > 50% for 10s`"""
        return f"{self.when.text} for {self.grace_s:g}s"


def parse_rule(text: str, source: str = "--abort") -> AbortRule:
    """Raises `UsageError` whose problem has the place of the fault in the text."""
    try:
        return rule_of(text, source)
    except ExpressionError as error:
        raise UsageError(error.problem(text, source)) from error


def condition_of(text: str, source: str = "workload") -> Gate:
    """A condition alone: the grace time stands beside it. Raises `ExpressionError`."""
    rule = rule_of(text, source)
    if rule.when.text != text.strip():
        at = len(rule.when.text)
        message = "the grace time stands in the key `grace`"
        raise ExpressionError(
            "abort_rule", message, f"write when: '{rule.when.text}', grace: {rule.grace_s:g}s", at
        )
    return rule.when


def rule_of(text: str, source: str = "--abort") -> AbortRule:
    """Raises `ExpressionError`."""
    gate, rest = leading(text, source, live=True)
    at = len(text) - len(rest)
    if not gate.of.live:
        live = ", ".join(m.name for m in METRICS.values() if m.live)
        message = (
            f"`{gate.metric}` is known only at the end of a run, and an abort rule is judged while it goes"
        )
        raise ExpressionError("not_live", message, f"use it as a --threshold; live are {live}", 0)
    if not rest.strip():
        return AbortRule(gate)
    found = _FOR.match(rest)
    if found is None:
        where = at + len(rest) - len(rest.lstrip())
        message = f"`{rest.strip()[:40]}` is left over after the condition"
        raise ExpressionError("abort_rule", message, "write 'error_rate > 50% for 10s'", where)
    grace_s = float(found[1]) * SECONDS_UNITS[found[2]]
    if grace_s > MAX_GRACE_S:
        message = f"a grace time of more than {MAX_GRACE_S:g} s never aborts anything"
        raise ExpressionError("abort_rule", message, "write a shorter one", at)
    return AbortRule(gate, grace_s)
