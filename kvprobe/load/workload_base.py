"""What all parts of a workload file share: strict classes, durations, counts of tokens."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
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


Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
