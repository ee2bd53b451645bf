"""The number and unit of a limit, brought to base units; and what is said of one that will not do."""

from __future__ import annotations

from kvprobe.errors import Problem
from kvprobe.gates.metrics import (
    MAX_LATENCY_S,
    MINUTES_AT_MOST,
    PER_S_UNITS,
    SECONDS_UNITS,
    TOKENS_UNITS,
    Metric,
)


class ExpressionError(ValueError):
    """What is wrong with an expression; `offset` counts characters from 0."""

    def __init__(self, code: str, message: str, fix: str, offset: int) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fix = fix
        self.offset = offset

    def problem(self, text: str, where: str) -> Problem:
        """As a `Problem` with a caret under the place."""
        return Problem(self.code, self.message, self.fix, where, 1, self.offset + 1, text)


def example_of(metric: Metric) -> str:
    match metric.kind:
        case "seconds":
            return "800ms"
        case "ratio":
            return "90%"
        case "per_s":
            return "5/s"
        case "tokens_per_s":
            return "100 tok/s"
    return "10"


def in_base_units(number: float, written: str, unit: str, metric: Metric, at: tuple[int, int]) -> float:
    number_at, unit_at = at
    match metric.kind:
        case "seconds":
            return _seconds(number, written, unit, metric, at)
        case "ratio":
            return _ratio(number, written, unit, metric, at)
        case "per_s" if unit in PER_S_UNITS:
            return number
        case "per_s" if not unit and metric.name != "goodput":
            return number  # the name says a second
        case "tokens_per_s" if not unit or unit in TOKENS_UNITS:
            return number
        case "count" if not unit:
            return number
    if metric.name == "goodput" and not unit:
        message, fix = f"`{written}` needs a unit", f"write `{written}/s` (requests a second)"
        raise ExpressionError("missing_unit", message, fix, number_at)
    if metric.name == "goodput" and unit == "%":
        fix = f"write `{written}/s`, or ask for the share: slo_attainment > {written}%"
        raise ExpressionError("bad_unit", "`goodput` is a rate, and % is a share", fix, unit_at)
    message = f"`{unit}` is no unit of `{metric.name}`, which is {metric.what}"
    fix = "write the number alone" if metric.kind == "count" else f"write it as {example_of(metric)}"
    raise ExpressionError("bad_unit", message, fix, unit_at)


def _seconds(number: float, written: str, unit: str, metric: Metric, at: tuple[int, int]) -> float:
    """A limit that nothing can exceed is a slip of the pen, and would pass for ever."""
    value = number * _seconds_unit(written, unit, metric, at)
    if unit == "m" and number > MINUTES_AT_MOST:
        message = f"`{written}m` is {written} minutes"
        raise ExpressionError("bad_limit", message, f"write `{written}ms`, or `{value / 3600:g}h`", at[0])
    if value > MAX_LATENCY_S:
        message = f"{written} {unit} is longer than any request may last ({MAX_LATENCY_S / 3600:g} h)"
        raise ExpressionError("bad_limit", message, "write a limit that can be missed", at[0])
    return value


def check_possible(words: tuple[str, str, str], metric: Metric, value: float, at: int) -> None:
    """No measured value lies below 0, no share above 1, no count between two whole numbers. Raises
    `ExpressionError` for a comparison that could therefore never hold."""
    name, op, written = words
    top = metric.kind == "ratio" and value >= 1
    never = (op == "<" and value <= 0) or (op == ">" and top)
    if never or (op == "==" and value != int(value)):
        message = f"`{name} {op} {written.strip()}` can never hold"
        fix = f"write {op}= if the limit itself is allowed" if op != "==" else "write a whole number"
        raise ExpressionError("bad_limit", message, fix, at)


def _seconds_unit(written: str, unit: str, metric: Metric, at: tuple[int, int]) -> float:
    number_at, unit_at = at
    if unit in SECONDS_UNITS:
        return SECONDS_UNITS[unit]
    if not unit:
        message = f"`{written}` needs a unit: seconds or milliseconds?"
        raise ExpressionError("missing_unit", message, f"write `{written}ms` or `{written}s`", number_at)
    lower = unit.lower()
    near = {"sec": "s", "secs": "s", "seconds": "s", "second": "s", "msec": "ms", "millis": "ms"}.get(lower)
    near = near or (lower if lower in SECONDS_UNITS else None)
    fix = f"did you mean `{near}`?" if near else "units of time are us, ms, s, m and h"
    raise ExpressionError(
        "bad_unit", f"`{unit}` is no unit of `{metric.name}`, which is a time", fix, unit_at
    )


def _ratio(number: float, written: str, unit: str, metric: Metric, at: tuple[int, int]) -> float:
    number_at, unit_at = at
    if unit == "%":
        if number > 100:
            message = f"`{metric.name}` is a share and never exceeds 100 %"
            raise ExpressionError("bad_limit", message, "write at most 100%", number_at)
        return number / 100
    if unit:
        message = f"`{unit}` is no unit of `{metric.name}`, which is a share"
        raise ExpressionError("bad_unit", message, f"write `{written}%` or a number from 0 to 1", unit_at)
    if number > 1:
        message = f"`{metric.name}` is a share from 0 to 1, and {written} is {number * 100:g} %"
        raise ExpressionError("bad_limit", message, f"write `{written}%`", number_at)
    if number == 1 and "." not in written:
        message = "is `1` one per cent, or all of them?"
        raise ExpressionError("missing_unit", message, "write `1%` or `100%`", number_at)
    return number
