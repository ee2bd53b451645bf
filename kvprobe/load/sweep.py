"""The `sweep` key of a workload: one load after the other, up to what the server can sustain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_serializer, model_validator
from pydantic_core import PydanticCustomError

from kvprobe.load.workload_values import Part, Seconds, as_tuple

MAX_LOAD = 10_000.0
MAX_STEPS = 64
MAX_SWEPT_USERS = 5_000
_FORM = "write a list such as [2, 4, 8], or {from: 2, to: 64, factor: 2}, or {from: 2, to: 20, steps: 10}"


class Ladder(Part):
    """The loads of a sweep, rising: a list, or from and to with a factor or a number of steps."""

    values: Annotated[tuple[float, ...], BeforeValidator(as_tuple)] | None = Field(
        default=None, min_length=1, max_length=MAX_STEPS, description="The loads themselves, rising."
    )
    first: float | None = Field(default=None, gt=0, le=MAX_LOAD, alias="from", description="First load.")
    last: float | None = Field(default=None, gt=0, le=MAX_LOAD, alias="to", description="Last load.")
    factor: float | None = Field(default=None, gt=1, le=100, description="From one load to the next.")
    steps: int | None = Field(default=None, ge=2, le=MAX_STEPS, description="Number of loads, equal steps.")

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, data: Any) -> Any:
        if isinstance(data, list):
            numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in data)
            if not numbers or not data:
                raise PydanticCustomError("bad_value", "these are not the loads of a sweep", {"fix": _FORM})
            return {"values": [float(v) for v in data]}
        if not isinstance(data, (dict, Ladder)):
            raise PydanticCustomError("bad_value", "this is not a ladder of loads", {"fix": _FORM})
        return data

    @model_validator(mode="after")
    def _one_form(self) -> Ladder:
        if self.values is not None:
            rising = all(a < b for a, b in zip(self.values, self.values[1:], strict=False))
            if not rising or self.values[0] <= 0 or self.values[-1] > MAX_LOAD:
                fix = f"write rising numbers above 0, at most {MAX_LOAD:,.0f}"
                raise PydanticCustomError("bad_value", "the loads of a sweep must rise", {"fix": fix})
            return self
        if self.first is None or self.last is None or (self.factor is None) == (self.steps is None):
            message = "a ladder takes `from` and `to`, and one of `factor` and `steps`"
            raise PydanticCustomError("bad_value", message, {"fix": _FORM})
        if self.first >= self.last:
            raise PydanticCustomError(
                "bad_value", "`from` must be below `to`", {"fix": "write {from: 2, to: 64, factor: 2}"}
            )
        if len(self.loads()) > MAX_STEPS:
            fix = "take a larger factor, or bounds that are nearer"
            raise PydanticCustomError(
                "bad_value", f"this ladder has more than {MAX_STEPS} steps", {"fix": fix}
            )
        return self

    @model_serializer(mode="plain")
    def _short(self) -> Any:
        if self.values is not None:
            return [int(v) if v.is_integer() else v for v in self.values]
        named = {"from": self.first, "to": self.last, "factor": self.factor, "steps": self.steps}
        return {key: value for key, value in named.items() if value is not None}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        load = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_LOAD}
        steps = {"type": "integer", "minimum": 2, "maximum": MAX_STEPS}
        factor = {"type": "number", "exclusiveMinimum": 1, "maximum": 100}
        listed = {"type": "array", "items": load, "minItems": 1, "maxItems": MAX_STEPS}
        ladder = {
            "type": "object",
            "properties": {"from": load, "to": load, "factor": factor, "steps": steps},
            "required": ["from", "to"],
            "oneOf": [{"required": ["factor"]}, {"required": ["steps"]}],
            "additionalProperties": False,
        }
        return {"title": "Ladder", "description": cls.__doc__, "anyOf": [listed, ladder]}

    def loads(self) -> list[float]:
        """Every load, rising; `to` is the last one in any case. Three figures where they are computed."""
        if self.values is not None:
            return list(self.values)
        assert self.first is not None
        assert self.last is not None
        if self.steps is not None:
            width = (self.last - self.first) / (self.steps - 1)
            return [float(f"{self.first + i * width:.3g}") for i in range(self.steps)]
        assert self.factor is not None
        found: list[float] = []
        load = self.first
        while load < self.last * (1 - 1e-9) and len(found) <= MAX_STEPS:
            found.append(float(f"{load:.3g}"))
            load *= self.factor
        return [*found, self.last]


class Sustain(Part):
    """When a load counts as sustained."""

    growth: float = Field(
        default=0.05,
        gt=0,
        le=0.5,
        description="Growth of the backlog that passes as none, as a share of the offered rate (ratio).",
    )
    failures: float = Field(
        default=0.01, ge=0, lt=1, description="Requests that may fail or never be sent (ratio, 0 to 1)."
    )
    ttft_s: Seconds | None = Field(
        default=None, gt=0, le=3600, alias="ttft", description="Limit of the time to first token (duration)."
    )
    tpot_s: Seconds | None = Field(
        default=None, gt=0, le=3600, alias="tpot", description="Limit of the time per token (duration)."
    )
    percentile: Literal["p50", "p95", "p99"] = Field(
        default="p95", description="Percentile that the two limits are held against."
    )


class Sweep(Part):
    """Loads in turn on one server, each a run of this workload; then nearer to the limit by halving."""

    rate: Ladder | None = Field(default=None, description="Rates of an open loop, in requests per second.")
    users: Ladder | None = Field(default=None, description="Numbers of users of a closed loop (count).")
    refine: int = Field(
        default=2,
        ge=0,
        le=10,
        description="Further loads between the last that was sustained and the first that was not (count).",
    )
    repeat: int = Field(default=1, ge=1, le=10, description="Runs of each load (count).")
    max_steps: int = Field(default=16, ge=2, le=MAX_STEPS, description="Runs of the whole sweep (count).")
    sustain: Sustain = Field(default_factory=Sustain, description="When a load counts as sustained.")

    @property
    def axis(self) -> Literal["rate", "users"]:
        return "rate" if self.rate is not None else "users"

    @property
    def ladder(self) -> Ladder:
        found = self.rate or self.users
        assert found is not None
        return found


def sweep_problems(
    sweep: Sweep | None, *, closed: bool, rate: float | None
) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """(place below `sweep`, message, fix) of what does not fit together."""
    if sweep is None:
        return
    if (sweep.rate is None) == (sweep.users is None):
        yield (), "a sweep goes over exactly one of `rate` and `users`", "keep one of the two"
        return
    if sweep.rate is not None and closed:
        yield (
            ("rate",),
            "a sweep of rates needs an open loop",
            "write `arrival: {open: {rate: 1}}`; the sweep sets the rate",
        )
    elif sweep.rate is not None and rate is None:
        yield (
            ("rate",),
            "a sweep sets the rate of each step, and this arrival has rates of its own",
            "write `arrival: {open: {rate: 1}}`",
        )
    if sweep.users is not None and not closed:
        yield (
            ("users",),
            "a sweep of users needs a closed loop",
            "write `arrival: {closed: {users: 1}}`; the sweep sets the users",
        )
    users = sweep.users.loads() if sweep.users is not None else []
    if not all(load.is_integer() for load in users):
        yield ("users",), "numbers of users are whole", "write whole numbers, or a factor that gives them"
    if users and users[-1] > MAX_SWEPT_USERS:
        yield ("users",), f"a run has at most {MAX_SWEPT_USERS:,} users", "end the ladder lower"
