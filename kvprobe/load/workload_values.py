"""Values of a workload file that are more than a number: durations, and lengths in tokens."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from kvprobe.load.workload_base import (
    MAX_TOKENS,
    Part,
    Seconds,
    Tokens,
    as_tuple,
    format_duration,
    parse_duration,
)
from kvprobe.load.workload_distributions import Empirical, Lognormal, Quantiles

__all__ = [
    "MAX_TOKENS",
    "Empirical",
    "Length",
    "Lognormal",
    "Part",
    "Quantiles",
    "Seconds",
    "Tokens",
    "as_tuple",
    "format_duration",
    "parse_duration",
]


def _pair(value: Any) -> Any:
    if isinstance(value, list) and len(value) != 2:
        message, fix = "`uniform` takes two numbers", "write [lowest, highest]"
        raise PydanticCustomError("bad_value", message, {"fix": fix})
    return as_tuple(value)


class Length(Part):
    """A number of tokens: a plain number, or exactly one distribution.

    Forms: `128`, `{fixed: 128}`, `{uniform: [64, 256]}`,
    `{lognormal: {median: 200, sigma: 0.8, min: 16, max: 2000}}`,
    `{quantiles: {p50: 200, p95: 900, max: 2000}}`,
    `{empirical: {values: [100, 400], weights: [3, 1]}}`, `{empirical: {trace: FILE, column: in}}`.
    """

    fixed: Tokens | None = Field(default=None, description="Always this many tokens.")
    uniform: Annotated[tuple[Tokens, Tokens], BeforeValidator(_pair)] | None = Field(
        default=None, description="[lowest, highest] in tokens, both included, all equally likely."
    )
    lognormal: Lognormal | None = Field(default=None, description="Lognormal distribution, in tokens.")
    quantiles: Quantiles | None = Field(
        default=None, description="Quantiles (p50, p95, ...) with `max` and perhaps `min`, in tokens."
    )
    empirical: Empirical | None = Field(default=None, description="Lengths that were seen, in tokens.")

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
        forms = (self.fixed, self.uniform, self.lognormal, self.quantiles, self.empirical)
        if sum(form is not None for form in forms) != 1:
            message = (
                "a length takes exactly one of `fixed`, `uniform`, `lognormal`, `quantiles` and `empirical`"
            )
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
        assert self._formula is not None
        return self._formula.quantile(u)

    def largest(self) -> int:
        """The largest length that can come, in tokens."""
        if self.fixed is not None:
            return self.fixed
        if self.uniform is not None:
            return self.uniform[1]
        assert self._formula is not None
        return self._formula.largest()

    @property
    def _formula(self) -> Lognormal | Quantiles | Empirical | None:
        return self.lognormal or self.quantiles or self.empirical


_LENGTH_FIX = (
    "write a whole number of tokens such as 128, or {uniform: [64, 256]}, "
    "or {lognormal: {median: 200, sigma: 0.8, min: 16, max: 2000}}, "
    "or {quantiles: {p50: 200, p95: 900, max: 2000}}, or {empirical: {values: [100, 400]}}"
)
