"""The parts of a workload file as typed objects: durations, lengths, arrivals, limits.

Every field carries its unit in its description; the JSON Schema that `kvprobe schema workload`
prints is made from these classes.
"""

from __future__ import annotations

import math
import re
import shlex
from decimal import Decimal
from statistics import NormalDist
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

MAX_TOKENS = 1_000_000
MAX_OUTPUT_TOKENS = 200_000
MAX_USERS = 5_000
MAX_RATE_PER_S = 10_000.0
MAX_REQUESTS = 1_000_000
MAX_DURATION_S = 24 * 3600.0
MAX_FAMILY_REQUESTS = 200_000
"""families x requests_per_family: the order of one round is worked out in memory."""

_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)\Z")
_UNIT_S = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}


class Part(BaseModel):
    """What all parts share: strict types, no unknown keys, no change after loading."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        validate_by_alias=True,
        validate_by_name=False,
        serialize_by_alias=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )


def parse_duration(value: Any) -> float:
    """Seconds of "500ms", "60s", "2m" or "1h"."""
    if isinstance(value, str) and (match := _DURATION.match(value)):
        return float(Decimal(match[1]) * _UNIT_S[match[2]])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        message, fix = "a duration needs a unit", f"write `{value}s`, or one of the units ms, m, h"
        raise PydanticCustomError("bad_duration", message, {"fix": fix})
    message, fix = "this is not a duration", "write a number and a unit: 500ms, 60s, 2m or 1h"
    raise PydanticCustomError("bad_duration", message, {"fix": fix})


def format_duration(seconds: float) -> str:
    """The text that `parse_duration` reads back to the same number."""
    text = format(Decimal(repr(seconds)), "f")
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text}s"


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema(
        {"type": "string", "pattern": r"^[0-9]{1,9}(\.[0-9]{1,9})?(ms|s|m|h)$", "examples": ["60s"]}
    ),
]


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class Lognormal(Part):
    """A lognormal distribution cut off at `min` and `max` (cut, not piled up at the ends)."""

    median: Tokens = Field(description="Median before the cut, in tokens.")
    sigma: float = Field(gt=0, le=5, description="Standard deviation of the logarithm (no unit).")
    min: Tokens = Field(description="Smallest value, in tokens.")
    max: Tokens = Field(description="Largest value, in tokens.")

    @model_validator(mode="after")
    def _ordered(self) -> Lognormal:
        if not self.min <= self.median <= self.max:
            message, fix = "`median` must lie between `min` and `max`", "write min <= median <= max"
            raise PydanticCustomError("bad_value", message, {"fix": fix})
        return self

    def quantile(self, u: float) -> int:
        """The value at probability `u` of the distribution cut to [min, max]."""
        normal = NormalDist(math.log(self.median), self.sigma)
        low = normal.cdf(math.log(self.min - 0.5))
        high = normal.cdf(math.log(self.max + 0.5))
        p = min(max(low + u * (high - low), 1e-12), 1 - 1e-12)
        return min(max(round(math.exp(normal.inv_cdf(p))), self.min), self.max)


class Length(Part):
    """A number of tokens: a plain number, or exactly one distribution.

    Forms: `128`, `{fixed: 128}`, `{uniform: [64, 256]}`,
    `{lognormal: {median: 200, sigma: 0.8, min: 16, max: 2000}}`.
    """

    fixed: Tokens | None = Field(default=None, description="Always this many tokens.")
    uniform: Annotated[tuple[Tokens, Tokens], BeforeValidator(_as_tuple)] | None = Field(
        default=None, description="[lowest, highest] in tokens, both included, all equally likely."
    )
    lognormal: Lognormal | None = Field(default=None, description="Lognormal distribution, in tokens.")

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, data: Any) -> Any:
        if isinstance(data, int) and not isinstance(data, bool):
            return {"fixed": data}
        if not isinstance(data, (dict, Length)):
            raise PydanticCustomError("bad_length", "this is not a length in tokens", {"fix": _LENGTH_FIX})
        return data

    @model_validator(mode="after")
    def _one_form(self) -> Length:
        forms = [self.fixed, self.uniform, self.lognormal]
        if sum(form is not None for form in forms) != 1:
            message = "a length takes exactly one of `fixed`, `uniform` and `lognormal`"
            raise PydanticCustomError("bad_value", message, {"fix": _LENGTH_FIX})
        if self.uniform is not None and self.uniform[0] > self.uniform[1]:
            message, fix = "the lower bound of `uniform` is above the upper bound", "write [lowest, highest]"
            raise PydanticCustomError("bad_value", message, {"fix": fix})
        return self

    @model_serializer(mode="wrap")
    def _short(self, handler: SerializerFunctionWrapHandler) -> Any:
        """The form that a person would write; reads back to an equal object."""
        if self.fixed is not None:
            return self.fixed
        return {key: value for key, value in handler(self).items() if value is not None}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        schema: dict[str, Any] = handler.resolve_ref_schema(handler(core_schema))
        number = {"type": "integer", "minimum": 1, "maximum": MAX_TOKENS}
        mapping = {
            key: schema.pop(key) for key in ("type", "properties", "additionalProperties") if key in schema
        }
        schema["anyOf"] = [number, {**mapping, "minProperties": 1, "maxProperties": 1}]
        return schema

    def quantile(self, u: float) -> int:
        """The length at probability `u` (0 <= u < 1), in tokens."""
        if self.fixed is not None:
            return self.fixed
        if self.uniform is not None:
            low, high = self.uniform
            return min(low + int(u * (high - low + 1)), high)
        assert self.lognormal is not None
        return self.lognormal.quantile(u)

    def largest(self) -> int:
        """The largest length that can come, in tokens."""
        if self.fixed is not None:
            return self.fixed
        if self.uniform is not None:
            return self.uniform[1]
        assert self.lognormal is not None
        return self.lognormal.max


_LENGTH_FIX = (
    "write a whole number of tokens such as 128, or {uniform: [64, 256]}, "
    "or {lognormal: {median: 200, sigma: 0.8, min: 16, max: 2000}}"
)


class PromptPart(Part):
    """What a prompt looks like; which class applies is decided by `kind`."""

    kind: ClassVar[str]


class SharedPrefixPrompt(PromptPart):
    """Families of prompts: each family shares a prefix, every request asks its own question."""

    kind: ClassVar[str] = "shared_prefix"
    families: int = Field(
        ge=1, le=100_000, description="Number of different prefixes; each costs one cold request."
    )
    requests_per_family: int = Field(
        ge=1, le=100_000, description="Requests of one round that share a prefix."
    )
    prefix_tokens: Tokens = Field(
        description="Length of the shared text (chat: the system message), in tokens."
    )
    suffix_tokens: Length = Field(
        description="Length of the question after it, in tokens, chat template not counted."
    )

    @property
    def round_requests(self) -> int:
        """Requests of one round; a longer run goes on with new families."""
        return self.families * self.requests_per_family


class TimestampFirstPrompt(SharedPrefixPrompt):
    """A shared prefix spoilt by a first line that changes with every request."""

    kind: ClassVar[str] = "timestamp_first"


class DistinctPrompt(PromptPart):
    """Prompts that differ from their first word on."""

    kind: ClassVar[str] = "distinct"
    tokens: Length = Field(description="Length of the whole prompt as the server counts it, in tokens.")


class MixedLengthsPrompt(DistinctPrompt):
    """Long and short prompts mixed, all texts different."""

    kind: ClassVar[str] = "mixed_lengths"


class Output(Part):
    """What is asked of the server."""

    tokens: Length = Field(description="Tokens to generate (max_tokens of each request), in tokens.")
    ignore_eos: bool = Field(
        default=True,
        description="Ask the server not to stop early, so that every answer has the length asked for "
        "(vLLM, SGLang, the bundled server).",
    )


class Closed(Part):
    """A fixed number of users, each with one request at a time."""

    users: int = Field(
        ge=1, le=MAX_USERS, description="Users, each waits for its answer before it asks again (count)."
    )
    think_time_s: Seconds = Field(
        default=0.0,
        ge=0,
        le=3600,
        alias="think_time",
        description="Pause of a user between two requests (duration).",
    )


class Open(Part):
    """Requests come by the clock, whether or not earlier ones are done."""

    process: Literal["constant", "poisson"] = Field(
        default="poisson", description="Gaps between requests: all equal, or exponential (independent users)."
    )
    rate: float = Field(gt=0, le=MAX_RATE_PER_S, description="Mean arrivals, in requests per second.")
    max_in_flight: int = Field(
        default=512,
        ge=1,
        le=20_000,
        description="Requests open at once; a request above it is counted as unsent (count).",
    )


class Arrival(Part):
    """How requests come: exactly one of `closed` and `open`."""

    closed: Closed | None = Field(default=None, description="Closed loop: a number of users.")
    open: Open | None = Field(default=None, description="Open loop: a rate.")


class Warmup(Part):
    """Requests before the measurement; their prompts share nothing with the measured ones."""

    requests: int | None = Field(
        default=None, ge=0, le=10_000, description="Number of warm-up requests (count)."
    )
    duration_s: Seconds | None = Field(
        default=None, gt=0, le=3600, alias="duration", description="Warm-up by time instead (duration)."
    )


class Timeouts(Part):
    """When a request is given up. Generous: a timeout is a failure, never a latency."""

    connect_s: Seconds = Field(
        default=10.0, gt=0, le=600, alias="connect", description="To open the connection (duration)."
    )
    first_token_s: Seconds = Field(
        default=120.0,
        gt=0,
        le=7200,
        alias="first_token",
        description="From sending to the first token (duration).",
    )
    gap_s: Seconds = Field(
        default=60.0, gt=0, le=7200, alias="gap", description="Between two chunks (duration)."
    )
    total_s: Seconds = Field(
        default=600.0, gt=0, le=MAX_DURATION_S, alias="total", description="For the whole request (duration)."
    )


class Sampling(Part):
    """How often the server is looked at."""

    metrics_interval_s: Seconds = Field(
        default=0.5,
        ge=0.05,
        le=60,
        alias="metrics_interval",
        description="Between two reads of /metrics (duration).",
    )


class Breaker(Part):
    """When the load gives up on a target (exit code 5)."""

    consecutive_failures: int = Field(default=20, ge=1, le=100_000, description="Failures in a row (count).")
    window: int = Field(
        default=50,
        ge=1,
        le=100_000,
        description="The error rate is judged over this many latest requests (count).",
    )
    error_rate: float = Field(
        default=0.9, gt=0, le=1, description="Share of failures in the window (ratio, 0 to 1)."
    )


_OWN_KEYS = {
    "model": "--model NAME",
    "messages": "`prompt`",
    "prompt": "`prompt`",
    "stream": "nothing: every request is streamed",
    "stream_options": "nothing: usage is always asked for",
    "max_tokens": "`output.tokens`",
    "max_completion_tokens": "`output.tokens`",
    "ignore_eos": "`output.ignore_eos`",
    "temperature": "`request.temperature`",
}
_SECRET_KEYS = {"api_key", "apikey", "api-key", "authorization", "access_token", "password", "secret"}


def _check_extra_body(value: Any) -> Any:
    for key in value if isinstance(value, dict) else ():
        if key in _OWN_KEYS:
            message, fix = f"`{key}` is set by kvprobe itself", f"use {_OWN_KEYS[key]} instead"
            raise PydanticCustomError("bad_value", "{what}", {"what": message, "fix": fix, "key": key})
        if str(key).lower() in _SECRET_KEYS:
            message = f"`{key}` looks like a secret, which does not belong into a request body or a file"
            fix = "put it into an environment variable and name that with --api-key-env"
            raise PydanticCustomError("bad_value", "{what}", {"what": message, "fix": fix, "key": key})
    return value


class RequestOptions(Part):
    """What goes into the body of each request besides the prompt."""

    temperature: float = Field(
        default=0.0, ge=0, le=2, description="Sampling temperature (no unit); 0 is greedy."
    )
    extra_body: Annotated[dict[str, JsonValue], BeforeValidator(_check_extra_body)] = Field(
        default_factory=dict, description="Further fields of the JSON body, passed on as they are."
    )


def _split_args(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return tuple(shlex.split(value))
        except ValueError as error:
            fix = "close the quotes"
            raise PydanticCustomError(
                "bad_value", "the quotes in this text do not match", {"fix": fix}
            ) from error
    return _as_tuple(value)


ServerArgs = Annotated[
    tuple[str, ...],
    BeforeValidator(_split_args),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
