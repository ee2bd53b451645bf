"""The parts of a workload file as typed objects: prompts, output, limits.

Every field carries its unit in its description; the JSON Schema that `kvprobe schema workload`
prints is made from these classes.
"""

from __future__ import annotations

import shlex
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, JsonValue, WithJsonSchema
from pydantic_core import PydanticCustomError

from kvprobe.load.workload_secrets import secret_keys
from kvprobe.load.workload_values import Length, Part, Seconds, as_tuple

MAX_OUTPUT_TOKENS = 200_000
MAX_REQUESTS = 1_000_000
MAX_DURATION_S = 24 * 3600.0


class Output(Part):
    """What is asked of the server."""

    tokens: Length | None = Field(
        default=None,
        description="Tokens to generate (max_tokens of each request), in tokens. Needed, except for a trace.",
    )
    ignore_eos: bool = Field(
        default=True,
        description="Ask the server not to stop early, so that every answer has the length asked for "
        "(vLLM, SGLang, the bundled server).",
    )


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


def _check_extra_body(value: Any) -> Any:
    for key in value if isinstance(value, dict) else ():
        if key in _OWN_KEYS:
            message, fix = f"`{key}` is set by kvprobe itself", f"use {_OWN_KEYS[key]} instead"
            raise PydanticCustomError("bad_value", "{what}", {"what": message, "fix": fix, "key": (key,)})
    for path in secret_keys(value):
        message = f"`{path[-1]}` looks like a secret, which does not belong into a request body or a file"
        fix = "put it into an environment variable and name that with --api-key-env"
        context = {"what": message, "fix": fix, "key": path, "secret": True}
        raise PydanticCustomError("bad_value", "{what}", context)
    return value


class Cancel(Part):
    """Streams that the client gives up in the middle, as people do who close a tab."""

    share: float = Field(gt=0, le=1, description="Share of the measured requests (ratio, 0 to 1).")
    after_tokens: int = Field(
        default=4,
        ge=1,
        le=MAX_OUTPUT_TOKENS,
        description="Content chunks after which the client hangs up (count).",
    )


class RequestOptions(Part):
    """What goes into the body of each request besides the prompt."""

    temperature: float = Field(
        default=0.0, ge=0, le=2, description="Sampling temperature (no unit); 0 is greedy."
    )
    extra_body: Annotated[dict[str, JsonValue], BeforeValidator(_check_extra_body)] = Field(
        default_factory=dict, description="Further fields of the JSON body, passed on as they are."
    )
    cancel: Cancel | None = Field(
        default=None, description="Streams that the client gives up in the middle; none when left out."
    )
    obey_retry_after: bool | None = Field(
        default=None,
        description="After a 429 with Retry-After, the user that it was said to waits so long before its "
        "next request (closed loops). The refused request stays a failure and is not sent again.",
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
    return as_tuple(value)


ServerArgs = Annotated[
    tuple[str, ...],
    BeforeValidator(_split_args),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
