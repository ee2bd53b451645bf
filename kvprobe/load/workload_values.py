"""Values of a workload file that are more than a number: durations, and lengths in tokens."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from statistics import NormalDist
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

MAX_TOKENS = 1_000_000

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


def as_tuple(value: Any) -> Any:
    """Lists of YAML are tuples here; anything else is left to be refused."""
    return tuple(value) if isinstance(value, list) else value


def _pair(value: Any) -> Any:
    if isinstance(value, list) and len(value) != 2:
        message, fix = "`uniform` takes two numbers", "write [lowest, highest]"
        raise PydanticCustomError("bad_value", message, {"fix": fix})
    return as_tuple(value)


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
    uniform: Annotated[tuple[Tokens, Tokens], BeforeValidator(_pair)] | None = Field(
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
