"""The keys of a workload file that judge or bound a run: `thresholds`, `abort`, `slo`, `limits`, `budget`.

None of them changes what is sent, so none enters the content hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from kvprobe.gates.expressions import parse_expression
from kvprobe.gates.limits import ExpressionError
from kvprobe.gates.metrics import NEEDS_SLO
from kvprobe.gates.rules import DEFAULT_GRACE_S, MAX_GRACE_S, condition_of, rule_of
from kvprobe.load.workload_values import Part, Seconds, as_tuple

MAX_EXPRESSIONS = 100
DEFAULT_RATE_PER_S = 200.0
DEFAULT_CONCURRENCY = 1_024
DEFAULT_TOKENS = 50_000_000
DEFAULT_DURATION_S = 4 * 3600.0


def _checked(parse: Callable[[str], Any]) -> Callable[[str], str]:
    def check(text: str) -> str:
        try:
            parse(text)
        except ExpressionError as error:
            context = {"what": f"{error.message} (at character {error.offset + 1})", "fix": error.fix}
            raise PydanticCustomError("bad_value", "{what}", context) from error
        return text

    return check


Threshold = Annotated[
    str, AfterValidator(_checked(parse_expression)), WithJsonSchema({"type": "string", "maxLength": 200})
]
Condition = Annotated[
    str, AfterValidator(_checked(condition_of)), WithJsonSchema({"type": "string", "maxLength": 200})
]


class AbortWhen(Part):
    """A condition that stops the load (exit code 5) once it has held for its grace time."""

    when: Condition = Field(description="Condition, such as `error_rate > 50%` or `waiting > 100`.")
    grace_s: Seconds = Field(
        default=DEFAULT_GRACE_S,
        ge=0,
        le=MAX_GRACE_S,
        alias="grace",
        description="How long the condition must hold without a break (duration).",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        """`'error_rate > 50% for 10s'` is a short form."""
        if not isinstance(data, str):
            return data
        try:
            rule = rule_of(data)
        except ExpressionError as error:
            context = {"what": f"{error.message} (at character {error.offset + 1})", "fix": error.fix}
            raise PydanticCustomError("bad_value", "{what}", context) from error
        return {"when": rule.when.text, "grace": f"{rule.grace_s!r}s"}


class Slo(Part):
    """What a request must keep to count as good: all that are given. For `goodput` and `slo_attainment`."""

    ttft_s: Seconds | None = Field(
        default=None, gt=0, alias="ttft", description="Time to first token (duration)."
    )
    ttfo_s: Seconds | None = Field(
        default=None, gt=0, alias="ttfo", description="Time to the first visible token (duration)."
    )
    tpot_s: Seconds | None = Field(
        default=None, gt=0, alias="tpot", description="Time per output token after the first (duration)."
    )
    e2e_s: Seconds | None = Field(
        default=None, gt=0, alias="e2e", description="From sent to the last token (duration)."
    )
    response_latency_s: Seconds | None = Field(
        default=None,
        gt=0,
        alias="response_latency",
        description="From the schedule's instant to the last token (duration).",
    )
    response_ttft_s: Seconds | None = Field(
        default=None,
        gt=0,
        alias="response_ttft",
        description="From the schedule's instant to the first token (duration).",
    )

    @model_validator(mode="after")
    def _not_empty(self) -> Slo:
        if not self.model_dump(exclude_none=True):
            message, fix = "`slo` asks for nothing", "write {ttft: 2s, tpot: 200ms}"
            raise PydanticCustomError("bad_value", message, {"fix": fix})
        return self


class Limits(Part):
    """The most that this workload may ask of a target. Raise one on purpose, for a target of your own."""

    rate: float = Field(
        default=DEFAULT_RATE_PER_S, gt=0, le=10_000, description="Arrivals, in requests per second."
    )
    concurrency: int = Field(
        default=DEFAULT_CONCURRENCY, ge=1, le=20_000, description="Users, or requests in flight (count)."
    )
    tokens: int = Field(
        default=DEFAULT_TOKENS,
        ge=1,
        le=10**13,
        description="Prompt and answer tokens of the whole run, as planned (tokens).",
    )
    duration_s: Seconds = Field(
        default=DEFAULT_DURATION_S,
        gt=0,
        le=7 * 24 * 3600,
        alias="duration",
        description="Warm-up and measured load together (duration).",
    )


class Budget(Part):
    """What a run may use up. It is checked before the load where that can be known, and kept while it goes:
    no request is sent that could exceed it, as far as sizes are known (exit code 5)."""

    tokens: int | None = Field(
        default=None, ge=1, le=10**13, description="Prompt and answer tokens together (tokens)."
    )
    money: float | None = Field(
        default=None, gt=0, le=1e9, description="In the currency of the two prices (money)."
    )
    price_per_million_input: float | None = Field(
        default=None, ge=0, le=1e6, description="Price of a million prompt tokens (money)."
    )
    price_per_million_output: float | None = Field(
        default=None, ge=0, le=1e6, description="Price of a million answer tokens (money)."
    )

    @model_validator(mode="after")
    def _priced(self) -> Budget:
        prices = (self.price_per_million_input, self.price_per_million_output)
        if self.money is not None and None in prices:
            message = "a budget in money needs both prices"
            fix = "add `price_per_million_input` and `price_per_million_output`"
            raise PydanticCustomError("bad_value", message, {"fix": fix})
        if self.money is not None and not any(prices):
            message = "a budget in money bounds nothing where both prices are 0"
            raise PydanticCustomError("bad_value", message, {"fix": "write a price, or bound `tokens`"})
        if self.money is None and self.tokens is None:
            message, fix = "`budget` bounds nothing", "add `tokens: 1000000`, or `money: 5` with both prices"
            raise PydanticCustomError("bad_value", message, {"fix": fix})
        return self


Thresholds = Annotated[tuple[Threshold, ...], BeforeValidator(as_tuple), Field(max_length=MAX_EXPRESSIONS)]
Aborts = Annotated[tuple[AbortWhen, ...], BeforeValidator(as_tuple), Field(max_length=MAX_EXPRESSIONS)]


def gate_problems(thresholds: tuple[str, ...], slo: Slo | None) -> Iterator[tuple[int, str, str]]:
    """(index, message, fix) of thresholds that ask for limits which the workload does not state."""
    for index, text in enumerate(thresholds):
        metric = parse_expression(text).metric
        if metric in NEEDS_SLO and slo is None:
            message = f"`{metric}` counts the requests that keep the limits of `slo`, and there are none"
            yield index, message, "add `slo: {ttft: 2s, tpot: 200ms}`"
