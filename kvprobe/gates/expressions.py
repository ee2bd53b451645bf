"""`ttft.p95 < 800ms` -> `Gate`.

    expression := metric ["." statistic] operator number [unit]
    statistic  := p0 ... p99.99 | mean | median | min | max
    operator   := < | <= | > | >= | ==

A unit is obligatory wherever a bare number could be read in two ways (is 800 a time in seconds or in
milliseconds? is 1 one per cent or all?). Errors name the place in the text, and what was likely meant.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from kvprobe.errors import UsageError
from kvprobe.gates.limits import ExpressionError, check_possible, example_of, in_base_units
from kvprobe.gates.metrics import (
    ALIASES,
    METRICS,
    UNIT_OF,
    Metric,
)

MAX_CHARS = 200
OPERATORS = ("<=", ">=", "==", "<", ">")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STATISTIC = re.compile(r"[A-Za-z]+[0-9]*(?:\.[0-9]+)?|[0-9]+")
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?(?![0-9.])")
_GROUPED = re.compile(r"[0-9]{1,15}[,_][0-9][0-9,_]*")
_PERCENTILE = re.compile(r"p([0-9]{1,2}(?:\.[0-9]{1,2})?)\Z")
_PLAIN_STATISTICS = ("mean", "median", "min", "max")
_SPACE = re.compile(r"[ \t]*")


@dataclass(frozen=True, slots=True)
class Gate:
    """One comparison. `limit` is in base units: seconds, a ratio (0-1), a count, or a rate a second."""

    text: str
    """As written."""
    metric: str
    statistic: str | None
    op: str
    limit: float
    source: str = "workload"

    @property
    def of(self) -> Metric:
        return METRICS[self.metric]

    @property
    def unit(self) -> str | None:
        return UNIT_OF[self.of.kind]

    @property
    def name(self) -> str:
        """`ttft.p95`"""
        return self.metric if self.statistic is None else f"{self.metric}.{self.statistic}"

    @property
    def q(self) -> float | None:
        """The percentile as a share of 1; null when the statistic is none."""
        return percentile(self.statistic)

    def holds(self, value: float) -> bool:
        """The comparison itself."""
        limit = self.limit
        match self.op:
            case "<":
                return value < limit
            case "<=":
                return value <= limit
            case ">":
                return value > limit
            case ">=":
                return value >= limit
        return value == limit

    def same_question(self, other: Gate) -> bool:
        """Whether both bound the same value from the same side: the later one replaces the earlier."""
        return (self.name, self.op[0]) == (other.name, other.op[0])


def percentile(statistic: str | None) -> float | None:
    """0.95 of `p95`, 0.5 of `median`; null for mean, max and none."""
    if statistic == "median":
        return 0.5
    found = _PERCENTILE.match(statistic or "")
    return float(found[1]) / 100 if found else None


def parse(text: str, source: str = "workload") -> Gate:
    """Raises `UsageError` whose problem has the place of the fault in the text."""
    try:
        return parse_expression(text, source)
    except ExpressionError as error:
        raise UsageError(error.problem(text, source)) from error


def parse_expression(text: str, source: str = "workload") -> Gate:
    """Raises `ExpressionError`."""
    gate, rest = leading(text, source)
    if rest.strip():
        at = len(text) - len(rest.lstrip())
        raise ExpressionError(
            "threshold",
            f"`{rest.strip()[:40]}` is left over after the limit",
            "write one comparison a threshold; give --threshold again for the next",
            at,
        )
    return gate


def leading(text: str, source: str, *, live: bool = False) -> tuple[Gate, str]:
    """The comparison at the start of the text, and what stands after it. In a rule that is judged
    `live` a gauge is its reading of the moment and has no statistic."""
    if len(text) > MAX_CHARS:
        message = f"an expression has at most {MAX_CHARS} characters"
        raise ExpressionError("threshold", message, _EXAMPLE, 0)
    at = _skip(text, 0)
    metric, at = _metric(text, at)
    statistic, at = _statistic(text, at, metric, live=live)
    at = _skip(text, at)
    op, at = _operator(text, at, metric)
    at = _skip(text, at)
    name = metric.name if statistic is None else f"{metric.name}.{statistic}"
    limit, after = _limit(text, at, metric, f"{name} {op}")
    check_possible((name, op, text[at:after]), metric, limit, at)
    return Gate(text[:after].strip(), metric.name, statistic, op, limit, source), text[after:]


_EXAMPLE = "write it as 'ttft.p95 < 800ms'"


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _metric(text: str, at: int) -> tuple[Metric, int]:
    found = _WORD.match(text, at)
    if found is None:
        what = "nothing stands here" if at >= len(text) else f"`{text[at : at + 1]}` begins no metric"
        raise ExpressionError("threshold", f"{what}, where a metric is expected", _EXAMPLE, at)
    word = found[0]
    name = ALIASES.get(word.lower(), word.lower())
    if name in METRICS:
        return METRICS[name], found.end()
    near = difflib.get_close_matches(name, [*METRICS, *ALIASES], n=1, cutoff=0.6)
    fix = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(METRICS)}"
    raise ExpressionError("unknown_metric", f"there is no metric `{word}`", fix, at)


def _statistic(text: str, at: int, metric: Metric, *, live: bool) -> tuple[str | None, int]:
    dotted = text[at : at + 1] == "."
    momentary = live and metric.form == "gauge"
    if metric.form == "scalar" or momentary:
        if dotted:
            what = "is read at each moment of the load" if momentary else "is one number"
            message = f"`{metric.name}` {what} and has no statistic"
            raise ExpressionError("threshold", message, f"write `{metric.name}` alone", at)
        return None, at
    if not dotted:
        message = f"`{metric.name}` has many values: which of them must stay below or above the limit?"
        fix = f"write {metric.name}.p95, or p50, p99, mean, max ..."
        raise ExpressionError("missing_statistic", message, fix, at)
    found = _STATISTIC.match(text, at + 1)
    word = found[0].lower() if found else ""
    if word in _PLAIN_STATISTICS or percentile(word) is not None:
        return word, at + 1 + len(word)
    raise _no_statistic(word, metric, at + 1)


def _no_statistic(word: str, metric: Metric, at: int) -> ExpressionError:
    digits = word.removeprefix("p")
    if re.fullmatch(r"[0-9]{1,2}", word):
        fix = f"did you mean `{metric.name}.p{word}`?"
    elif word in ("avg", "average"):
        fix = "did you mean `mean`?"
    elif word == "p100":
        fix = f"did you mean `{metric.name}.max`?"
    elif re.fullmatch(r"p[0-9]{3,4}", word):
        fix = f"did you mean `p{digits[:2]}.{digits[2:]}`?"
    else:
        near = difflib.get_close_matches(word, _PLAIN_STATISTICS, n=1, cutoff=0.6)
        fix = f"did you mean `{near[0]}`?" if near else "write p0 to p99.99, mean, median, min or max"
    return ExpressionError("unknown_statistic", f"there is no statistic `{word or 'nothing'}`", fix, at)


def _operator(text: str, at: int, metric: Metric) -> tuple[str, int]:
    op = next((o for o in OPERATORS if text.startswith(o, at)), None)
    if op is None:
        shown = text[at : at + 2].strip()
        message = f"`{shown}` is no comparison" if shown else "a comparison is missing"
        fix = _MEANT.get(shown[:2]) or _MEANT.get(shown[:1]) or "use < <= > or >="
        if shown.startswith("=") and shown not in _MEANT and metric.kind == "count":
            fix = "use =="
        if text[at : at + 1].isspace() or not text[at : at + 1].isprintable():
            message, fix = f"an unusual blank (U+{ord(text[at]):04X}) stands here", "write a plain blank"
        raise ExpressionError("threshold", message, fix, at)
    if op == "==" and metric.kind != "count":
        message = "a measured value never equals a limit exactly"
        raise ExpressionError("threshold", message, "use < <= > or >=", at)
    return op, at + len(op)


_MEANT = {"=>": "use >=", "=<": "use <=", "\u2264": "use <=", "\u2265": "use >=", "!=": "use < or >"}


def _limit(text: str, at: int, metric: Metric, before: str) -> tuple[float, int]:
    found = _NUMBER.match(text, at)
    if found is None:
        shown = text[at : at + 12].strip()
        message = f"`{shown}` is no number" if shown else "the limit is missing"
        fix = f"write {before} {example_of(metric)}"
        raise ExpressionError("threshold", message, fix, at)
    if grouped := _GROUPED.match(text, at):
        message = f"`{grouped[0]}` holds a mark between its digits"
        fix = f"write {re.sub('[,_]', '', grouped[0])}, and a decimal point as a point"
        raise ExpressionError("threshold", message, fix, at)
    unit_at = _skip(text, found.end())
    unit = re.match(r"[%/A-Za-z\u00b5\u03bc]*", text[unit_at:])
    word = unit[0] if unit else ""
    if word == "for":  # `for 10s` of an abort rule
        word = ""
    end = unit_at + len(word) if word else found.end()
    value = in_base_units(float(found[0]), found[0], word, metric, (at, unit_at))
    return value, end
