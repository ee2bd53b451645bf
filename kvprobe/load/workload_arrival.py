"""How requests come, as it stands in a workload file: the classes behind `arrival`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from kvprobe.load.workload_values import Part, Seconds, as_tuple

MAX_USERS = 5_000
MAX_RATE_PER_S = 10_000.0
MAX_STAGES = 1_000
_WAYS = ("rate", "ramp", "stages", "trace")


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
    ramp_s: Seconds = Field(
        default=0.0,
        ge=0,
        le=3600,
        alias="ramp",
        description="The users begin one after the other, evenly over this time (duration).",
    )


class Ramp(Part):
    """A rate that changes evenly from one value to another and then stays."""

    from_rate: float = Field(
        ge=0, le=MAX_RATE_PER_S, alias="from", description="Rate at the start, in requests per second."
    )
    to_rate: float = Field(
        gt=0, le=MAX_RATE_PER_S, alias="to", description="Rate at the end of the ramp, and after it."
    )
    over_s: Seconds = Field(gt=0, le=24 * 3600.0, alias="over", description="Length of the ramp (duration).")


class Stage(Part):
    """A time with one rate."""

    rate: float = Field(
        ge=0, le=MAX_RATE_PER_S, description="Mean arrivals, in requests per second; 0 is a pause."
    )
    for_s: Seconds = Field(gt=0, le=24 * 3600.0, alias="for", description="Length of the stage (duration).")


class TraceArrival(Part):
    """The instants of the trace that the prompts come from."""

    scale_time: float = Field(
        default=1.0,
        gt=0,
        le=10_000,
        description="Factor on the trace's times: 2 sends half as fast, 0.5 twice as fast (no unit).",
    )


class Open(Part):
    """Requests come by the clock, whether or not earlier ones are done."""

    process: Literal["constant", "poisson", "gamma"] = Field(
        default="poisson",
        description="Gaps between requests: all equal, exponential (independent users), or gamma "
        "(`burstiness`).",
    )
    rate: float | None = Field(
        default=None, gt=0, le=MAX_RATE_PER_S, description="Mean arrivals, in requests per second."
    )
    burstiness: float | None = Field(
        default=None,
        ge=0.05,
        le=20,
        description="Of `process: gamma`: standard deviation of the gaps over their mean (no unit). 1 is "
        "Poisson, above 1 comes in bursts, below 1 is more even.",
    )
    ramp: Ramp | None = Field(default=None, description="A rate that grows (or falls) evenly.")
    stages: Annotated[tuple[Stage, ...], BeforeValidator(as_tuple)] | None = Field(
        default=None, min_length=1, max_length=MAX_STAGES, description="Rates one after the other."
    )
    trace: TraceArrival | None = Field(default=None, description="The instants of a trace.")
    max_in_flight: int = Field(
        default=512,
        ge=1,
        le=20_000,
        description="Requests open at once; what comes above it waits, and its lateness is kept (count).",
    )

    @property
    def peak_rate(self) -> float | None:
        """The highest rate that is asked for, requests per second; null for a trace."""
        if self.rate is not None:
            return self.rate
        if self.ramp is not None:
            return max(self.ramp.from_rate, self.ramp.to_rate)
        return max((stage.rate for stage in self.stages or ()), default=None)

    @property
    def planned_s(self) -> float | None:
        """When the last stage is over; null when the schedule has no end of its own."""
        return sum(stage.for_s for stage in self.stages) if self.stages is not None else None

    @model_validator(mode="after")
    def _one_way(self) -> Open:
        given = [way for way in _WAYS if getattr(self, way) is not None]
        if not given:
            _refuse("an open loop needs a rate", "write `rate: 2`, or one of `ramp`, `stages`, `trace`")
        if len(given) > 1:
            _refuse(f"`{given[0]}` and `{given[1]}` are both given, and a run has one schedule", "keep one")
        if self.burstiness is not None and self.process != "gamma":
            _refuse("`burstiness` belongs to `process: gamma`", "write `process: gamma`, or leave it out")
        if self.process == "gamma" and self.burstiness is None and self.trace is None:
            _refuse("`process: gamma` needs `burstiness`", "write `burstiness: 2` (1 would be Poisson)")
        if self.stages is not None and not any(stage.rate for stage in self.stages):
            _refuse("every stage has a rate of 0, so nothing is ever sent", "give one stage a rate")
        return self


def _refuse(what: str, fix: str) -> None:
    raise PydanticCustomError("bad_value", "{what}", {"what": what, "fix": fix})


class Arrival(Part):
    """How requests come: exactly one of `closed` and `open`."""

    closed: Closed | None = Field(default=None, description="Closed loop: a number of users.")
    open: Open | None = Field(default=None, description="Open loop: a rate.")
